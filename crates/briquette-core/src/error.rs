//! The error type of all crates: a kind (which gives the exit code) and a one-line message.

use crate::printable::is_unsafe_to_print;
use crate::shown_path::{shown_path, with_shown_paths};

/// The classes of errors, each with one exit code of the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A bug in Briquette (exit code 1).
    Bug,
    /// An invalid recipe, option or pattern (2).
    Config,
    /// A file that is damaged or invalid, or a mismatch found by verification (4).
    Input,
    /// Reading, writing, disk space or memory (5). A missing input file also has this kind, but exit code 4.
    Io,
    /// Refused by policy: NaN, already quantized, output exists, missed gate, exceeded limit (6).
    Refused,
    /// Stopped by SIGHUP, SIGINT or SIGTERM, with the signal number (128 + n).
    Interrupted(i32),
}

impl ErrorKind {
    /// Returns the name of the kind in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bug => "bug",
            Self::Config => "config",
            Self::Input => "input",
            Self::Io => "io",
            Self::Refused => "refused",
            Self::Interrupted(_) => "interrupted",
        }
    }
}

/// An action that resolves an error; a front end phrases it in its own terms, such as a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// Replace the existing output.
    Replace,
    /// Delete the partial results and start again.
    StartAnew,
    /// Skip tensors that contain NaN or infinity, or that would after compression.
    AllowNonfinite,
    /// Exclude the tensors that match these patterns.
    Exclude(Vec<String>),
    /// List the tensors of the model and their roles.
    LookUpTensors,
    /// List the available devices.
    LookUpDevices,
    /// Change this key of the recipe.
    SetKey(&'static str),
    /// Give the path of an existing file.
    CheckPath,
    /// Download this model from the Hugging Face hub.
    Download(String),
    /// Build the program with this Cargo feature.
    BuildWith(&'static str),
}

/// A one-line error: where, what was found, what was expected, what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The whole message.
    pub message: String,
    /// The cause, if there is one; its text is already part of the message.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// An action of the caller that resolves the error.
    pub remedy: Option<Remedy>,
}

/// The result of a fallible operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: one_line(&with_shown_paths(&message.into()), MAX_MESSAGE), source: None, remedy: None }
    }

    /// Returns an error for a bug in Briquette.
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }

    /// Returns an error for an invalid configuration.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// Returns an error for a configuration that needs a missing Cargo feature.
    ///
    /// `cannot` is a verb with its object, such as "run models".
    pub fn lacks_feature(feature: &'static str, cannot: &str) -> Self {
        let message = format!("this build cannot {cannot}: it lacks the feature `{feature}`");
        Self::config(message).with_remedy(Remedy::BuildWith(feature))
    }

    /// Returns an error for invalid input.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Input, message)
    }

    /// Returns an error for work that is refused by policy.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, message)
    }

    /// Returns an error for work that a signal stopped.
    pub fn interrupted(signal: i32) -> Self {
        Self::new(ErrorKind::Interrupted(signal), format!("stopped by signal {signal}"))
    }

    /// Returns an error for a failure to read or write `path`; `what` describes the failed operation.
    pub fn io(what: &str, path: &std::path::Path, source: impl Into<std::io::Error>) -> Self {
        let source = source.into();
        let hint = match source.kind() {
            std::io::ErrorKind::StorageFull => "; free some space or choose another output",
            std::io::ErrorKind::FileTooLarge => "; the file size limit is too low for this output",
            std::io::ErrorKind::QuotaExceeded => "; the disk quota is used up",
            std::io::ErrorKind::PermissionDenied => "; check its permissions",
            _ => "",
        };
        let message = format!("{}: {what}: {source}{hint}", shown_path(path));
        Self { source: Some(Box::new(source)), ..Self::new(ErrorKind::Io, message) }
    }

    /// Returns an error for a missing input file.
    pub fn missing(path: &std::path::Path, source: std::io::Error) -> Self {
        let message = format!("{}: no such file or directory; check the path", shown_path(path));
        let error = Self { source: Some(Box::new(source)), ..Self::new(ErrorKind::Io, message) };
        error.with_remedy(Remedy::CheckPath)
    }

    /// Returns whether the input is wrong: missing or with invalid contents.
    pub fn is_bad_input(&self) -> bool {
        self.kind == ErrorKind::Input || matches!(self.remedy, Some(Remedy::CheckPath | Remedy::Download(_)))
    }

    /// Returns the name of the kind in machine-readable output.
    pub fn kind_name(&self) -> &'static str {
        if self.is_bad_input() { ErrorKind::Input.name() } else { self.kind.name() }
    }

    /// Puts the name of a tensor, key or file in front of the message.
    pub fn at(mut self, culprit: impl std::fmt::Display) -> Self {
        self.message = format!("{}: {}", one_line(&with_shown_paths(&culprit.to_string()), MAX_CULPRIT), self.message);
        self
    }

    /// Sets the action that resolves the error.
    #[must_use]
    pub fn with_remedy(self, remedy: Remedy) -> Self {
        Self { remedy: Some(remedy), ..self }
    }

    /// Returns the exit code of the binary for this error.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            _ if self.is_bad_input() => 4,
            ErrorKind::Bug => 1,
            ErrorKind::Config => 2,
            ErrorKind::Input => 4,
            ErrorKind::Io => 5,
            ErrorKind::Refused => 6,
            ErrorKind::Interrupted(signal) => 128_u8.saturating_add(signal.try_into().unwrap_or(0)),
        }
    }
}

/// The most characters of a message and of a name in front of it. Both may quote an untrusted file.
const MAX_MESSAGE: usize = 2000;
const MAX_CULPRIT: usize = 300;

/// Returns the text on one line, with its middle replaced if it is longer than `max` characters.
///
/// Line breaks and control characters become spaces; other characters that [`is_unsafe_to_print`] finds become U+FFFD.
fn one_line(text: &str, max: usize) -> String {
    let visible = |letter: char| match letter {
        '\u{2028}' | '\u{2029}' => ' ',
        letter if letter.is_control() => ' ',
        letter if is_unsafe_to_print(letter) => '\u{fffd}',
        letter => letter,
    };
    let cut = |at: usize| text.char_indices().nth(at).map(|(byte, _)| byte);
    if cut(max).is_none() {
        return text.chars().map(visible).collect();
    }
    let tail = text.char_indices().rev().nth(max / 4).map_or(0, |(byte, _)| byte);
    let head = text.chars().take(max - max / 4).map(visible);
    head.chain(" … ".chars()).chain(text[tail..].chars().map(visible)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_line_with_their_location() {
        let error = Error::input("found 3\nexpected 4").at("layer.weight");
        assert_eq!(error.to_string(), "layer.weight: found 3 expected 4");
        assert_eq!(error.exit_code(), 4);
        assert_eq!(Error::interrupted(15).exit_code(), 143);
    }

    #[test]
    fn long_errors_are_shortened_to_one_line() {
        let error =
            Error::input(format!("found {}, expected 3", "é".repeat(1 << 20))).at("a\n\x1b[31mb".repeat(1 << 20));
        let text = error.to_string();
        assert!(text.chars().count() < 2500, "{} letters", text.chars().count());
        assert!(
            text.starts_with("a  [31mb") && text.ends_with("expected 3") && !text.contains(char::is_control),
            "{text}"
        );
    }
}

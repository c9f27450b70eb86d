//! One error type for the libraries: a kind (which is an exit code), a one-line message, and where it came from.

use crate::printable::is_sly;
use crate::shown_path::shown_path;

/// What went wrong, in the classes that callers act on. Each is one exit code of the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A bug in Briquette (exit code 1).
    Bug,
    /// A recipe, an option or a pattern that is not valid (2).
    Config,
    /// A file whose contents contradict its format or itself, or a difference found by verification (4).
    Input,
    /// Reading, writing, space or memory (5). A file to be read that is missing is of this kind too, and is bad input to the command (4).
    Io,
    /// Refused by policy: NaN, already quantized, output exists, gate not met, over the limit (6).
    Refused,
    /// Stopped by SIGHUP, SIGINT or SIGTERM, with the signal's number (128 + n).
    Interrupted(i32),
}

impl ErrorKind {
    /// The kind's name, in output that programs read.
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

/// What a caller can do about an error that the message alone does not tell how: a front end says it in its own words, such as a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// Replace the output that is there.
    Replace,
    /// Throw away what there is to go on from, and start anew.
    StartAnew,
    /// Leave tensors as they are that hold, or would come to hold, what is no finite number.
    AllowNonfinite,
    /// Leave out the tensors that these patterns match.
    Exclude(Vec<String>),
    /// Look up the tensors of the model, and what they are for.
    LookUpTensors,
    /// Look up the devices that there are.
    LookUpDevices,
    /// Set this key of a recipe otherwise.
    SetKey(&'static str),
    /// Give the path of a file that is there.
    CheckPath,
    /// Download this model of the Hugging Face hub.
    Download(String),
    /// Build the program with this Cargo feature.
    BuildWith(&'static str),
}

/// A one-line error: what, where, found, expected, what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The class of the error.
    pub kind: ErrorKind,
    /// The whole line.
    pub message: String,
    /// The cause, where there is one; its text is already part of the message.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// What can be done about it, where that is an option of whoever called.
    pub remedy: Option<Remedy>,
}

/// The result of a fallible operation of Briquette.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: one_line(&message.into(), MAX_MESSAGE), source: None, remedy: None }
    }

    /// A bug in Briquette.
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }

    /// A configuration that is not valid.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// A configuration that needs a Cargo feature which this build lacks; `cannot` is a verb with its object, such as "run models".
    pub fn lacks_feature(feature: &'static str, cannot: &str) -> Self {
        let message = format!("this build cannot {cannot}: it lacks the feature `{feature}`");
        Self::config(message).with_remedy(Remedy::BuildWith(feature))
    }

    /// Bad input.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Input, message)
    }

    /// Refused by policy.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, message)
    }

    /// Stopped by a signal.
    pub fn interrupted(signal: i32) -> Self {
        Self::new(ErrorKind::Interrupted(signal), format!("stopped by signal {signal}"))
    }

    /// Reading, writing, space or memory: `what` failed at `path`.
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

    /// A file to be read that is missing.
    pub fn missing(path: &std::path::Path, source: std::io::Error) -> Self {
        let message = format!("{}: no such file or directory; check the path", path.display());
        let error = Self { source: Some(Box::new(source)), ..Self::new(ErrorKind::Io, message) };
        error.with_remedy(Remedy::CheckPath)
    }

    /// Whether what was given to read is wrong: its contents, or that it is missing.
    pub fn is_bad_input(&self) -> bool {
        self.kind == ErrorKind::Input || matches!(self.remedy, Some(Remedy::CheckPath | Remedy::Download(_)))
    }

    /// The kind's name, in output that programs read.
    pub fn kind_name(&self) -> &'static str {
        if self.is_bad_input() { ErrorKind::Input.name() } else { self.kind.name() }
    }

    /// Puts the culprit's name in front: a tensor, a key or a file.
    pub fn at(mut self, culprit: impl std::fmt::Display) -> Self {
        self.message = format!("{}: {}", one_line(&culprit.to_string(), MAX_CULPRIT), self.message);
        self
    }

    /// With what can be done about it.
    #[must_use]
    pub fn with_remedy(self, remedy: Remedy) -> Self {
        Self { remedy: Some(remedy), ..self }
    }

    /// The exit code of the binary for this error.
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

/// The most letters of a message, and of a name in front of it. Both can come from a file that nobody trusts.
const MAX_MESSAGE: usize = 2000;
const MAX_CULPRIT: usize = 300;

/// The text on one line: line breaks and control characters become spaces, other letters that [`is_sly`] finds U+FFFD. Where it is
/// longer than `max` letters, the middle is left out.
fn one_line(text: &str, max: usize) -> String {
    let visible = |letter: char| match letter {
        '\u{2028}' | '\u{2029}' => ' ',
        letter if letter.is_control() => ' ',
        letter if is_sly(letter) => '\u{fffd}',
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
    fn an_error_is_one_line_that_names_its_culprit() {
        let error = Error::input("found 3\nexpected 4").at("layer.weight");
        assert_eq!(error.to_string(), "layer.weight: found 3 expected 4");
        assert_eq!(error.exit_code(), 4);
        assert_eq!(Error::interrupted(15).exit_code(), 143);
    }

    #[test]
    fn an_error_stays_one_short_line_whatever_it_quotes() {
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

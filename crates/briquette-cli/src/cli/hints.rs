//! Suggests the intended argument.

use super::args::Args;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words that users try as commands, and the command for each.
const MEANT: [(&str, &str); 13] = [
    ("quantize", "briquette compress MODEL -o OUT --quantize int8"),
    ("quantise", "briquette compress MODEL -o OUT --quantize int8"),
    ("prune", "briquette compress MODEL -o OUT --prune 0.4"),
    ("sparsify", "briquette compress MODEL -o OUT --prune 0.4"),
    ("cast", "briquette compress MODEL -o OUT --cast f16 --format dense"),
    ("convert", "briquette export MODEL --to dense -o OUT"),
    ("decompress", "briquette export MODEL --to dense -o OUT"),
    ("evaluate", "briquette eval MODEL --data DATA"),
    ("train", "briquette distill RECIPE"),
    ("compare", "briquette diff FIRST SECOND"),
    ("info", "briquette inspect MODEL"),
    ("list", "briquette inspect MODEL"),
    ("chat", "briquette generate MODEL --prompt TEXT"),
];

/// Returns the end of an error line with a suggestion, if there is one.
pub(super) fn of(error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = text_of(error, ContextKind::InvalidSubcommand)?;
            let (_, command) = MEANT.iter().find(|(other, _)| *other == word)?;
            Some(format!("; run `{command}`"))
        }
        ErrorKind::UnknownArgument => {
            let word = text_of(error, ContextKind::InvalidArg).filter(|word| !word.starts_with('-'))?;
            let has_output = command()?.get_arguments().any(|argument| argument.get_id() == "output");
            let is_scheme = word.parse::<briquette::quant::Scheme>().is_ok();
            match (is_scheme, has_output) {
                (true, _) => Some(format!("; give a scheme with --quantize {word}")),
                (false, true) => Some(format!("; name the output with -o {word}")),
                (false, false) => None,
            }
        }
        _ => None,
    }
}

fn text_of(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// Returns the command that was called: the first word that is the name of one.
fn command() -> Option<clap::Command> {
    let commands = Args::command();
    let words = std::env::args_os().skip(1);
    words.filter_map(|word| word.into_string().ok()).find_map(|word| commands.find_subcommand(word).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn suggested_commands_can_be_parsed() {
        for (word, line) in MEANT {
            let error = Args::try_parse_from(["briquette", word, "model"]).unwrap_err();
            assert_eq!(of(&error), Some(format!("; run `{line}`")), "{word}");
            Args::try_parse_from(line.split(' ')).unwrap();
        }
    }
}

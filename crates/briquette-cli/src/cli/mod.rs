//! The command line.

mod allocator;
mod args;
mod asked;
mod batch;
mod calibrate;
mod choice;
mod commands;
mod common;
mod compress;
mod devices;
mod evaluate;
mod generate;
mod hints;
mod in_flags;
mod man;
mod options;
mod panics;
mod plan;
mod progress;
mod progress_lines;
mod sensitivity;
mod show;
mod signals;
mod stage_flags;
mod tables;
mod tensor_tables;
mod text;
mod trace;
mod values;

use args::Args;
use briquette::{Error, ErrorKind};
use clap::Parser;
use clap::error::ErrorKind as Mistake;
use std::process::ExitCode;

/// Parses, runs, and turns an error into one line and an exit code; with `--json` into a document as well.
pub(crate) fn main() -> ExitCode {
    let mut args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return explain(&error, asks_for_json()),
    };
    let is_json = args.common.json;
    if is_json {
        allocator::report_as_json();
    }
    match panics::caught(|| trace::run(&mut args)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&error, is_json),
    }
}

/// Whether arguments that cannot be read ask for JSON.
fn asks_for_json() -> bool {
    std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// Help and version go to stdout, and the help of a command that lacks its subcommand; a mistake is one line on stderr and exit
/// code 2.
fn explain(error: &clap::Error, is_json: bool) -> ExitCode {
    if !error.use_stderr() {
        let printed = text::print(&error.render().to_string());
        return printed.map_or_else(|error| fail(&error, false), |()| ExitCode::SUCCESS);
    }
    let message = match error.kind() {
        // clap renders the help here: of the program, or of a command that has commands of its own.
        Mistake::DisplayHelpOnMissingArgumentOrSubcommand if !is_json => {
            let printed = text::print(&error.render().to_string());
            return printed.map_or_else(|error| fail(&error, false), |()| ExitCode::SUCCESS);
        }
        Mistake::DisplayHelpOnMissingArgumentOrSubcommand | Mistake::MissingSubcommand => {
            "no command, or not all of one".into()
        }
        _ => {
            let rendered = error.render().to_string();
            let lines = rendered.lines().map(str::trim).filter(|line| !line.is_empty());
            let is_said = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more information");
            let message = lines.filter(is_said).collect::<Vec<_>>().join(" ").replace(" tip: ", "; tip: ");
            message.strip_prefix("error: ").map_or(message.clone(), str::to_string)
        }
    };
    let hint = hints::of(error).unwrap_or_default();
    fail(&Error::config(format!("{message}{hint}; see --help")), is_json)
}

fn fail(error: &Error, is_json: bool) -> ExitCode {
    let line = match error.kind {
        ErrorKind::Bug => format!("internal: {error}; please report this"),
        _ => briquette::pipeline::advised(error),
    };
    text::complain(&format!("error: {line}"));
    if is_json && !text::has_printed() {
        let document = serde_json::json!({ "error": show::error_json(error) });
        // Where standard output takes nothing more, the exit code still tells of the error.
        let _ = text::print(&format!("{document:#}\n"));
    }
    ExitCode::from(error.exit_code())
}

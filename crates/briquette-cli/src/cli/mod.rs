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
mod graph;
mod graph_tables;
mod hints;
mod in_flags;
mod man;
mod onnx;
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

/// Parses arguments, runs the command, and turns an error into one line and an exit code; with `--json`, also
/// into a document.
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

/// Returns whether invalid arguments contain `--json`.
fn asks_for_json() -> bool {
    std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// Prints help and version to stdout. Other mistakes are one line on stderr with exit code 2.
fn explain(error: &clap::Error, is_json: bool) -> ExitCode {
    if !error.use_stderr() {
        let printed = text::print(&error.render().to_string());
        return printed.map_or_else(|error| fail(&error, false), |()| ExitCode::SUCCESS);
    }
    let message = match error.kind() {
        // clap renders the help here, for the program or for a command with subcommands.
        Mistake::DisplayHelpOnMissingArgumentOrSubcommand if !is_json => {
            let printed = text::print(&error.render().to_string());
            return printed.map_or_else(|error| fail(&error, false), |()| ExitCode::SUCCESS);
        }
        Mistake::DisplayHelpOnMissingArgumentOrSubcommand | Mistake::MissingSubcommand => {
            "the command is missing or incomplete".into()
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
    allocator::print_last_line(&text::complaint(&format!("error: {line}")), error.exit_code());
    if is_json && !text::has_printed() {
        let document = serde_json::json!({ "error": show::error_json(error) });
        // If stdout cannot be written, the exit code still shows the error.
        let _ = text::print(&format!("{document:#}\n"));
    }
    ExitCode::from(error.exit_code())
}

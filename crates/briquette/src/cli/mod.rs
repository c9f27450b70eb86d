//! The command line.

mod allocator;
mod args;
mod batch;
mod choice;
mod commands;
mod devices;
mod evaluate;
mod man;
mod panics;
mod plan;
mod progress;
mod signals;
mod tables;
mod text;
mod trace;

use args::Args;
use briquette::Error;
use clap::Parser;
use clap::error::ErrorKind;
use std::process::ExitCode;

/// Parses, runs, and turns an error into one line and an exit code.
pub(crate) fn main() -> ExitCode {
    let mut args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return explain(&error),
    };
    match panics::caught(|| trace::run(&mut args)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&error),
    }
}

/// Help and version go to stdout; a mistake is one line on stderr and exit code 2.
fn explain(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return text::print(&error.render().to_string()).map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        text::complain("error: no command, or not all of one; see --help");
        return ExitCode::from(2);
    }
    let rendered = error.render().to_string();
    let lines: Vec<&str> = rendered.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let kept = lines.iter().filter(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let message: Vec<&str> = kept.copied().collect();
    text::complain(&format!("{}; see --help", message.join(" ").replace(" tip: ", "; tip: ")));
    ExitCode::from(2)
}

fn fail(error: &Error) -> ExitCode {
    match error.kind {
        briquette::ErrorKind::Bug => text::complain(&format!("error: internal: {error}; please report this")),
        _ => text::complain(&format!("error: {error}")),
    }
    ExitCode::from(error.exit_code())
}

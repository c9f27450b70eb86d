//! The `briquette` command: arguments in, one library call, one report, and an exit code.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

//! The `briquette` command: reads arguments, calls one library function, prints one report, and exits with the code of
//! the error's kind.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

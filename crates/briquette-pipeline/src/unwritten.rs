//! Errors of runs that were stopped before they wrote anything.

use briquette_core::{Error, ErrorKind};

/// Adds to the error of a stopped run that nothing was written. Other errors are returned unchanged.
pub(crate) fn unwritten(error: Error) -> Error {
    match error.kind {
        ErrorKind::Interrupted(_) => Error { message: format!("{}; nothing was written", error.message), ..error },
        _ => error,
    }
}

//! Turns a panic into one line and exit code 1, without a backtrace.

use briquette::Error;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};

/// The message and the location of the last panic.
static SAID: Mutex<Option<String>> = Mutex::new(None);

/// Runs `work`; a panic becomes an error.
///
/// # Errors
/// Returns the error of `work`, or Bug: `work` panicked.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    panic::set_hook(Box::new(|info| {
        let said = info.payload_as_str().unwrap_or("it panicked");
        let place = info.location().map_or(String::new(), |place| format!(" ({}:{})", place.file(), place.line()));
        *SAID.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{said}{place}"));
    }));
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).take();
        Err(error_of(said.unwrap_or_else(|| "it panicked".into())))
    })
}

/// Returns the error of a panic: Io if the system refused a thread, else Bug.
fn error_of(said: String) -> Error {
    const REFUSED: [&str; 3] =
        ["failed to spawn thread", "ThreadPoolBuildError", "thread pool has not been initialized"];
    if REFUSED.iter().any(|words| said.contains(words)) {
        let error = std::io::Error::other(
            "the system refuses more threads; free memory, or raise the limits (ulimit -u, ulimit -v)",
        );
        return Error::io("cannot start threads", "this process".as_ref(), error);
    }
    Error::bug(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_thread_is_not_a_bug() {
        let said = "failed to spawn thread: Os { code: 11, kind: WouldBlock } (std/src/thread/mod.rs:1)";
        assert_eq!(error_of(said.into()).exit_code(), 5);
        assert_eq!(error_of("index out of bounds".into()).exit_code(), 1);
    }
}

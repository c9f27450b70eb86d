//! A bug must not look like one: no panic text and no backtrace, one line and exit code 1.

use briquette::Error;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};

/// What the last panic said, and where.
static SAID: Mutex<Option<String>> = Mutex::new(None);

/// Does `work`; what panics in it is an error.
///
/// # Errors
/// Those of `work`; Bug for a panic.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    panic::set_hook(Box::new(|info| {
        let said = info.payload_as_str().unwrap_or("it panicked");
        let place = info.location().map_or(String::new(), |place| format!(" ({}:{})", place.file(), place.line()));
        *SAID.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{said}{place}"));
    }));
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).take();
        Err(Error::bug(said.unwrap_or_else(|| "it panicked".into())))
    })
}

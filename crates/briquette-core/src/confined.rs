//! Running work on untrusted input in a separate thread, with limits of stack, memory and time.
//!
//! A panic of the work becomes an error and prints nothing.

use crate::{Error, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// The interval at which a confined thread is checked for results and signals.
const POLL: Duration = Duration::from_millis(20);

/// The limits of a confined thread.
#[derive(Debug, Clone, Copy)]
pub struct Confinement {
    /// Size of its stack in bytes. Unused stack takes no memory.
    pub stack_bytes: usize,
    /// The most bytes that it may allocate at a time. Only an allocator that calls [`take`] and [`give`]
    /// enforces this limit. The command's allocator does, the default allocator of a library user does not.
    pub memory_bytes: u64,
    /// The longest time that the work may take.
    pub time: Duration,
}

/// The signal that requests the process to stop; 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// The number of the last confined thread.
static LAST_ID: AtomicU64 = AtomicU64::new(0);
/// The number of a confined thread that exceeds its memory limit. Such a thread writes its number repeatedly.
static OVER_LIMIT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // These variables have no destructors, so an allocator may use them at any time.
    static ID: Cell<u64> = const { Cell::new(0) };
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Requests the confined threads of the whole process to stop because of a signal.
pub fn stop_all(signal: i32) {
    SIGNAL.store(signal, SeqCst);
}

/// Returns an error after [`stop_all`]. Work on untrusted input that runs unconfined calls it between its parts.
///
/// # Errors
/// Interrupted: [`stop_all`] was called.
pub fn check_stop() -> Result<()> {
    match SIGNAL.load(SeqCst) {
        0 => Ok(()),
        signal => Err(Error::interrupted(signal)),
    }
}

/// Counts bytes that this thread is about to allocate. An allocator calls it before it allocates.
///
/// In a confined thread that exceeds its limit, the call never returns. The caller of [`confined`] gets an
/// error instead.
#[inline]
pub fn take(n_bytes: usize) {
    let left = LEFT.get();
    if left != u64::MAX {
        match left.checked_sub(n_bytes as u64) {
            Some(left) => LEFT.set(left),
            None => wait_for_ever(),
        }
    }
}

/// Counts bytes that this thread has freed. An allocator calls it.
#[inline]
pub fn give(n_bytes: usize) {
    let left = LEFT.get();
    if left != u64::MAX {
        LEFT.set(left.saturating_add(n_bytes as u64).min(u64::MAX - 1));
    }
}

#[cold]
fn wait_for_ever() -> ! {
    loop {
        OVER_LIMIT.store(ID.get(), SeqCst);
        std::thread::sleep(POLL);
    }
}

/// Runs `work` in a separate thread within `limits`.
///
/// A thread that exceeds a limit is abandoned: it ends with the process, or when its work ends.
///
/// # Errors
/// - Input: the work panics, or exceeds the limit of time or memory.
/// - Io: the system cannot start another thread.
/// - Interrupted: [`stop_all`] was called.
pub fn confined<T: Send + 'static>(limits: Confinement, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let id = LAST_ID.fetch_add(1, SeqCst) + 1;
    let (sender, results) = sync_channel(1);
    let body = move || {
        ID.set(id);
        LEFT.set(limits.memory_bytes.min(u64::MAX - 1));
        let outcome = quietly(work);
        LEFT.set(u64::MAX);
        // The caller may no longer wait for the result.
        let _ = sender.send(outcome);
    };
    let builder = std::thread::Builder::new().name("confined".into()).stack_size(limits.stack_bytes);
    let thread =
        builder.spawn(body).map_err(|error| Error::io("cannot start a thread", "this process".as_ref(), error))?;
    let outcome = wait(id, limits, &results)?;
    // The thread has sent its result and is about to end.
    let _ = thread.join();
    outcome
}

fn wait<T>(id: u64, limits: Confinement, results: &Receiver<Result<T>>) -> Result<Result<T>> {
    let start = Instant::now();
    loop {
        match results.recv_timeout(POLL) {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::bug("a confined thread ended without a result")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        check_stop()?;
        if OVER_LIMIT.load(SeqCst) == id {
            let megabytes = limits.memory_bytes >> 20;
            return Err(Error::input(format!("exceeds the memory limit of {megabytes} MiB")));
        }
        if start.elapsed() > limits.time {
            let seconds = limits.time.as_secs_f64();
            return Err(Error::input(format!("exceeds the time limit of {seconds:.0} s")));
        }
    }
}

/// Runs `work` in this thread. A panic becomes an error and prints nothing.
///
/// # Errors
/// Input: the work panics.
pub fn quietly<T>(work: impl FnOnce() -> T) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                before(info);
            }
        }));
    });
    let was_quiet = IS_QUIET.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_QUIET.set(was_quiet);
    outcome.map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Error::input(text.unwrap_or_else(|| "it panicked".into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    /// The signal applies to the whole process, so these tests run one at a time.
    static ONE: Mutex<()> = Mutex::new(());
    const LIMITS: Confinement =
        Confinement { stack_bytes: 1 << 20, memory_bytes: 1 << 20, time: Duration::from_millis(200) };

    fn one_by_one() -> std::sync::MutexGuard<'static, ()> {
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn work_within_its_limits_gives_its_result() {
        let _one = one_by_one();
        assert_eq!(confined(LIMITS, || 2 + 2).unwrap(), 4);
    }

    #[test]
    fn panics_become_input_errors() {
        let _one = one_by_one();
        let error = confined(LIMITS, || panic!("no such entry")).map(|(): ()| ()).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().as_str()), (4, "no such entry"));
    }

    #[test]
    fn endless_work_ends_at_the_time_limit() {
        let _one = one_by_one();
        let error = confined(LIMITS, || std::thread::sleep(Duration::from_secs(20))).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains("time limit"), "{error}");
    }

    #[test]
    fn threads_above_the_memory_limit_are_abandoned() {
        let _one = one_by_one();
        let limits = Confinement { time: Duration::from_secs(20), ..LIMITS };
        let start = Instant::now();
        let error = confined(limits, || (0..100).for_each(|_| take(1 << 16))).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains("1 MiB"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
        // Freed memory may be allocated again.
        let again = || (0..100).for_each(|_| (take(1 << 16), give(1 << 16)).1);
        confined(limits, again).unwrap();
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let _one = one_by_one();
        let limits = Confinement { time: Duration::from_secs(20), ..LIMITS };
        assert!(check_stop().is_ok());
        stop_all(2);
        assert_eq!(check_stop().unwrap_err().exit_code(), 130);
        let error = confined(limits, || std::thread::sleep(Duration::from_secs(20))).unwrap_err();
        stop_all(0);
        assert_eq!(error.exit_code(), 130);
    }
}

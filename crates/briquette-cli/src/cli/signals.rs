//! Signals: SIGINT, SIGTERM and SIGHUP stop the run; SIGXFSZ becomes a write error.

use briquette::pipeline::Stop;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A repeated signal within this time counts once: `timeout` sends each signal to the process and to its group.
const ONE_WISH: Duration = Duration::from_secs(1);

/// Starts to handle signals. A second signal exits at once and leaves the draft to the next run.
pub(crate) fn listen(stop: &Stop) -> std::io::Result<()> {
    // Without a handler, a write beyond the file size limit kills the process; with a handler, it fails with
    // EFBIG.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut wishes = vec![SIGINT, SIGTERM];
    // `nohup` ignores SIGHUP, so the run continues.
    wishes.extend((!is_ignored(SIGHUP)).then_some(SIGHUP));
    let mut signals = held_back(&wishes, || Signals::new(&wishes))?;
    let stop = stop.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            let (asked, since) = *first.get_or_insert((signal, Instant::now()));
            if signal != asked || since.elapsed() > ONE_WISH {
                signal_hook::low_level::exit(128 + signal);
            }
            stop.request(signal);
            briquette::core::confined::stop_all(signal);
        }
    })?;
    Ok(())
}

/// Runs `work` while these signals are blocked, so that none is lost between the old and the new handler.
fn held_back<T>(signals: &[i32], work: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    let mut held = SigSet::empty();
    for &signal in signals {
        held.add(Signal::try_from(signal)?);
    }
    let before = held.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let done = work();
    before.thread_set_mask()?;
    done
}

/// Returns whether a signal is ignored. If unknown, it counts as ignored and keeps its default action.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

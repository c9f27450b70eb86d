//! Signals: SIGINT, SIGTERM and SIGHUP ask the run to stop, SIGXFSZ becomes an error of the write that caused it.

use briquette::pipeline::Stop;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The same signal within this time is the same wish: `timeout` sends each of its own twice, to the process and to its group.
const ONE_WISH: Duration = Duration::from_secs(1);

/// Starts listening. A second wish ends the process at once, and leaves its draft to the next run.
pub(crate) fn listen(stop: &Stop) -> std::io::Result<()> {
    // Without a handler a write beyond the file size limit would end the process; with one it fails with EFBIG.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut wishes = vec![SIGINT, SIGTERM];
    // `nohup` means that it is to go on.
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

/// Does `work` while these signals wait: one that came between the old handling and the new would be heard by nobody. Before that
/// they end the process as they end any.
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

/// Whether a signal is ignored. Where the system does not tell, it is taken for that, and does what it does.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

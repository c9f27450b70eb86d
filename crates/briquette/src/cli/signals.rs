//! Signals: SIGINT and SIGTERM ask the run to stop, SIGXFSZ becomes an error of the write that caused it.

use briquette::pipeline::Stop;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The same signal within this time is the same wish: `timeout` sends each of its own twice, to the process and to its group.
const ONE_WISH: Duration = Duration::from_secs(1);

/// Starts listening. A second wish ends the process at once, and leaves its draft to the next run.
pub(crate) fn listen(stop: &Stop) -> std::io::Result<()> {
    // Without a handler a write beyond the file size limit would end the process; with one it fails with EFBIG.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let stop = stop.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            let (asked, since) = *first.get_or_insert((signal, Instant::now()));
            if signal != asked || since.elapsed() > ONE_WISH {
                signal_hook::low_level::exit(128 + signal);
            }
            stop.request(signal);
        }
    })?;
    Ok(())
}

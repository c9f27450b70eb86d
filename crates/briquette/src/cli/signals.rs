//! Signals: SIGINT and SIGTERM ask the run to stop, SIGXFSZ becomes an error of the write that caused it.

use briquette::pipeline::Stop;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Starts listening. A second signal ends the process at once.
pub(crate) fn listen(stop: &Stop) -> std::io::Result<()> {
    // Without a handler a write beyond the file size limit would end the process; with one it fails with EFBIG.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
        signal_hook::flag::register(signal, asked.clone())?;
    }
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let stop = stop.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            stop.request(signal);
        }
    })?;
    Ok(())
}

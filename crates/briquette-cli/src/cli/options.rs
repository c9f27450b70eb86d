//! Converts flags to run options: threads, progress, signals and the device.

use super::common::Common;
use super::{allocator, progress, signals};
use briquette::core::memory::MemoryMeter;
use briquette::pipeline::{Progress, Stop, limit_threads};
use briquette::{Error, Result, RunOptions};
use std::path::Path;
use std::sync::Arc;

/// Returns the run options of the flags, and starts to handle signals.
pub(super) fn options(common: &Common, force: bool) -> Result<RunOptions> {
    let stop = Stop::default();
    signals::listen(&stop).map_err(|error| Error::io("cannot listen for signals", Path::new("this process"), error))?;
    let (progress, meter): (Arc<dyn Progress>, Arc<dyn MemoryMeter>) = match &common.tracer {
        Some(trace) => (trace.clone(), trace.clone()),
        None => (progress_of(common), Arc::new(allocator::Allocated)),
    };
    if common.threads > 0 {
        limit_threads(common.threads)?;
    }
    let (threads, device) = (common.threads, common.device.clone());
    Ok(RunOptions { threads, force, progress, stop, device, meter, ..RunOptions::default() })
}

pub(super) fn progress_of(common: &Common) -> Arc<dyn Progress> {
    progress::of(common.quiet || common.json)
}

//! Reading how much memory is in use: a trait, so that reports can name the meter of a figure.

use crate::{Error, Result};

/// Something that measures memory.
pub trait MemoryMeter: Send + Sync {
    /// The meter's name in reports: `"resident set of the process"`.
    fn name(&self) -> &str;

    /// Bytes in use now, where the platform tells.
    fn live_bytes(&self) -> Option<u64>;

    /// The most bytes in use so far, where the platform tells.
    fn peak_bytes(&self) -> Option<u64>;

    /// Bytes that may still be taken, where the platform tells. By default, those that the host's system can give.
    fn free_bytes(&self) -> Option<u64> {
        available_bytes()
    }

    /// Whether the meter counts this process's memory, where models on the CPU lie, rather than a device's.
    fn is_of_host(&self) -> bool {
        true
    }

    /// Restarts the peak from what is in use now. A meter that cannot restart goes on counting.
    fn reset_peak(&self) {}

    /// Called when another phase begins, such as `run models/minilm`. Meters that keep a trace write the phase down.
    fn begin_phase(&self, _phase: &str) {}
}

/// A limit on the bytes that a meter shows, from when it was set.
#[derive(Clone, Copy)]
pub struct MemoryLimit<'a> {
    /// The most bytes that may be in use.
    pub n_bytes: u64,
    meter: &'a dyn MemoryMeter,
    /// The peak when the limit was set: a meter that cannot restart shows an older one.
    peak_before: Option<u64>,
}

impl<'a> MemoryLimit<'a> {
    /// Limits what a meter shows from now on; the peak restarts where the meter can.
    pub fn set(n_bytes: u64, meter: &'a dyn MemoryMeter) -> Self {
        meter.reset_peak();
        Self { n_bytes, meter, peak_before: meter.peak_bytes() }
    }

    /// Whether the meter counts this process's memory.
    pub fn is_of_host(&self) -> bool {
        self.meter.is_of_host()
    }

    /// Bytes that may still be taken.
    pub fn left(&self) -> u64 {
        self.n_bytes.saturating_sub(self.meter.live_bytes().unwrap_or(0))
    }

    /// Refuses work that is about to take more bytes than are left.
    ///
    /// # Errors
    /// Refused, with the bytes in use, those of the work, and the limit.
    pub fn check_before(&self, what: &str, n_more: u64) -> Result<()> {
        let live = self.meter.live_bytes().unwrap_or(0);
        if live.saturating_add(n_more) <= self.n_bytes {
            return Ok(());
        }
        let message = format!(
            "to {what} takes at least {n_more} bytes beside {live} in use, expected at most {} in all; raise the limit",
            self.n_bytes
        );
        Err(Error::refused(message).at("memory.limit"))
    }

    /// Refuses a peak over the limit, where there was one since the limit was set.
    ///
    /// # Errors
    /// Refused, with the peak and the limit.
    pub fn check(&self, what: &str) -> Result<()> {
        let Some(peak) = self.meter.peak_bytes() else { return Ok(()) };
        if peak <= self.n_bytes || self.peak_before.is_some_and(|before| peak <= before) {
            return Ok(());
        }
        let message = format!("to {what} took {peak} bytes, expected at most {}; raise the limit", self.n_bytes);
        Err(Error::refused(message).at("memory.limit"))
    }
}

impl std::fmt::Debug for MemoryLimit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLimit").field("n_bytes", &self.n_bytes).field("meter", &self.meter.name()).finish()
    }
}

/// The resident set of this process, from `/proc/self/status`; nothing elsewhere than on Linux.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResidentSet;

impl MemoryMeter for ResidentSet {
    fn name(&self) -> &str {
        "resident set of the process"
    }

    fn live_bytes(&self) -> Option<u64> {
        status_field("VmRSS:")
    }

    fn peak_bytes(&self) -> Option<u64> {
        status_field("VmHWM:")
    }
}

/// Bytes that the system can give without swapping, from `/proc/meminfo`; nothing elsewhere than on Linux.
pub fn available_bytes() -> Option<u64> {
    field("/proc/meminfo", "MemAvailable:")
}

fn status_field(name: &str) -> Option<u64> {
    field("/proc/self/status", name)
}

/// A field given in kB in a file like `/proc/meminfo`, as bytes.
fn field(path: &str, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(path).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Bytes in use, and their peak, as a test sets them.
    struct Fixed(AtomicU64, AtomicU64);

    impl MemoryMeter for Fixed {
        fn name(&self) -> &str {
            "fixed"
        }

        fn live_bytes(&self) -> Option<u64> {
            Some(self.0.load(Relaxed))
        }

        fn peak_bytes(&self) -> Option<u64> {
            Some(self.1.load(Relaxed))
        }
    }

    #[test]
    fn a_limit_is_held_before_work_and_against_the_peak_since_it_was_set() {
        // The peak of 900 is older than the limit.
        let meter = Fixed(AtomicU64::new(100), AtomicU64::new(900));
        let limit = MemoryLimit::set(500, &meter);
        assert_eq!(limit.left(), 400);
        limit.check("run").unwrap();
        limit.check_before("run", 400).unwrap();
        let error = limit.check_before("run m", 401).unwrap_err();
        assert_eq!(error.exit_code(), 6);
        assert!(error.to_string().contains("to run m takes at least 401 bytes beside 100 in use"), "{error}");
        meter.1.store(1000, Relaxed);
        assert!(limit.check("run m").unwrap_err().to_string().contains("took 1000 bytes, expected at most 500"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_peak_is_at_least_what_is_live() {
        let (live, peak) = (ResidentSet.live_bytes().unwrap(), ResidentSet.peak_bytes().unwrap());
        assert!(live > 0 && peak > 0 && available_bytes().unwrap() > 1 << 20);
    }
}

//! Measuring and limiting memory use.

use crate::{Error, Result};

/// A measurement of memory use, with a name for reports.
pub trait MemoryMeter: Send + Sync {
    /// Returns the meter's name in reports: `"resident set of the process"`.
    fn name(&self) -> &str;

    /// Returns the bytes in use now, if the platform reports them.
    fn live_bytes(&self) -> Option<u64>;

    /// Returns the most bytes in use so far, if the platform reports them.
    fn peak_bytes(&self) -> Option<u64>;

    /// Returns the bytes that are still available, if the platform reports them. The default is the free memory
    /// of the host.
    fn free_bytes(&self) -> Option<u64> {
        available_bytes()
    }

    /// Returns whether the meter counts this process's memory rather than that of a device.
    fn is_of_host(&self) -> bool {
        true
    }

    /// Resets the peak to the bytes in use now. A meter that cannot reset it keeps the old peak.
    fn reset_peak(&self) {}

    /// Returns freed memory to the system, if an allocator keeps it between blocks in use.
    fn release_freed(&self) {}

    /// Keeps freed memory for later blocks, or returns it to the system again, if the allocator can. See [`KeptMemory`].
    fn keep_freed(&self, _keeps: bool) {}

    /// Notes the start of a phase, such as `run models/minilm`, for meters that record a trace.
    fn begin_phase(&self, _phase: &str) {}
}

/// Freed memory is kept for later blocks while this exists.
///
/// A model that runs allocates blocks of the same sizes again and again. If the system maps each of them anew, it clears their pages
/// each time, which can take longer than the model.
pub struct KeptMemory<'a>(&'a dyn MemoryMeter);

impl<'a> KeptMemory<'a> {
    /// Begins to keep freed memory.
    pub fn of(meter: &'a dyn MemoryMeter) -> Self {
        meter.keep_freed(true);
        Self(meter)
    }
}

impl Drop for KeptMemory<'_> {
    fn drop(&mut self) {
        self.0.keep_freed(false);
    }
}

/// A limit on the bytes that a meter reports, from the time when it was set.
#[derive(Clone, Copy)]
pub struct MemoryLimit<'a> {
    /// The largest number of bytes in use.
    pub n_bytes: u64,
    meter: &'a dyn MemoryMeter,
    /// The peak when the limit was set, for meters that cannot reset it.
    peak_before: Option<u64>,
}

impl<'a> MemoryLimit<'a> {
    /// Limits the bytes that a meter reports from now on. Resets the peak if the meter can.
    pub fn set(n_bytes: u64, meter: &'a dyn MemoryMeter) -> Self {
        meter.reset_peak();
        Self { n_bytes, meter, peak_before: meter.peak_bytes() }
    }

    /// Returns whether the meter counts this process's memory.
    pub fn is_of_host(&self) -> bool {
        self.meter.is_of_host()
    }

    /// Returns the bytes that are left below the limit.
    pub fn left(&self) -> u64 {
        self.n_bytes.saturating_sub(self.meter.live_bytes().unwrap_or(0))
    }

    /// Refuses work that would take more bytes than are left.
    ///
    /// # Errors
    /// Refused: the bytes in use and `n_more` exceed the limit.
    pub fn check_before(&self, what: &str, n_more: u64) -> Result<()> {
        let live = self.meter.live_bytes().unwrap_or(0);
        if live.saturating_add(n_more) <= self.n_bytes {
            return Ok(());
        }
        let message = format!(
            "cannot {what}: found {live} bytes in use and {n_more} more needed, expected at most {}; raise the limit",
            self.n_bytes
        );
        Err(Error::refused(message).at("memory.limit"))
    }

    /// Refuses a peak above the limit, if it occurred after the limit was set.
    ///
    /// # Errors
    /// Refused: the peak exceeds the limit.
    pub fn check(&self, what: &str) -> Result<()> {
        let Some(peak) = self.meter.peak_bytes() else { return Ok(()) };
        if peak <= self.n_bytes || self.peak_before.is_some_and(|before| peak <= before) {
            return Ok(());
        }
        let message =
            format!("cannot {what}: found a peak of {peak} bytes, expected at most {}; raise the limit", self.n_bytes);
        Err(Error::refused(message).at("memory.limit"))
    }
}

impl std::fmt::Debug for MemoryLimit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLimit").field("n_bytes", &self.n_bytes).field("meter", &self.meter.name()).finish()
    }
}

/// The resident set of this process, from `/proc/self/status`; without values on systems other than Linux.
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

/// Returns the bytes available without swapping, from `/proc/meminfo`; `None` on systems other than Linux.
pub fn available_bytes() -> Option<u64> {
    field("/proc/meminfo", "MemAvailable:")
}

fn status_field(name: &str) -> Option<u64> {
    field("/proc/self/status", name)
}

/// Returns a field in kB of a file like `/proc/meminfo`, in bytes.
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

    /// Bytes in use and their peak, set by a test.
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
    fn limits_apply_before_work_and_to_later_peaks() {
        // The peak of 900 was reached before the limit was set.
        let meter = Fixed(AtomicU64::new(100), AtomicU64::new(900));
        let limit = MemoryLimit::set(500, &meter);
        assert_eq!(limit.left(), 400);
        limit.check("run").unwrap();
        limit.check_before("run", 400).unwrap();
        let error = limit.check_before("run m", 401).unwrap_err();
        assert_eq!(error.exit_code(), 6);
        assert!(error.to_string().contains("cannot run m: found 100 bytes in use and 401 more needed"), "{error}");
        meter.1.store(1000, Relaxed);
        assert!(
            limit.check("run m").unwrap_err().to_string().contains("found a peak of 1000 bytes, expected at most 500")
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn resident_and_peak_memory_are_measured() {
        let (live, peak) = (ResidentSet.live_bytes().unwrap(), ResidentSet.peak_bytes().unwrap());
        assert!(live > 0 && peak > 0 && available_bytes().unwrap() > 1 << 20);
    }
}

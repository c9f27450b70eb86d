//! Reading how much memory is in use: a trait, so that reports can name the meter of a figure.

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

    #[test]
    #[cfg(target_os = "linux")]
    fn the_peak_is_at_least_what_is_live() {
        let (live, peak) = (ResidentSet.live_bytes().unwrap(), ResidentSet.peak_bytes().unwrap());
        assert!(live > 0 && peak > 0 && available_bytes().unwrap() > 1 << 20);
    }
}

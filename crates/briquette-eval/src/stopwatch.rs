//! Batch times without a device's one-time work.

use briquette_core::Result;
use burn::tensor::Device;
use std::time::Instant;

/// Times batches.
///
/// A GPU compiles and selects kernels when they are first needed, so a batch with more items than any before it
/// can first run untimed. The memory of that work is not hidden, because every user of the model needs it too.
pub(crate) struct Stopwatch {
    warms_up: bool,
    /// The number of items in the largest batch so far.
    largest: usize,
    /// The milliseconds of each batch.
    pub(crate) batch_ms: Vec<f64>,
}

impl Stopwatch {
    /// Creates a stopwatch for a device, with warm-up if requested.
    pub(crate) fn on(device: &Device, warms_up: bool) -> Self {
        Self { warms_up: warms_up && briquette_models::device_name(device) != "cpu", largest: 0, batch_ms: Vec::new() }
    }

    /// Runs and times a batch of `n` items.
    ///
    /// # Errors
    /// The first error of `work`; a failed batch is not counted.
    pub(crate) fn time<T>(&mut self, n: usize, work: impl Fn() -> Result<T>) -> Result<T> {
        if self.warms_up && n > self.largest {
            drop(work()?);
        }
        let start = Instant::now();
        let found = work()?;
        self.batch_ms.push(start.elapsed().as_secs_f64() * 1e3);
        self.largest = self.largest.max(n);
        Ok(found)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use briquette_core::Error;
    use std::cell::Cell;
    use std::time::Duration;

    /// Returns how often each of these batches runs.
    fn runs(warms_up: bool, batches: &[usize]) -> Vec<usize> {
        let mut stopwatch = Stopwatch { warms_up, ..Stopwatch::on(&Device::default(), false) };
        let mut run = |&n: &usize| {
            let n_runs = Cell::new(0);
            stopwatch.time(n, || Ok(n_runs.replace(n_runs.get() + 1))).unwrap();
            n_runs.get()
        };
        let runs = batches.iter().map(&mut run).collect();
        assert_eq!(stopwatch.batch_ms.len(), batches.len(), "each batch is timed once");
        runs
    }

    #[test]
    fn a_larger_batch_first_runs_untimed() {
        assert_eq!(runs(true, &[8, 8, 8, 3]), [2, 1, 1, 1]);
        assert_eq!(runs(true, &[1, 6, 6, 4]), [2, 2, 1, 1]);
        assert_eq!(runs(false, &[8, 8, 3]), [1, 1, 1]);
        assert!(!Stopwatch::on(&Device::default(), true).warms_up, "the CPU compiles nothing");
    }

    #[test]
    fn one_time_work_is_not_timed() {
        let mut stopwatch = Stopwatch { warms_up: true, ..Stopwatch::on(&Device::default(), true) };
        let is_warm = Cell::new(false);
        let compile = || {
            if !is_warm.replace(true) {
                std::thread::sleep(Duration::from_millis(200));
            }
            Ok(())
        };
        stopwatch.time(4, compile).unwrap();
        assert!(stopwatch.batch_ms[0] < 200.0, "{:?}", stopwatch.batch_ms);
    }

    #[test]
    fn a_batch_that_fails_is_not_counted() {
        let mut stopwatch = Stopwatch { warms_up: true, ..Stopwatch::on(&Device::default(), true) };
        stopwatch.time(8, || Err::<(), _>(Error::bug("out of memory"))).unwrap_err();
        assert_eq!((stopwatch.largest, stopwatch.batch_ms.len()), (0, 0));
    }
}

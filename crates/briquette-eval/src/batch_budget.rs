//! The batch size that fits in the available memory.

use briquette_core::memory::MemoryMeter;
use briquette_core::{Error, ErrorKind, Result, shown_path};
use briquette_models::batches::Batching;
use std::path::Path;

/// The batch size, and the memory that running a batch may take.
#[derive(Clone, Copy, Default)]
pub struct BatchBudget<'a> {
    /// The maximum number of items per batch, and the number of workers that prepare them.
    pub batching: Batching,
    /// Whether batches may be smaller. They have as many items as fit the limit, halved if the device runs out
    /// of memory.
    pub is_auto: bool,
    /// The limit of the meter's reading in bytes.
    ///
    /// Without one, if batches may be smaller, the limit leaves a quarter of the system's free memory free.
    pub limit: Option<u64>,
    /// The memory meter; without one there is no limit.
    pub meter: Option<&'a dyn MemoryMeter>,
    /// Whether to exclude one-time work of a device, such as compiling kernels, from batch times.
    ///
    /// On a device other than the CPU, a batch larger than any before it first runs untimed.
    pub warms_up: bool,
}

impl From<Batching> for BatchBudget<'_> {
    fn from(batching: Batching) -> Self {
        Self { batching, ..Self::default() }
    }
}

/// Determines how many items fit while they run.
///
/// The first batch has one item, whose memory the shapes of the graph predict: see [`Pace::run`].
/// Batches that may be smaller: the memory of the first predicts that of larger ones.
/// Batches of a fixed size within a limit: 1, 2, 4, … items up to that size, so that a batch beyond the limit is
/// refused before it runs. The memory of two batches predicts that of the next: `fixed + slope · items`, where `fixed` is 0
/// after the first batch.
pub(crate) struct Pace<'a> {
    budget: BatchBudget<'a>,
    limit: Option<u64>,
    most: usize,
    /// The items and bytes of the last two batches that took more memory than any before.
    taken: [Option<(usize, u64)>; 2],
    /// The largest batch size so far.
    pub(crate) largest: usize,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(budget: BatchBudget<'a>) -> Self {
        // The memory of a batch is the rise of the peak, so the meter must have a peak.
        let live = budget.meter.filter(|meter| meter.peak_bytes().is_some()).and_then(|meter| meter.live_bytes());
        // A quarter stays free for other processes and for memory that the meter does not see.
        let given = || Some(live? + budget.meter?.free_bytes()? / 4 * 3);
        let limit = budget.limit.or_else(|| if budget.is_auto { given() } else { None });
        let most = budget.batching.batch_size.max(1);
        Self { budget, limit: limit.filter(|_| live.is_some()), most, taken: [None; 2], largest: 0 }
    }

    /// Returns how images are loaded. With a limit they are read one by one between batches, so that none wait
    /// in memory.
    pub(crate) fn loading(&self) -> Batching {
        match self.limit {
            Some(_) => Batching { batch_size: 1, workers: 0 },
            None => self.budget.batching,
        }
    }

    /// Returns the size of the next batch.
    pub(crate) fn size(&self) -> usize {
        let (Some(limit), Some(live)) = (self.limit, self.live()) else { return self.most };
        if !self.budget.is_auto {
            return self.most.min(2 * self.largest).max(1);
        }
        let [_, Some((n, bytes))] = self.taken else { return 1 };
        let fit = limit.saturating_sub(live) / bytes.div_ceil(n as u64).max(1);
        usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, self.most)
    }

    /// Runs items in batches of the size that fits. If the device fails, `f` is called again with fewer items.
    ///
    /// `item_bytes` predicts the memory of an item, for the first batch.
    ///
    /// # Errors
    /// - The first error of `f`.
    /// - Refused: a batch exceeds the limit, the smallest one if batches may be smaller.
    pub(crate) fn run<T>(
        &mut self,
        item_bytes: impl Fn() -> u64,
        mut items: &[T],
        mut f: impl FnMut(&[T]) -> Result<()>,
    ) -> Result<()> {
        while !items.is_empty() {
            let n = self.size().min(items.len());
            self.check_before(n, &item_bytes)?;
            let (live, peak) = (self.live(), self.peak());
            match f(&items[..n]) {
                Ok(()) => {
                    self.learn(n, live, peak)?;
                    self.largest = self.largest.max(n);
                    items = &items[n..];
                }
                Err(error) if self.budget.is_auto && n > 1 && error.kind == ErrorKind::Io => self.most = n / 2,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Refuses to read an image if that would exceed the limit; `n_bytes` predicts the memory that it takes.
    ///
    /// # Errors
    /// - The error of `n_bytes`.
    /// - Refused: the image would exceed the limit.
    pub(crate) fn check_reading(&self, file: &Path, n_bytes: impl Fn() -> Result<u64>) -> Result<()> {
        self.check_more(&format!("reading {}", shown_path(file)), n_bytes, "a smaller image")
    }

    /// Refuses to encode a text if its tokens would exceed the limit; `n_bytes` predicts their memory.
    ///
    /// # Errors
    /// - The error of `n_bytes`.
    /// - Refused: the tokens would exceed the limit.
    pub(crate) fn check_tokens(&self, n_bytes: impl Fn() -> Result<u64>) -> Result<()> {
        self.check_more("encoding the text", n_bytes, "less text")
    }

    /// Refuses a run whose outputs would exceed the limit: `n_rows` of `width` so far, for `n_done` of `n_items` items.
    ///
    /// Rows are collected in a list, which grows to twice its length, and are copied once.
    ///
    /// # Errors
    /// Refused: the outputs would exceed the limit.
    pub(crate) fn check_outputs(&self, [n_rows, width]: [usize; 2], [n_done, n_items]: [usize; 2]) -> Result<()> {
        let n_left = n_items.saturating_sub(n_done) as f64 / n_done.max(1) as f64 * n_rows as f64;
        let n_bytes = n_left * (8 * width + 120) as f64 + (n_rows * (4 * width + 40)) as f64;
        self.check_more(&format!("keeping the outputs of {n_items} items"), || Ok(n_bytes as u64), "less data")
    }

    fn check_more(&self, what: &str, n_bytes: impl Fn() -> Result<u64>, smaller: &str) -> Result<()> {
        let (Some(limit), Some(live)) = (self.limit, self.live()) else { return Ok(()) };
        let peak = live + n_bytes()?;
        if peak <= limit {
            return Ok(());
        }
        let message =
            format!("{what} needs about {peak} bytes, expected at most {limit}; try {smaller} or a larger limit");
        Err(Error::refused(message).at("memory.limit"))
    }

    /// Refuses a batch of `n` items if its predicted peak is above the limit: the first by the bytes of an item, those of a
    /// fixed size by the batches before them.
    fn check_before(&self, n: usize, item_bytes: impl Fn() -> u64) -> Result<()> {
        let (Some(limit), Some(live)) = (self.limit, self.live()) else { return Ok(()) };
        let [earlier, Some((many, more))] = self.taken else {
            return self.check_peak(n, live + n as u64 * item_bytes(), limit);
        };
        let (few, less) = earlier.unwrap_or_default();
        if self.budget.is_auto || n <= many || many <= few {
            return Ok(());
        }
        let slope = more.saturating_sub(less) as f64 / (many - few) as f64;
        self.check_peak(n, live + more + (slope * (n - many) as f64) as u64, limit)
    }

    fn check_peak(&self, n: usize, peak: u64, limit: u64) -> Result<()> {
        if peak <= limit {
            return Ok(());
        }
        Err(self.refusal(n, format!("a batch of {n} needs about {peak} bytes to run"), limit))
    }

    /// Updates the prediction after a batch of `n`, from the live and peak bytes before the batch.
    fn learn(&mut self, n: usize, live: Option<u64>, before: Option<u64>) -> Result<()> {
        let (Some(live), Some(before), Some(peak)) = (live, before, self.peak()) else { return Ok(()) };
        let [_, last] = self.taken;
        // Without a rise, the peak is that of an earlier batch or, before the first, of loading. Batches that may be
        // smaller take that of loading as a bound.
        if peak <= before && (last.is_some() || !self.budget.is_auto) {
            return Ok(());
        }
        // Memory that stays in use, such as weights that are packed once, is not that of a batch.
        let live = if self.budget.is_auto { live } else { live.max(self.live().unwrap_or(0)) };
        self.taken = [last, Some((n, peak.saturating_sub(live)))];
        let Some(limit) = self.limit.filter(|limit| peak > before && peak > *limit) else { return Ok(()) };
        if self.budget.is_auto && n > 1 {
            self.most = n / 2;
            return Ok(());
        }
        Err(self.refusal(n, format!("a batch of {n} takes {peak} bytes to run"), limit))
    }

    fn refusal(&self, n: usize, what: String, limit: u64) -> Error {
        let is_least = self.budget.is_auto || n == 1;
        let how = if is_least { "smaller items or a larger limit" } else { "batch_size = \"auto\"" };
        Error::refused(format!("{what}, expected at most {limit}; try {how}")).at("memory.limit")
    }

    fn live(&self) -> Option<u64> {
        self.budget.meter?.live_bytes()
    }

    fn peak(&self) -> Option<u64> {
        self.budget.meter?.peak_bytes()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// 1000 bytes in use; a batch of `n` takes 100 n + 50 more.
    #[derive(Default)]
    struct Fake(AtomicU64);

    impl Fake {
        fn took(&self, n: usize) {
            self.0.fetch_max(1050 + 100 * n as u64, Relaxed);
        }
    }

    impl MemoryMeter for Fake {
        fn name(&self) -> &str {
            "made up"
        }

        fn live_bytes(&self) -> Option<u64> {
            Some(1000)
        }

        fn peak_bytes(&self) -> Option<u64> {
            Some(self.0.load(Relaxed).max(1000))
        }
    }

    fn sizes(is_auto: bool, limit: Option<u64>, n_items: usize, fails_from: usize) -> Result<Vec<usize>> {
        let meter = Fake::default();
        let batching = Batching { batch_size: 8, workers: 0 };
        let mut pace = Pace::new(BatchBudget { batching, is_auto, limit, meter: Some(&meter), warms_up: false });
        let mut sizes = Vec::new();
        pace.run(
            || 0,
            &vec![(); n_items],
            |items| {
                if items.len() >= fails_from {
                    return Err(Error { kind: ErrorKind::Io, ..Error::bug("out of memory") });
                }
                meter.took(items.len());
                sizes.push(items.len());
                Ok(())
            },
        )?;
        assert_eq!(pace.largest, sizes.iter().copied().max().unwrap_or(0));
        Ok(sizes)
    }

    #[test]
    fn batches_grow_to_the_limit_after_a_first_batch_of_one() {
        assert_eq!(sizes(true, Some(1500), 12, 99).unwrap(), [1, 3, 4, 4]);
        assert_eq!(sizes(true, Some(10_000), 20, 99).unwrap(), [1, 8, 8, 3]);
        assert_eq!(sizes(true, None, 12, 99).unwrap()[0], 1);
        assert_eq!(sizes(false, None, 20, 99).unwrap(), [8, 8, 4]);
        assert_eq!(sizes(true, Some(1500), 0, 99).unwrap(), [0; 0]);
    }

    #[test]
    fn batches_are_halved_when_a_device_runs_out_of_memory() {
        assert_eq!(sizes(true, Some(10_000), 10, 4).unwrap(), [1, 2, 2, 2, 2, 1]);
        assert_eq!(sizes(true, Some(10_000), 10, 1).unwrap_err().kind, ErrorKind::Io);
        assert_eq!(sizes(false, None, 10, 4).unwrap_err().kind, ErrorKind::Io);
    }

    #[test]
    fn a_batch_over_the_limit_is_refused_with_both_sizes() {
        let error = sizes(true, Some(1100), 4, 99).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused);
        assert!(error.to_string().contains("a batch of 1 takes 1150 bytes to run, expected at most 1100"), "{error}");
        let error = sizes(false, Some(1100), 4, 99).unwrap_err();
        assert!(
            error.to_string().contains("a batch of 1 takes 1150 bytes") && error.to_string().contains("smaller items")
        );
    }

    #[test]
    fn a_first_item_over_the_limit_is_refused_before_it_runs() {
        let meter = Fake::default();
        for is_auto in [false, true] {
            let (batching, limit) = (Batching { batch_size: 8, workers: 0 }, Some(1149));
            let mut pace = Pace::new(BatchBudget { batching, is_auto, limit, meter: Some(&meter), warms_up: false });
            let error = pace.run(|| 150, &[(); 4], |_| panic!("it ran")).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Refused);
            let error = error.to_string();
            assert!(error.contains("a batch of 1 needs about 1150 bytes to run, expected at most 1149"), "{error}");
            assert!(error.contains("smaller items"), "{error}");
        }
    }

    #[test]
    fn a_fixed_size_over_the_limit_is_refused_before_it_runs() {
        assert_eq!(sizes(false, Some(1500), 8, 99).unwrap(), [1, 2, 4, 1]);
        assert_eq!(sizes(false, Some(1850), 20, 99).unwrap(), [1, 2, 4, 8, 5]);
        // A batch of 8 would fail with another error.
        let error = sizes(false, Some(1849), 20, 8).unwrap_err().to_string();
        assert!(error.contains("a batch of 8 needs about 1850 bytes to run, expected at most 1849"), "{error}");
        assert!(error.contains("auto"), "{error}");
    }
}

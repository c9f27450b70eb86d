//! How many items are run at once, within the memory there is.

use briquette_core::memory::MemoryMeter;
use briquette_core::{Error, ErrorKind, Result};
use briquette_models::batches::Batching;

/// How data is batched, and what running a batch may take.
#[derive(Clone, Copy, Default)]
pub struct BatchBudget<'a> {
    /// Items of a batch, at most, and who prepares them.
    pub batching: Batching,
    /// Whether a batch may be smaller: as many items as fit the limit, and half as many where a device runs out of memory.
    pub is_auto: bool,
    /// The most bytes the meter may show. Where there is none and batches may be smaller: what the system has free, but for a quarter.
    pub limit: Option<u64>,
    /// What measures memory; without one there is no limit.
    pub meter: Option<&'a dyn MemoryMeter>,
    /// Whether what a device other than the CPU does only once, such as compiling kernels, is kept out of the time that
    /// batches take: a batch larger than any before it is then run untimed before.
    pub warms_up: bool,
}

impl From<Batching> for BatchBudget<'_> {
    fn from(batching: Batching) -> Self {
        Self { batching, ..Self::default() }
    }
}

/// Finds out how many items fit while they are run.
///
/// The first batch is one item; what it took predicts what more would. Every batch that takes more than any before it
/// corrects that.
pub(crate) struct Pace<'a> {
    budget: BatchBudget<'a>,
    limit: Option<u64>,
    most: usize,
    bytes_per_item: Option<u64>,
    /// The largest batch that ran.
    pub(crate) largest: usize,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(budget: BatchBudget<'a>) -> Self {
        // What a batch took is the rise of the peak: a meter without one cannot tell.
        let live = budget.meter.filter(|meter| meter.peak_bytes().is_some()).and_then(|meter| meter.live_bytes());
        // A quarter is left free, for other processes and for what the meter does not see.
        let given = || Some(live? + budget.meter?.free_bytes()? / 4 * 3);
        let limit = budget.limit.or_else(|| if budget.is_auto { given() } else { None });
        let most = budget.batching.batch_size.max(1);
        Self { budget, limit: limit.filter(|_| live.is_some()), most, bytes_per_item: None, largest: 0 }
    }

    /// How images are read ahead. Within a limit they are read one by one between batches, so that none waits in memory.
    pub(crate) fn loading(&self) -> Batching {
        match self.limit {
            Some(_) => Batching { batch_size: 1, workers: 0 },
            None => self.budget.batching,
        }
    }

    /// Items of the next batch.
    pub(crate) fn size(&self) -> usize {
        let (true, Some(limit), Some(live)) = (self.budget.is_auto, self.limit, self.live()) else { return self.most };
        let Some(bytes) = self.bytes_per_item else { return 1 };
        let fit = limit.saturating_sub(live) / bytes.max(1);
        usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, self.most)
    }

    /// Runs items in batches of the size that fits. `f` is called again with fewer where a device failed it.
    ///
    /// # Errors
    /// Those of `f`; Refused where even the smallest batch takes more than the limit.
    pub(crate) fn run<T>(&mut self, mut items: &[T], mut f: impl FnMut(&[T]) -> Result<()>) -> Result<()> {
        while !items.is_empty() {
            let n = self.size().min(items.len());
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

    /// What a batch of `n` showed, given what was in use before it and at most before it.
    fn learn(&mut self, n: usize, live: Option<u64>, before: Option<u64>) -> Result<()> {
        let (Some(live), Some(before), Some(peak)) = (live, before, self.peak()) else { return Ok(()) };
        if peak <= before && self.bytes_per_item.is_some() {
            return Ok(()); // The peak is that of an earlier batch, from which the bytes of an item are known already.
        }
        self.bytes_per_item = Some(peak.saturating_sub(live).div_ceil(n as u64));
        let Some(limit) = self.limit.filter(|limit| peak > before && peak > *limit) else { return Ok(()) };
        if self.budget.is_auto && n > 1 {
            self.most = n / 2;
            return Ok(());
        }
        let how = if self.budget.is_auto { "smaller items or a larger limit" } else { "batch_size = \"auto\"" };
        let message = format!("a batch of {n} takes {peak} bytes to run, expected at most {limit}; try {how}");
        Err(Error::refused(message).at("memory.limit"))
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

    /// 1000 bytes in use; a batch of `n` takes 100 n and 50 more.
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
        pace.run(&vec![(); n_items], |items| {
            if items.len() >= fails_from {
                return Err(Error { kind: ErrorKind::Io, ..Error::bug("out of memory") });
            }
            meter.took(items.len());
            sizes.push(items.len());
            Ok(())
        })?;
        assert_eq!(pace.largest, sizes.iter().copied().max().unwrap_or(0));
        Ok(sizes)
    }

    #[test]
    fn a_batch_is_as_large_as_the_limit_allows_after_a_probe_of_one() {
        assert_eq!(sizes(true, Some(1500), 12, 99).unwrap(), [1, 3, 4, 4]);
        assert_eq!(sizes(true, Some(10_000), 20, 99).unwrap(), [1, 8, 8, 3]);
        assert_eq!(sizes(true, None, 12, 99).unwrap()[0], 1);
        assert_eq!(sizes(false, None, 20, 99).unwrap(), [8, 8, 4]);
        assert_eq!(sizes(true, Some(1500), 0, 99).unwrap(), [0; 0]);
    }

    #[test]
    fn a_device_out_of_memory_is_asked_for_half() {
        assert_eq!(sizes(true, Some(10_000), 10, 4).unwrap(), [1, 2, 2, 2, 2, 1]);
        assert_eq!(sizes(true, Some(10_000), 10, 1).unwrap_err().kind, ErrorKind::Io);
        assert_eq!(sizes(false, None, 10, 4).unwrap_err().kind, ErrorKind::Io);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_figures() {
        let error = sizes(true, Some(1100), 4, 99).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused);
        assert!(error.to_string().contains("a batch of 1 takes 1150 bytes to run, expected at most 1100"), "{error}");
        let error = sizes(false, Some(1500), 8, 99).unwrap_err();
        assert!(error.to_string().contains("a batch of 8 takes 1850 bytes") && error.to_string().contains("auto"));
    }
}

//! Counts of pruned elements, of which there may be millions.

use super::scan::Dropped;

/// The counts of each tensor's pieces; empty for tensors that are not counted.
#[derive(Debug, Default)]
pub(super) struct PieceCounts {
    /// The range of `counts` of each tensor, up to the last counted one.
    ranges: Vec<(u32, u32)>,
    counts: Vec<Dropped>,
}

impl PieceCounts {
    /// Returns the counts of a tensor's pieces.
    pub(super) fn of(&self, tensor: usize) -> &[Dropped] {
        let (start, end) = self.ranges.get(tensor).copied().unwrap_or_default();
        &self.counts[start as usize..end as usize]
    }

    /// Sets the counts of a tensor's pieces.
    pub(super) fn put(&mut self, tensor: usize, counts: impl Iterator<Item = Dropped>) {
        let start = self.counts.len() as u32;
        self.counts.extend(counts);
        if self.ranges.len() <= tensor {
            self.ranges.resize(tensor + 1, (0, 0));
        }
        self.ranges[tensor] = (start, self.counts.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_tensor() {
        let mut counts = PieceCounts::default();
        counts.put(3, [(1, 2), (3, 4)].into_iter());
        counts.put(1, [(5, 6)].into_iter());
        let of: Vec<&[Dropped]> = (0..5).map(|tensor| counts.of(tensor)).collect();
        assert_eq!(of, [&[][..], &[(5, 6)], &[], &[(1, 2), (3, 4)], &[]]);
    }
}

//! The k-th smallest of any number of scores, exactly, in two counting passes and fixed memory.
//!
//! A score's key is the 31 bits of its magnitude. The first pass counts the upper 16 bits and finds the bucket
//! of the k-th score. The second pass counts the lower 15 bits within that bucket. Histograms of different
//! threads can be added, and a histogram may cover any number of tensors. No scores are sorted or stored.

use super::{Bracket, Threshold};

const LOW_BITS: u32 = 15;
const N_COARSE: usize = 1 << 16;
const MAGNITUDE: u32 = 0x7fff_ffff;
/// Interleaved counters: neighbouring weights often share a bucket, and reading a counter right after a write
/// is slow.
const LANES: usize = 4;

/// Counts of scores by key: first coarse, then within one bucket.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u32>,
    bucket: Option<u32>,
    /// The complete counts, updated before a `u32` counter could overflow.
    total: Vec<u64>,
    n_pending: usize,
}

impl Histogram {
    /// Creates the histogram of the first pass.
    pub fn coarse() -> Self {
        Self { counts: vec![0; N_COARSE * LANES], bucket: None, total: vec![0; N_COARSE], n_pending: 0 }
    }

    /// Clears all counts; `bucket` is the bucket of a second pass.
    pub(super) fn reset(&mut self, bucket: Option<u32>) {
        self.counts.fill(0);
        self.total.fill(0);
        (self.bucket, self.n_pending) = (bucket, 0);
    }

    /// Counts scores by their magnitude.
    pub fn count(&mut self, scores: &[f32]) {
        for scores in scores.chunks(1 << 30) {
            if self.n_pending + scores.len() > u32::MAX as usize {
                self.carry();
            }
            self.n_pending += scores.len();
            match self.bucket {
                None => self.count_coarse(scores),
                Some(bucket) => self.count_fine(scores, bucket),
            }
        }
    }

    fn count_coarse(&mut self, scores: &[f32]) {
        let (whole, rest) = scores.as_chunks::<LANES>();
        for scores in whole {
            for (lane, score) in scores.iter().enumerate() {
                let bucket = (score.to_bits() & MAGNITUDE) >> LOW_BITS;
                self.counts[bucket as usize * LANES + lane] += 1;
            }
        }
        for score in rest {
            self.counts[((score.to_bits() & MAGNITUDE) >> LOW_BITS) as usize * LANES] += 1;
        }
    }

    fn count_fine(&mut self, scores: &[f32], bucket: u32) {
        // Few scores are in the bucket. One vector comparison of sixteen scores skips most of them.
        for scores in scores.chunks(16) {
            let in_bucket = |score: &f32| (score.to_bits() & MAGNITUDE) >> LOW_BITS == bucket;
            if scores.iter().fold(false, |any, score| any | in_bucket(score)) {
                for score in scores.iter().filter(|score| in_bucket(score)) {
                    self.counts[(score.to_bits() & ((1 << LOW_BITS) - 1)) as usize * LANES] += 1;
                }
            }
        }
    }

    fn carry(&mut self) {
        for (total, counts) in self.total.iter_mut().zip(self.counts.chunks_mut(LANES)) {
            *total += counts.iter().map(|&count| u64::from(count)).sum::<u64>();
            counts.fill(0);
        }
        self.n_pending = 0;
    }

    /// Adds the counts of another histogram of the same pass.
    ///
    /// # Panics
    /// If the histograms are not of the same pass.
    pub fn merge(mut self, mut other: Self) -> Self {
        assert_eq!(self.bucket, other.bucket, "histograms of one pass");
        self.carry();
        other.carry();
        for (total, other) in self.total.iter_mut().zip(other.total) {
            *total += other;
        }
        self
    }

    /// Returns the bucket with the k-th smallest score (k from 1), and the number of scores in lower buckets.
    fn find(&mut self, k: u64) -> Option<(u32, u64)> {
        self.carry();
        let mut below = 0;
        for (bucket, &count) in self.total.iter().enumerate() {
            if below + count >= k {
                return Some((bucket as u32, below));
            }
            below += count;
        }
        None
    }

    /// Returns the bracket of the k-th score after the first pass, and its number of scores.
    ///
    /// `None` if there are fewer than k scores, or k is 0.
    pub fn bracket(&mut self, k: usize) -> Option<(Bracket, usize)> {
        let (bucket, _) = self.find(k as u64).filter(|_| k > 0)?;
        let bracket = Bracket { low: bucket << LOW_BITS, high: ((bucket + 1) << LOW_BITS) - 1 };
        Some((bracket, self.total[bucket as usize] as usize))
    }

    /// Starts the second pass, and returns how many of the k smallest scores are in its bucket.
    ///
    /// `None` if there are fewer than k scores, or k is 0.
    pub fn refine(&mut self, k: usize) -> Option<usize> {
        if k == 0 {
            return None;
        }
        let (bucket, below) = self.find(k as u64)?;
        self.reset(Some(bucket));
        Some(k - below as usize)
    }

    /// Returns the threshold after the first pass, for scores whose lower 15 bits are zero (bfloat16).
    pub fn coarse_threshold(&mut self, k: usize) -> Option<Threshold> {
        let (bucket, below) = self.find(k as u64).filter(|_| k > 0)?;
        Some(Threshold { key: bucket << LOW_BITS, n_ties: k - below as usize })
    }

    /// Returns the threshold after the second pass. `k_in_bucket` is the number of the k smallest scores in
    /// this bucket.
    ///
    /// # Panics
    /// If this is the first pass, or the two passes counted different scores.
    pub fn threshold(&mut self, k_in_bucket: usize) -> Threshold {
        let bucket = self.bucket.expect("the second pass");
        let (low, below) = self.find(k_in_bucket as u64).expect("both passes count the same scores");
        Threshold { key: bucket << LOW_BITS | low, n_ties: k_in_bucket - below as usize }
    }
}

//! The k-th smallest of any number of scores, exactly, in two counted passes and fixed memory.
//!
//! A score's key is the 31 bits of its magnitude. The first pass counts the upper 16 of them and finds the bucket that
//! the k-th lies in; the second counts the lower 15 within that bucket. Histograms of different threads add up, and a
//! pool may span any number of tensors: nothing is ever sorted or kept.

use super::{Bracket, Threshold};

const LOW_BITS: u32 = 15;
const N_COARSE: usize = 1 << 16;
const MAGNITUDE: u32 = 0x7fff_ffff;
/// Interleaved counters: neighbouring weights often fall into one bucket, and a counter just written is slow to read.
const LANES: usize = 4;

/// Counts of scores by key: coarse at first, then within one bucket.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u32>,
    bucket: Option<u32>,
    /// Whole counts, carried over before a `u32` could overflow.
    total: Vec<u64>,
    n_pending: usize,
}

impl Histogram {
    /// The first pass.
    pub fn coarse() -> Self {
        Self { counts: vec![0; N_COARSE * LANES], bucket: None, total: vec![0; N_COARSE], n_pending: 0 }
    }

    /// Forgets every count; `bucket` is that of a second pass.
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
        // Few scores lie in the bucket. Whether any of sixteen does is one vector comparison, which skips most of them.
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
    /// If the two are not of the same pass.
    pub fn merge(mut self, mut other: Self) -> Self {
        assert_eq!(self.bucket, other.bucket, "histograms of one pass");
        self.carry();
        other.carry();
        for (total, other) in self.total.iter_mut().zip(other.total) {
            *total += other;
        }
        self
    }

    /// The bucket that holds the k-th smallest (k from 1), and how many lie in buckets below it.
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

    /// After the first pass: the keys of the bucket that the k-th lies in, and how many scores it has.
    ///
    /// `None` as for [`refine`](Self::refine).
    pub fn bracket(&mut self, k: usize) -> Option<(Bracket, usize)> {
        let (bucket, _) = self.find(k as u64).filter(|_| k > 0)?;
        let bracket = Bracket { low: bucket << LOW_BITS, high: ((bucket + 1) << LOW_BITS) - 1 };
        Some((bracket, self.total[bucket as usize] as usize))
    }

    /// After the first pass: becomes the second, empty, and says how many of the k lie in its bucket.
    ///
    /// `None` where there are fewer than k scores, or k is 0: then there is no border to find.
    pub fn refine(&mut self, k: usize) -> Option<usize> {
        if k == 0 {
            return None;
        }
        let (bucket, below) = self.find(k as u64)?;
        self.reset(Some(bucket));
        Some(k - below as usize)
    }

    /// After the first pass, for scores whose lower 15 bits are all zero (bfloat16): the threshold without a second.
    pub fn coarse_threshold(&mut self, k: usize) -> Option<Threshold> {
        let (bucket, below) = self.find(k as u64).filter(|_| k > 0)?;
        Some(Threshold { key: bucket << LOW_BITS, n_ties: k - below as usize })
    }

    /// After the second pass: the threshold, given how many of the k lie in this bucket.
    ///
    /// # Panics
    /// If this is the first pass, or the scores were not those of the first.
    pub fn threshold(&mut self, k_in_bucket: usize) -> Threshold {
        let bucket = self.bucket.expect("the second pass");
        let (low, below) = self.find(k_in_bucket as u64).expect("the scores of the first pass");
        Threshold { key: bucket << LOW_BITS | low, n_ties: k_in_bucket - below as usize }
    }
}

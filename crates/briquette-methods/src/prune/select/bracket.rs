//! The k-th smallest of many scores in one pass. A sample gives a bracket of keys that contains it.

use super::{Scores, Threshold};

/// The slack of a bracket, in standard deviations of the sampled rank.
const N_SIGMA: f64 = 5.0;
/// The largest number of distinct keys in a bracket for which they are counted in bins instead of collected.
const MAX_BINS: u32 = 1 << 10;
/// The number of bins in which the keys of all tallies are counted to find the threshold's bin.
const N_COARSE: u32 = 1 << 16;

/// A range of keys that contains the threshold, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bracket {
    /// The smallest key.
    pub low: u32,
    /// The largest key.
    pub high: u32,
}

impl Bracket {
    /// The bracket of all scores.
    pub const ALL: Self = Self { low: 0, high: u32::MAX >> 1 };

    /// Returns a bracket that almost certainly contains the `share` quantile, from runs of neighbouring scores.
    ///
    /// `sample` consists of runs of `n_run` neighbours from all over the tensors. Neighbours are similar, so
    /// the runs differ by more than chance; the spread between runs sets the width of the bracket.
    ///
    /// `None` for an empty sample.
    pub fn of_runs(sample: &[u32], n_run: usize, share: f64) -> Option<Self> {
        let mut keys = sample.to_vec();
        let n = keys.len() as f64;
        if keys.is_empty() {
            return None;
        }
        let pivot = *keys.select_nth_unstable(((share * n) as usize).min(sample.len() - 1)).1;
        let runs = sample.chunks(n_run);
        let squares: f64 = runs
            .map(|run| {
                let below = run.iter().filter(|&&key| key < pivot).count() as f64;
                (below - share * run.len() as f64).powi(2)
            })
            .sum();
        Self::around(&mut keys, share, squares.sqrt().max((n * share * (1.0 - share)).sqrt()))
    }

    /// Returns a bracket that almost certainly contains the `share` quantile, from keys sampled at scattered
    /// indices.
    ///
    /// Reorders the sample. `None` for an empty sample.
    pub fn of_scattered(sample: &mut [u32], share: f64) -> Option<Self> {
        let deviation = (sample.len() as f64 * share * (1.0 - share)).sqrt();
        Self::around(sample, share, deviation)
    }

    /// Returns a bracket that almost certainly contains the `share` quantile, given the standard deviation of
    /// its rank.
    fn around(sample: &mut [u32], share: f64, deviation: f64) -> Option<Self> {
        let n = sample.len() as f64;
        let slack = N_SIGMA * deviation + 2.0;
        let (low, high) = (share * n - slack, share * n + slack);
        let low_key = if low <= 0.0 { 0 } else { *sample.select_nth_unstable(low as usize).1 };
        let high_key = if high >= n - 1.0 { Self::ALL.high } else { *sample.select_nth_unstable(high as usize).1 };
        (!sample.is_empty()).then_some(Self { low: low_key, high: high_key })
    }

    /// Returns whether the bracket contains a key.
    pub fn contains(self, key: u32) -> bool {
        (self.low..=self.high).contains(&key)
    }
}

/// The number of scores below a bracket, and the scores within it.
#[derive(Debug, Clone)]
pub struct Tally {
    bracket: Bracket,
    below: usize,
    /// The keys within the bracket. If `bins` count them, they are stored here only temporarily.
    keys: Vec<u32>,
    /// The count of each key of `bracket` whose lower `n_zero_bits` are 0.
    bins: Vec<u64>,
    n_zero_bits: u32,
}

impl Tally {
    /// Creates a tally for scores whose keys end in at least `n_zero_bits` zeros. The number is 16 for bfloat16 and 13 for f16.
    pub fn new(bracket: Bracket, n_zero_bits: u32) -> Self {
        let n_bins = (bracket.high >> n_zero_bits) - (bracket.low >> n_zero_bits) + 1;
        let bins = if n_zero_bits > 0 && n_bins <= MAX_BINS { vec![0; n_bins as usize] } else { Vec::new() };
        Self { bracket, below: 0, keys: Vec::new(), bins, n_zero_bits }
    }

    /// Returns whether the size is independent of the number of scores.
    pub fn is_bounded(&self) -> bool {
        !self.bins.is_empty()
    }

    /// Returns the size in bytes.
    pub fn n_bytes(&self) -> usize {
        size_of_val(self.keys.as_slice()) + size_of_val(self.bins.as_slice())
    }

    /// Counts scores by their magnitude.
    pub fn count(&mut self, scores: &[f32]) {
        self.below += Scores::F32(scores).collect_between(self.bracket.low, self.bracket.high, &mut self.keys);
        if self.is_bounded() {
            let first = self.bracket.low >> self.n_zero_bits;
            self.keys.drain(..).for_each(|key| self.bins[((key >> self.n_zero_bits) - first) as usize] += 1);
        }
    }

    /// Frees unused capacity.
    #[must_use]
    pub fn shrunk(mut self) -> Self {
        self.keys.shrink_to_fit();
        self
    }

    /// Adds the counts of another tally.
    ///
    /// # Panics
    /// If the two tallies have different brackets.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        assert_eq!((self.bracket, self.n_zero_bits), (other.bracket, other.n_zero_bits), "tallies of one bracket");
        self.below += other.below;
        self.keys.extend(other.keys);
        self.bins.iter_mut().zip(other.bins).for_each(|(n, other)| *n += other);
        self
    }

    /// Returns the number of scores below the bracket.
    pub fn n_below(&self) -> usize {
        self.below
    }

    /// Returns how many scores are below and how many are equal to a key of the bracket.
    pub fn split(&self, key: u32) -> (usize, usize) {
        let (mut below, mut equal) = (self.below, 0);
        self.for_each(|other, n| match other.cmp(&key) {
            std::cmp::Ordering::Less => below += n as usize,
            std::cmp::Ordering::Equal => equal += n as usize,
            std::cmp::Ordering::Greater => {}
        });
        (below, equal)
    }

    /// Returns the threshold that drops the `n_drop` smallest scores of several tallies of the same bracket.
    ///
    /// `None` if the threshold is not in the bracket.
    pub fn threshold(tallies: &[Self], n_drop: usize) -> Option<Threshold> {
        let bracket = tallies.first()?.bracket;
        let below: usize = tallies.iter().map(|tally| tally.below).sum();
        let mut k = n_drop.checked_sub(below).filter(|&k| k > 0)? as u64;
        // Coarse bins locate the bin of the threshold, so that only its keys are sorted. Few keys need few
        // bins.
        let n_held: usize = tallies.iter().map(|tally| tally.keys.len() + tally.bins.len()).sum();
        let n_bins = u32::try_from(n_held).map_or(N_COARSE, |n| n.clamp(1, N_COARSE));
        let shift = 32 - ((bracket.high - bracket.low) / n_bins).leading_zeros();
        let mut coarse = vec![0_u64; n_bins as usize];
        let bin = |key: u32| ((key - bracket.low) >> shift) as usize;
        tallies.iter().for_each(|tally| tally.for_each(|key, n| coarse[bin(key)] += n));
        let place = first_with(&mut k, coarse.iter().copied())?;
        let mut keys = Vec::new();
        tallies.iter().for_each(|tally| {
            tally.for_each(|key, n| {
                if bin(key) == place {
                    keys.push((key, n));
                }
            })
        });
        keys.sort_unstable();
        let mut of_key = keys.chunk_by(|(a, _), (b, _)| a == b);
        let place = first_with(&mut k, of_key.clone().map(|equal| equal.iter().map(|(_, n)| n).sum()))?;
        let key = of_key.nth(place)?.first()?.0;
        Some(Threshold { key, n_ties: k as usize })
    }

    /// Calls `each` with the keys of the bracket and their counts. A key may be passed more than once.
    fn for_each(&self, mut each: impl FnMut(u32, u64)) {
        self.keys.iter().for_each(|&key| each(key, 1));
        let first = self.bracket.low >> self.n_zero_bits;
        for (key, &n) in (first..).zip(&self.bins).filter(|(_, n)| **n > 0) {
            each(key << self.n_zero_bits, n);
        }
    }
}

/// Returns the index of the first count at which the sum reaches `k`, and subtracts the counts before it from
/// `k`.
fn first_with(k: &mut u64, mut counts: impl Iterator<Item = u64>) -> Option<usize> {
    counts.position(|n| {
        let is_here = n >= *k;
        *k -= if is_here { 0 } else { n };
        is_here
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::{score, select};

    fn scores_of(n: usize, n_zero_bits: u32) -> Vec<f32> {
        let mut scores = vec![0.0; n];
        score::random(11, 0, &mut scores);
        scores.iter().map(|score| f32::from_bits(score.to_bits() >> n_zero_bits << n_zero_bits)).collect()
    }

    #[test]
    fn merged_tallies_have_the_threshold_and_counts_of_the_whole() {
        for n_zero_bits in [0, 13, 16] {
            let scores = scores_of(100_000, n_zero_bits);
            let keys: Vec<u32> = scores.iter().map(|score| score.to_bits()).collect();
            for n_drop in [10, 1000, 40_000, 99_999] {
                let bracket = Bracket::of_runs(&keys[..16_384], 64, n_drop as f64 / 100_000.0).unwrap();
                let tally = |scores: &[f32]| {
                    let mut tally = Tally::new(bracket, n_zero_bits);
                    scores.chunks(999).for_each(|scores| tally.count(scores));
                    tally.shrunk()
                };
                let tallies: Vec<Tally> = scores.chunks(7000).map(tally).collect();
                let threshold = select::threshold_of(&scores, n_drop);
                assert_eq!(Tally::threshold(&tallies, n_drop), Some(threshold), "{n_zero_bits}, {n_drop}");
                let merged = tallies.iter().cloned().reduce(Tally::merge).unwrap();
                assert_eq!(merged.n_below(), keys.iter().filter(|&&key| key < bracket.low).count());
                assert_eq!(Tally::threshold(&[merged], n_drop), Some(threshold), "{n_zero_bits}, {n_drop}, merged");
                for (tally, keys) in tallies.iter().zip(keys.chunks(7000)) {
                    let below = keys.iter().filter(|&&key| key < threshold.key).count();
                    let equal = keys.iter().filter(|&&key| key == threshold.key).count();
                    assert_eq!(tally.split(threshold.key), (below, equal), "{n_zero_bits}, {n_drop}");
                }
            }
        }
    }

    #[test]
    fn few_distant_keys_have_a_threshold() {
        let scores = [0.0, 1e-30, 3.0, 3.0, 1e30];
        let mut tally = Tally::new(Bracket { low: 1, high: u32::MAX >> 1 }, 0);
        tally.count(&scores);
        for n_drop in 2..=5 {
            assert_eq!(
                Tally::threshold(&[tally.clone()], n_drop),
                Some(select::threshold_of(&scores, n_drop)),
                "{n_drop}"
            );
        }
        assert_eq!(Tally::threshold(&[tally], 1), None, "below the bracket");
    }

    #[test]
    fn a_bracket_that_missed_has_no_threshold() {
        let scores = scores_of(1000, 0);
        for (low, high) in [(0.0_f32, 0.3_f32), (0.7, 1.0)] {
            let mut tally = Tally::new(Bracket { low: low.to_bits(), high: high.to_bits() }, 0);
            tally.count(&scores);
            assert_eq!(Tally::threshold(&[tally], 500), None);
        }
        assert_eq!(Tally::threshold(&[], 1), None);
        assert_eq!(Bracket::of_runs(&[], 64, 0.5), None);
    }

    #[test]
    fn runs_that_differ_widen_the_bracket() {
        let mut scores = scores_of(65_536, 0);
        let keys = |scores: &[f32]| scores.iter().map(|score| score.to_bits()).collect::<Vec<u32>>();
        let alike = Bracket::of_runs(&keys(&scores), 64, 0.4).unwrap();
        scores.chunks_mut(64).step_by(2).for_each(|run| run.iter_mut().for_each(|score| *score *= 4.0));
        let unlike = Bracket::of_runs(&keys(&scores), 64, 0.4).unwrap();
        let n_in = |bracket: Bracket| keys(&scores).iter().filter(|&&key| bracket.contains(key)).count();
        let width = |bracket: Bracket| bracket.high - bracket.low;
        assert!(width(unlike) > width(alike) && n_in(unlike) < scores.len() / 4, "{alike:?} {unlike:?}");
    }
}

//! Thresholds of tensors that are in memory, with buffers that are reused between tensors.

use super::{Bracket, Histogram, Scores, Threshold};

/// The number of scores in the sample that brackets the threshold.
const N_SAMPLE: usize = 1 << 15;
/// With fewer scores than this, sampling does not pay.
const MIN_SAMPLED: usize = 8 * N_SAMPLE;

/// Finds the thresholds of tensors, one after the other.
#[derive(Debug, Default)]
pub struct Selector {
    histogram: Option<Histogram>,
    sample: Vec<u32>,
    between: Vec<u32>,
    widened: Vec<f32>,
}

impl Selector {
    /// Returns the threshold that drops exactly the `n_drop` smallest of `n` scores. Ties drop the lower index.
    ///
    /// `scan` is called up to four times and must pass every score to its argument each time. With few scores,
    /// all of them are collected. With more, a sample brackets the threshold, and only the scores inside the
    /// bracket are collected. If the bracket misses the threshold, two histogram passes find it. The result is
    /// exact in every case.
    ///
    /// # Errors
    /// The first error of `scan`.
    pub fn threshold<E>(
        &mut self,
        n: usize,
        n_drop: usize,
        mut scan: impl FnMut(&mut dyn FnMut(Scores)) -> Result<(), E>,
    ) -> Result<Threshold, E> {
        if n_drop == 0 {
            return Ok(Threshold::default());
        }
        if n < MIN_SAMPLED {
            return self.among_all(n_drop, &mut scan);
        }
        if let Some(threshold) = self.by_sample(n, n_drop, &mut scan)? {
            return Ok(threshold);
        }
        let Self { histogram, widened, .. } = self;
        let histogram = histogram.get_or_insert_with(Histogram::coarse);
        histogram.reset(None);
        scan(&mut |scores| histogram.count(scores.widen(widened)))?;
        let Some(n_in_bucket) = histogram.refine(n_drop) else { return Ok(Threshold::default()) };
        scan(&mut |scores| histogram.count(scores.widen(widened)))?;
        Ok(histogram.threshold(n_in_bucket))
    }

    /// Collects all scores. Clearing the histograms takes as long for a hundred scores as for millions.
    fn among_all<E>(
        &mut self,
        n_drop: usize,
        scan: &mut impl FnMut(&mut dyn FnMut(Scores)) -> Result<(), E>,
    ) -> Result<Threshold, E> {
        let keys = &mut self.between;
        keys.clear();
        scan(&mut |scores| scores.sample(1, keys))?;
        if n_drop > keys.len() {
            return Ok(Threshold::default());
        }
        Ok(border_of(keys, n_drop))
    }

    fn by_sample<E>(
        &mut self,
        n: usize,
        n_drop: usize,
        scan: &mut impl FnMut(&mut dyn FnMut(Scores)) -> Result<(), E>,
    ) -> Result<Option<Threshold>, E> {
        let Self { sample, between, .. } = self;
        sample.clear();
        // The step is odd because row widths are mostly even: a step that divides the width would sample the
        // same few columns of every row.
        let step = (n / N_SAMPLE) | 1;
        scan(&mut |scores| scores.sample(step, sample))?;
        let Some(Bracket { low, high }) = Bracket::of_scattered(sample, n_drop as f64 / n as f64) else {
            return Ok(None);
        };
        between.clear();
        let mut below = 0;
        scan(&mut |scores| below += scores.collect_between(low, high, between))?;
        if n_drop <= below || n_drop > below + between.len() {
            return Ok(None);
        }
        Ok(Some(border_of(between, n_drop - below)))
    }
}

/// Returns the threshold that drops the `n_drop` smallest of some keys.
fn border_of(keys: &mut [u32], n_drop: usize) -> Threshold {
    let (smaller, &mut key, _) = keys.select_nth_unstable(n_drop - 1);
    let n_smaller = smaller.iter().filter(|&&other| other < key).count();
    Threshold { key, n_ties: n_drop - n_smaller }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::score;
    use std::convert::Infallible;

    fn both_ways(scores: &[f32], n_drop: usize) -> (Option<Threshold>, Threshold) {
        let mut selector = Selector::default();
        let mut scan = |each: &mut dyn FnMut(Scores)| -> Result<(), Infallible> {
            scores.chunks(1000).map(Scores::F32).for_each(each);
            Ok(())
        };
        let guessed = selector.by_sample(scores.len(), n_drop, &mut scan).unwrap();
        let mut histogram = Histogram::coarse();
        histogram.count(scores);
        let k = histogram.refine(n_drop).unwrap();
        histogram.count(scores);
        (guessed, histogram.threshold(k))
    }

    #[test]
    fn a_sampled_threshold_is_exact() {
        let mut scores = vec![0.0; 300_001];
        score::random(3, 0, &mut scores);
        for (round, scores) in
            [scores.clone(), scores.iter().map(|score| (score * 50.0).floor()).collect()].iter().enumerate()
        {
            for n_drop in [1, 2, 1000, 120_000, 150_001, 299_999, 300_001] {
                let (guessed, exact) = both_ways(scores, n_drop);
                assert!(
                    guessed.is_none_or(|guessed| guessed == exact),
                    "round {round}, {n_drop}: {guessed:?} {exact:?}"
                );
                assert!(guessed.is_some() || n_drop < 1000, "round {round}, {n_drop}");
            }
        }
    }

    #[test]
    fn bfloat16_scores_have_the_threshold_of_f32_scores() {
        let mut scores = vec![0.0; 300_001];
        score::random(5, 0, &mut scores);
        let halves: Vec<u16> = scores.iter().map(|score| (score.to_bits() >> 16) as u16 | 0x8000).collect();
        let widened: Vec<f32> = halves.iter().map(|half| f32::from_bits(u32::from(*half) << 16)).collect();
        for n_drop in [1, 1000, 120_000, 299_999] {
            for n in [1000.max(n_drop), 300_001] {
                let of = |scores: Scores| {
                    Selector::default().threshold(n, n_drop, |each| -> Result<(), Infallible> {
                        each(scores);
                        Ok(())
                    })
                };
                assert_eq!(of(Scores::BF16(&halves[..n])), of(Scores::F32(&widened[..n])), "{n_drop} of {n}");
            }
        }
    }

    #[test]
    fn few_scores_have_the_threshold_of_a_histogram() {
        let mut scores = vec![0.0; 5000];
        score::random(9, 0, &mut scores);
        let ties: Vec<f32> = scores.iter().map(|score| -(score * 20.0).floor()).collect();
        for scores in [&scores, &ties] {
            for n in [1, 2, 64, 5000] {
                for n_drop in [1, n / 3, n / 2, n, n + 1] {
                    let found = Selector::default().threshold(n, n_drop, |each| -> Result<(), Infallible> {
                        scores[..n].chunks(100).map(Scores::F32).for_each(each);
                        Ok(())
                    });
                    let mut histogram = Histogram::coarse();
                    histogram.count(&scores[..n]);
                    let exact = match histogram.refine(n_drop) {
                        Some(k) => {
                            histogram.count(&scores[..n]);
                            histogram.threshold(k)
                        }
                        None => Threshold::default(),
                    };
                    assert_eq!(found, Ok(exact), "{n_drop} of {n}");
                }
            }
        }
    }

    #[test]
    fn many_small_tensors_are_fast() {
        let mut scores = vec![0.0; 64];
        score::random(9, 0, &mut scores);
        let (mut selector, since) = (Selector::default(), std::time::Instant::now());
        for _ in 0..100_000 {
            let found = selector.threshold(64, 32, |each| -> Result<(), Infallible> {
                each(Scores::F32(&scores));
                Ok(())
            });
            assert!(found.is_ok_and(|found| found.key > 0));
        }
        assert!(since.elapsed().as_secs() < 20, "{:?}", since.elapsed());
    }

    #[test]
    fn a_misleading_sample_is_detected() {
        // Every sampled score is large, all others are small.
        let step = (300_000 / N_SAMPLE) | 1;
        let scores: Vec<f32> =
            (0..300_000).map(|i| if i % 1000 % step == 0 { 2.0 + i as f32 } else { 1.0 / (1.0 + i as f32) }).collect();
        let (guessed, _) = both_ways(&scores, 150_000);
        assert_eq!(guessed, None);
        let mut scan = |each: &mut dyn FnMut(Scores)| -> Result<(), Infallible> {
            scores.chunks(1000).map(Scores::F32).for_each(each);
            Ok(())
        };
        let threshold = Selector::default().threshold(scores.len(), 150_000, &mut scan).unwrap();
        let below = scores.iter().filter(|score| score.to_bits() < threshold.key).count();
        assert_eq!(below + threshold.n_ties, 150_000);
    }
}

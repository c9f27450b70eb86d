//! Finds the threshold over several parameters, on all threads.

use crate::scores::{each_magnitude, key};
use briquette_core::{Error, Result, simd};
use briquette_methods::prune::select::{Bracket, PoolThreshold, ScorePool, Tally, threshold_of_pool};
use briquette_methods::prune::{Histogram, Threshold};
use rayon::prelude::*;

/// Number of scores that a thread counts per task.
const PART: usize = 1 << 15;
/// Number of sampled scores for guessing the threshold.
const N_SAMPLE: usize = 1 << 15;
/// With fewer scores than this, no sample is taken.
const MIN_SAMPLED: usize = 8 * N_SAMPLE;

/// The scores of a parameter, in any order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scored<'a> {
    /// Weights scored by magnitude, and one byte per weight, 1 for dropped weights.
    Weights(&'a [f32], &'a [u8]),
    /// One score per weight, at least 0.
    Scores(&'a [f32]),
}

/// A function that reads the scores of a parameter.
pub(crate) type Look<'a> = dyn FnMut(Scored) -> Result<()> + 'a;

/// Parameters that share one threshold on their scores.
pub(crate) struct ParameterPool<'a, T, Show> {
    pub(crate) members: &'a [T],
    /// Number of scores of all members.
    pub(crate) n: usize,
    /// Passes the scores of a member to a function; called at most four times per member.
    pub(crate) show: Show,
}

impl<T, Show: FnMut(&T, &mut Look) -> Result<()>> ParameterPool<'_, T, Show> {
    /// Returns each member's threshold, which together drop exactly the `n_drop` smallest scores.
    ///
    /// Ties are dropped from the earlier member first, and within a member from the lower index. Each threshold
    /// has the number of ties to drop, so members can be decided independently.
    ///
    /// See [`threshold_of_pool`]. The result is independent of the threads.
    ///
    /// # Errors
    /// - Refused: a weight is not finite
    /// - any error of `show`
    pub(crate) fn thresholds(mut self, n_drop: usize) -> Result<Vec<Threshold>> {
        let PoolThreshold { threshold, tallies } = threshold_of_pool(&mut self, n_drop)?;
        if tallies.is_empty() {
            return Ok(vec![threshold; self.members.len()]);
        }
        Ok(threshold.shares(tallies.iter().map(|tally| tally.split(threshold.key).1)).collect())
    }

    fn each(&mut self, look: &mut Look) -> Result<()> {
        self.members.iter().try_for_each(|member| (self.show)(member, look))
    }
}

impl<T, Show: FnMut(&T, &mut Look) -> Result<()>> ScorePool for ParameterPool<'_, T, Show> {
    type Error = Error;

    /// Dropped weights have key 0.
    const FLOOR: u32 = 1;

    fn guess(&mut self, n_drop: usize) -> Result<Option<Bracket>> {
        if n_drop == 0 {
            return Ok(Some(Bracket { low: 1, high: 1 }));
        }
        // Row widths are mostly even. An odd step avoids sampling the same columns of every row.
        let (mut sample, step) = (Vec::new(), (self.n / N_SAMPLE) | 1);
        if self.n >= MIN_SAMPLED {
            self.each(&mut |scored| {
                scored.sample(step, &mut sample);
                Ok(())
            })?;
        }
        let guessed = Bracket::of_scattered(&mut sample, n_drop as f64 / self.n as f64);
        Ok(Some(guessed.unwrap_or(Bracket::ALL)))
    }

    fn tally(&mut self, bracket: Bracket) -> Result<Option<Vec<Tally>>> {
        let mut tallies = Vec::with_capacity(self.members.len());
        self.each(&mut |scored| {
            tallies.push(scored.tally(bracket)?);
            Ok(())
        })?;
        Ok(Some(tallies))
    }

    fn count(&mut self, empty: Histogram) -> Result<Histogram> {
        let mut all = None;
        self.each(&mut |scored| {
            all = all.take().into_iter().chain(scored.histogram(&empty)).reduce(Histogram::merge);
            Ok(())
        })?;
        Ok(all.unwrap_or(empty))
    }
}

impl Scored<'_> {
    /// Appends the key of every `step`-th score.
    fn sample(self, step: usize, keys: &mut Vec<u32>) {
        match self {
            Self::Weights(values, dropped) => {
                keys.extend(values.iter().zip(dropped).step_by(step).map(|(&value, &dropped)| key(value, dropped)));
            }
            Self::Scores(scores) => keys.extend(scores.iter().step_by(step).map(|score| score.to_bits())),
        }
    }

    /// Counts the scores below a bracket and collects those in it.
    fn tally(self, bracket: Bracket) -> Result<Tally> {
        let new = || Tally::new(bracket, 0);
        match self {
            Self::Weights(values, dropped) => {
                let parts = values.par_chunks(PART).zip(dropped.par_chunks(PART));
                let counted = parts.try_fold(new, |mut tally, (values, dropped)| {
                    each_magnitude(values, dropped, |scores| tally.count(scores));
                    is_finite(values).then_some(tally)
                });
                let tally = counted.try_reduce(new, |tally, other| Some(tally.merge(other)));
                tally.ok_or_else(|| not_finite(values))
            }
            Self::Scores(scores) => {
                let counted = scores.par_chunks(PART).fold(new, |mut tally, scores| {
                    tally.count(scores);
                    tally
                });
                Ok(counted.reduce(new, Tally::merge))
            }
        }
    }

    /// Counts all scores by key; `None` without scores.
    fn histogram(self, empty: &Histogram) -> Option<Histogram> {
        let new = || empty.clone();
        match self {
            Self::Weights(values, dropped) => {
                let parts = values.par_chunks(PART).zip(dropped.par_chunks(PART));
                let counted = parts.fold(new, |mut histogram, (values, dropped)| {
                    each_magnitude(values, dropped, |scores| histogram.count(scores));
                    histogram
                });
                counted.reduce_with(Histogram::merge)
            }
            Self::Scores(scores) => {
                let counted = scores.par_chunks(PART).fold(new, |mut histogram, scores| {
                    histogram.count(scores);
                    histogram
                });
                counted.reduce_with(Histogram::merge)
            }
        }
    }
}

fn is_finite(values: &[f32]) -> bool {
    simd::max_magnitude(values) < f32::INFINITY.to_bits()
}

/// Returns the error for weights that are not finite.
fn not_finite(values: &[f32]) -> Error {
    let at = values.iter().position(|value| !value.is_finite()).unwrap_or_default();
    Error::refused(format!("weight {at} is {}; lower the learning rate", values[at]))
}

/// Refuses weights that are not finite.
///
/// # Errors
/// Refused, with the index of the first such weight.
pub(crate) fn check_finite(values: &[f32]) -> Result<()> {
    if values.par_chunks(PART).all(is_finite) { Ok(()) } else { Err(not_finite(values)) }
}

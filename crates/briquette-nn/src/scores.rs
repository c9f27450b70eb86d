//! Scores of the effective weights of a parameter, row by row.

use crate::Prune;
use crate::module::view;
use crate::rules::{RuleTarget, Scoring, WeightRow};
use briquette_core::{Error, InputView, Mask, Result, Rows, simd};
use briquette_methods::prune::score::WeightSlice;
use briquette_methods::prune::{Score, Threshold};
use rayon::prelude::*;

/// Returns the magnitude of a score, or the smallest float for 0, so that kept weights score above dropped
/// ones, which score 0.
#[inline(always)]
fn above_zero(score: f32) -> f32 {
    let bits = score.to_bits() & 0x7fff_ffff;
    f32::from_bits(bits | u32::from(bits == 0))
}

/// Passes magnitude scores of effective weights to `each`, in the parameter's order, a part at a time.
///
/// `dropped` has one byte per weight, 1 for dropped weights. The order does not matter for thresholds.
pub(crate) fn each_magnitude(values: &[f32], dropped: &[u8], mut each: impl FnMut(&[f32])) {
    let mut effective = Vec::new();
    for (values, dropped) in values.chunks(PART).zip(dropped.chunks(PART)) {
        effective.clear();
        effective.extend(values.iter().zip(dropped).map(|(&value, &dropped)| f32::from_bits(key(value, dropped))));
        each(&effective);
    }
}

/// Returns the bits of a weight's magnitude score.
#[inline(always)]
pub(crate) fn key(value: f32, dropped: u8) -> u32 {
    above_zero(value).to_bits() & u32::from(dropped).wrapping_sub(1)
}

/// Returns the weights to drop: those with magnitudes below the threshold, and the first of its ties in row
/// order.
///
/// All slices are in the parameter's order. Returns `None` if no further weight is dropped.
pub(crate) fn drop_below(values: &[f32], dropped: &[u8], threshold: Threshold, rows: &Rows) -> Option<Vec<bool>> {
    let Threshold { key: border, n_ties } = threshold;
    let limit = if n_ties == 0 { border.saturating_sub(1) } else { border } as i32;
    if limit == 0 {
        return None;
    }
    let mut new = vec![false; values.len()];
    let parts = new.par_chunks_mut(PART).zip(values.par_chunks(PART)).zip(dropped.par_chunks(PART));
    // Without branches and with signed comparisons, this loop vectorizes on all processors.
    let counts = parts.map(|((new, values), dropped)| {
        let mut n_ties = 0;
        for ((new, &value), &dropped) in new.iter_mut().zip(values).zip(dropped) {
            let key = key(value, dropped) as i32;
            *new = key <= limit;
            n_ties += i32::from(key == limit);
        }
        n_ties as usize
    });
    let counts: Vec<usize> = counts.collect();
    if n_ties == 0 || counts.iter().sum::<usize>() <= n_ties {
        return Some(new);
    }
    let with_ties = counts.par_iter().enumerate().filter(|(_, n)| **n > 0);
    let places = with_ties.flat_map_iter(|(part, _)| {
        let part = part * PART..values.len().min((part + 1) * PART);
        part.filter(|&i| key(values[i], dropped[i]) == border).map(|i| view::place_of(i, rows))
    });
    let mut places: Vec<usize> = places.collect();
    let (_, _, later) = places.select_nth_unstable(n_ties - 1);
    later.iter().for_each(|&place| new[view::own_of(place, rows)] = false);
    Some(new)
}

/// Number of weights processed together in the L1 cache.
const PART: usize = 1 << 12;

/// The weights of a parameter as rows of outputs, and their scores.
pub(crate) struct RowScores<'a> {
    pub(crate) path: &'a str,
    pub(crate) values: &'a [f32],
    pub(crate) n_cols: usize,
    /// Mask of the weights kept so far.
    pub(crate) kept: Option<&'a Mask>,
    scoring: Scoring,
    inputs: Option<&'a InputView>,
    /// Scores of a user's function, computed once.
    own: Vec<f32>,
}

/// Buffers for the scores of a row.
#[derive(Default)]
pub(crate) struct RowScratch {
    scores: Vec<f32>,
    larger: Vec<f32>,
    kept: Vec<f32>,
}

impl<'a> RowScores<'a> {
    /// Prepares the scores of a parameter; calls a user's score function for all rows.
    ///
    /// # Errors
    /// Config: a user's score function does not return one number of at least 0 per weight.
    pub(crate) fn new(
        rule: &'a Prune,
        target: &RuleTarget,
        path: &'a str,
        values: &'a [f32],
        kept: Option<&'a Mask>,
    ) -> Result<Self> {
        let scoring = match &rule.scoring {
            Scoring::Known(Score::Random(seed)) => {
                Scoring::Known(Score::Random(seed.wrapping_add((target.index as u64) << 40)))
            }
            scoring => scoring.clone(),
        };
        let (n_cols, inputs) = (target.rows.n_cols, rule.inputs.get(&target.layer));
        let mut scores = Self { path, values, n_cols, kept, scoring, inputs, own: Vec::new() };
        scores.own = scores.own_scores()?;
        Ok(scores)
    }

    /// Returns the scores of one row; the smallest are dropped first.
    pub(crate) fn row<'b>(&'b self, row: usize, scratch: &'b mut RowScratch) -> &'b [f32] {
        let cols = row * self.n_cols..(row + 1) * self.n_cols;
        let RowScratch { scores, larger, kept: effective } = scratch;
        let found = match &self.scoring {
            Scoring::Own(_) => &self.own[cols],
            Scoring::Known(score) => {
                let (values, first) = (&self.values[cols.clone()], cols.start);
                let (n_rows, n_cols) = (self.n_rows(), self.n_cols);
                score.of(WeightSlice { values, first, n_rows, n_cols, inputs: self.inputs }, scores)
            }
        };
        larger.clear();
        larger.extend(found.iter().map(|&score| above_zero(score)));
        let Some(kept) = self.kept else { return larger };
        effective.resize(self.n_cols, 0.0);
        simd::copy_kept(larger, kept.row(row), effective);
        effective
    }

    /// Returns the number of rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.values.len().checked_div(self.n_cols).unwrap_or(0)
    }

    /// Fills `all` with the scores of all rows.
    pub(crate) fn all<'b>(&self, all: &'b mut Vec<f32>) -> &'b [f32] {
        all.resize(self.values.len(), 0.0);
        let rows = all.par_chunks_mut(self.n_cols.max(1)).enumerate();
        rows.for_each_init(RowScratch::default, |scratch, (row, out)| out.copy_from_slice(self.row(row, scratch)));
        all
    }

    /// Calls a user's score function for every row.
    fn own_scores(&self) -> Result<Vec<f32>> {
        let Scoring::Own(score) = &self.scoring else { return Ok(Vec::new()) };
        let mut all = vec![0.0; self.values.len()];
        let rows = all.par_chunks_mut(self.n_cols.max(1)).enumerate();
        rows.try_for_each_init(Vec::new, |effective, (row, out)| {
            let values = &self.values[row * self.n_cols..(row + 1) * self.n_cols];
            let weights = match self.kept {
                Some(kept) => {
                    effective.resize(self.n_cols, 0.0);
                    simd::copy_kept(values, kept.row(row), effective);
                    effective.as_slice()
                }
                None => values,
            };
            let inputs = self.inputs.map(|inputs| inputs.of_row(row, [self.n_rows(), self.n_cols]));
            let found = score(&WeightRow { path: self.path, row, weights, inputs: inputs.as_ref() });
            check(&found, row, self.n_cols).map_err(|error| error.at(self.path))?;
            out.copy_from_slice(&found);
            Ok(())
        })?;
        Ok(all)
    }
}

/// Refuses scores that are negative, not finite or of the wrong number.
fn check(scores: &[f32], row: usize, n_cols: usize) -> Result<()> {
    if scores.len() != n_cols {
        return Err(Error::config(format!("found {} scores for row {row}, expected {n_cols}", scores.len())));
    }
    match scores.iter().position(|score| !(score.is_finite() && *score >= 0.0)) {
        Some(at) => Err(Error::config(format!("score {at} of row {row} is {}, expected 0 or more", scores[at]))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::OutputAxis;

    #[test]
    fn weights_are_dropped_in_place_with_ties_in_row_order() {
        let values = [0.5, -0.25, 0.0, 2.0, 0.25, -0.0, 0.1, 0.25];
        let dropped = [0, 0, 0, 1, 0, 0, 0, 0];
        let run = |key: f32, n_ties: usize, axis: OutputAxis| {
            let threshold = Threshold { key: key.to_bits(), n_ties };
            let found = drop_below(&values, &dropped, threshold, &Rows { axis, ..Rows::plain(2, 4) });
            found.map(|found| found.into_iter().map(u8::from).collect::<Vec<_>>())
        };
        let bits = |drops: [u8; 8]| Some(drops.to_vec());
        for axis in [OutputAxis::First, OutputAxis::Last] {
            assert_eq!(run(0.25, 4, axis), bits([0, 1, 1, 1, 1, 1, 1, 1]));
            assert_eq!(run(0.25, 3, axis), bits([0, 1, 1, 1, 1, 1, 1, 1]));
            assert_eq!(run(0.25, 0, axis), bits([0, 0, 1, 1, 0, 1, 1, 0]));
            assert_eq!(run(0.0, 1, axis), None, "dropped weights come first");
            assert_eq!(run(f32::from_bits(1), 0, axis), None);
            assert_eq!(run(f32::from_bits(1), 2, axis), bits([0, 0, 1, 1, 0, 1, 0, 0]), "zeros come next");
        }
        assert_eq!(run(0.25, 1, OutputAxis::First), bits([0, 1, 1, 1, 0, 1, 1, 0]));
        assert_eq!(run(0.25, 2, OutputAxis::First), bits([0, 1, 1, 1, 1, 1, 1, 0]));
        // The first output has the weights 0, 2, 4 and 6, the second the others.
        assert_eq!(run(0.25, 1, OutputAxis::Last), bits([0, 0, 1, 1, 1, 1, 1, 0]));
        assert_eq!(run(0.25, 2, OutputAxis::Last), bits([0, 1, 1, 1, 1, 1, 1, 0]));
    }
}

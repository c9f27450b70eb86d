//! Scores of weights: how much each weight matters.
//!
//! A new score needs a file, its `mod` line, and an enum variant with its match arm.

mod magnitude;
mod random;
mod wanda;

pub use magnitude::magnitude;
pub use random::random;
pub use wanda::wanda;

use briquette_core::InputView;
use std::ops::Range;

/// How weights are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Score {
    /// The magnitude: `|w|`.
    #[default]
    Magnitude,
    /// Random with this seed: the baseline.
    Random(u64),
    /// The magnitude times the norm of the layer input (Wanda).
    Wanda,
}

/// Some weights of a tensor, with the statistics of their inputs.
#[derive(Debug, Clone, Copy)]
pub struct WeightSlice<'a> {
    /// The weights.
    pub values: &'a [f32],
    /// The index of the first weight in its tensor, row-major.
    pub first: usize,
    /// The number of rows of the tensor.
    pub n_rows: usize,
    /// The number of inputs of each row.
    pub n_cols: usize,
    /// Input statistics for each column, or for each column of each channel group, if the score needs them.
    pub inputs: Option<&'a InputView>,
}

impl Score {
    /// Returns all scores with their names in recipes; `seed` is the seed of `random`.
    pub fn named(seed: u64) -> [(&'static str, Self); 3] {
        [("magnitude", Self::Magnitude), ("random", Self::Random(seed)), ("wanda", Self::Wanda)]
    }

    /// Returns whether the score needs input statistics.
    pub fn needs_inputs(self) -> bool {
        self == Self::Wanda
    }

    /// Computes the scores of some weights, in `scratch` unless the weights themselves are the scores.
    ///
    /// A smaller score means that the weight is safer to drop. The scores do not depend on how a tensor is
    /// split.
    ///
    /// # Panics
    /// If the score needs input statistics and they are missing or have another number of columns.
    pub fn of<'a>(self, weights: WeightSlice<'a>, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        let WeightSlice { values, first, n_cols, .. } = weights;
        match self {
            Self::Magnitude => return magnitude(values),
            Self::Random(seed) => {
                scratch.resize(values.len(), 0.0);
                random(seed, first, scratch);
            }
            Self::Wanda => {
                scratch.resize(values.len(), 0.0);
                for (range, rms) in weights.by_group() {
                    let column = (first + range.start) % n_cols.max(1);
                    wanda(&values[range.clone()], column, rms, &mut scratch[range]);
                }
            }
        }
        scratch
    }
}

impl<'a> WeightSlice<'a> {
    /// Splits the weights at the borders of channel groups: ranges of weights, and the root mean squares of their inputs.
    fn by_group(&self) -> impl Iterator<Item = (Range<usize>, &'a [f32])> {
        let Self { values, first, n_rows, n_cols, inputs } = *self;
        let rms = inputs.expect("statistics of the inputs").rms.as_slice();
        let n_groups = rms.len().checked_div(n_cols).unwrap_or(0);
        assert!(n_groups > 0 && rms.len() == n_groups * n_cols, "one statistic per column");
        let size = if n_groups == 1 { usize::MAX } else { n_rows / n_groups * n_cols };
        let mut start = 0;
        std::iter::from_fn(move || {
            let group = (first + start) / size;
            let end = values.len().min((group + 1).saturating_mul(size) - first);
            let range = std::mem::replace(&mut start, end)..end;
            (!range.is_empty()).then(|| (range, &rms[group * n_cols..(group + 1) * n_cols]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_groups_are_scored_by_their_own_inputs() {
        // Three groups of two rows and three columns.
        let values: Vec<f32> = (0..18).map(|at| at as f32 - 9.0).collect();
        let inputs = InputView { rms: (1..10).map(|at| at as f32).collect(), mean_square: vec![0.0; 9] };
        let expected: Vec<f32> =
            values.iter().enumerate().map(|(at, w)| w.abs() * inputs.rms[at / 6 * 3 + at % 3]).collect();
        for (start, end) in [(0, 18), (0, 4), (4, 18), (5, 13), (6, 12), (17, 18), (3, 3)] {
            let slice =
                WeightSlice { values: &values[start..end], first: start, n_rows: 6, n_cols: 3, inputs: Some(&inputs) };
            assert_eq!(Score::Wanda.of(slice, &mut Vec::new()), &expected[start..end], "{start}..{end}");
        }
    }
}

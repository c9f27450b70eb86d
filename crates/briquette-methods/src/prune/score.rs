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
    /// The number of inputs of each row.
    pub n_cols: usize,
    /// Input statistics for each column, if the score needs them.
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
        let WeightSlice { values, first, n_cols, inputs } = weights;
        match self {
            Self::Magnitude => return magnitude(values),
            Self::Random(seed) => {
                scratch.resize(values.len(), 0.0);
                random(seed, first, scratch);
            }
            Self::Wanda => {
                let inputs = inputs.expect("statistics of the inputs");
                assert_eq!(inputs.rms.len(), n_cols, "one statistic per column");
                scratch.resize(values.len(), 0.0);
                wanda(values, first % n_cols.max(1), &inputs.rms, scratch);
            }
        }
        scratch
    }
}

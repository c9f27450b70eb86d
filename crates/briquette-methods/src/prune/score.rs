//! How much each weight matters. A score that is added here is a file, its `mod` line, and a variant with its arm.

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
    /// By their magnitude: `|w|`.
    #[default]
    Magnitude,
    /// At random from a seed: the baseline.
    Random(u64),
    /// By their magnitude times the size of the input they multiply.
    Wanda,
}

/// Some weights of a tensor, and what their inputs look like.
#[derive(Debug, Clone, Copy)]
pub struct WeightSlice<'a> {
    /// The weights.
    pub values: &'a [f32],
    /// The place of the first one in its tensor, row-major.
    pub first: usize,
    /// Inputs of each row.
    pub n_cols: usize,
    /// A number for each column, where the score needs it.
    pub inputs: Option<&'a InputView>,
}

impl Score {
    /// What recipes call each of them; `seed` is that of the random one.
    pub fn named(seed: u64) -> [(&'static str, Self); 3] {
        [("magnitude", Self::Magnitude), ("random", Self::Random(seed)), ("wanda", Self::Wanda)]
    }

    /// Whether weights cannot be scored without statistics of their inputs.
    pub fn needs_inputs(self) -> bool {
        self == Self::Wanda
    }

    /// The scores of some weights, in `scratch` where they are not the weights themselves: smaller means safer to drop. They
    /// do not depend on where a tensor is cut.
    ///
    /// # Panics
    /// If it needs inputs and there are none, or those of another number of columns.
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

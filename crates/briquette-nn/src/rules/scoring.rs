//! Scores of weights: built-in scores and user functions.

use briquette_core::InputView;
use briquette_methods::prune::Score;
use std::fmt;
use std::sync::Arc;

/// The weights of one output, as a user's score function receives them.
#[derive(Debug, Clone, Copy)]
pub struct WeightRow<'a> {
    /// Path of the parameter.
    pub path: &'a str,
    /// Index of the output.
    pub row: usize,
    /// Weights, 0 if already dropped; in the order `[in, ky, kx]` for a convolution.
    pub weights: &'a [f32],
    /// Statistics of the layer's inputs, if set by [`Prune::inputs`](crate::Prune::inputs).
    pub inputs: Option<&'a InputView>,
}

/// A user's score function.
type OwnScore = Arc<dyn Fn(&WeightRow<'_>) -> Vec<f32> + Send + Sync>;

/// The score of a pruning rule.
#[derive(Clone)]
pub(crate) enum Scoring {
    Known(Score),
    Own(OwnScore),
}

impl Scoring {
    pub(crate) fn needs_inputs(&self) -> bool {
        matches!(self, Self::Known(score) if score.needs_inputs())
    }
}

impl fmt::Debug for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(score) => score.fmt(f),
            Self::Own(_) => f.write_str("a score of one's own"),
        }
    }
}

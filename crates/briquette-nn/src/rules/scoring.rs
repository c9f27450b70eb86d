//! What weights are scored by: a known score, or one of the user's own.

use briquette_core::InputView;
use briquette_methods::prune::Score;
use std::fmt;
use std::sync::Arc;

/// The weights of one output, as a score of one's own is shown them.
#[derive(Debug, Clone, Copy)]
pub struct WeightRow<'a> {
    /// The path of the parameter.
    pub path: &'a str,
    /// Which output this is.
    pub row: usize,
    /// Its weights, 0 where they are dropped already: those of a convolution in the order `[in, ky, kx]`.
    pub weights: &'a [f32],
    /// Two numbers for each input, where [`Prune::inputs`](crate::Prune::inputs) has statistics of the layer.
    pub inputs: Option<&'a InputView>,
}

/// A score of one's own.
type OwnScore = Arc<dyn Fn(&WeightRow<'_>) -> Vec<f32> + Send + Sync>;

/// How weights are scored.
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

//! Scores of the weights of a planned tensor.

use crate::plan::TensorPlan;
use crate::weight_norm::WeightNorm;
use briquette_core::{InputView, Rows};
use briquette_methods::prune::Score;
use briquette_methods::prune::score::WeightSlice;

/// Scores the weights of one tensor. Weights with smaller scores are pruned first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scorer<'a> {
    score: Score,
    n_rows: usize,
    n_cols: usize,
    inputs: Option<&'a InputView>,
    norm: Option<&'a WeightNorm>,
}

impl<'a> Scorer<'a> {
    pub(crate) fn new(tensor: &TensorPlan, inputs: Option<&'a InputView>, norm: Option<&'a WeightNorm>) -> Self {
        let Rows { n_rows, n_cols, .. } = tensor.rows();
        Self { score: tensor.score().unwrap_or_default(), n_rows, n_cols, inputs, norm }
    }

    /// Returns the scores of consecutive weights, of which `first` is the position of the first in its tensor.
    ///
    /// The result may be the weights themselves.
    pub(crate) fn of<'b>(&self, values: &'b [f32], first: usize, scratch: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        let weights = WeightSlice { values, first, n_rows: self.n_rows, n_cols: self.n_cols, inputs: self.inputs };
        let Some(norm) = self.norm else { return self.score.of(weights, scratch) };
        let mut own = Vec::new();
        let own = self.score.of(weights, &mut own);
        scratch.clear();
        match self.score {
            // Random scores do not depend on the weights.
            Score::Random(_) => scratch.extend_from_slice(own),
            Score::Magnitude | Score::Wanda => norm.scale(own, first, scratch),
        }
        norm.keep_largest(first, scratch);
        scratch
    }
}

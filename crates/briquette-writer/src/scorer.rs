//! Scores of the weights of a planned tensor.

use crate::plan::TensorPlan;
use crate::weight_norm::WeightNorm;
use briquette_core::InputView;
use briquette_methods::prune::Score;
use briquette_methods::prune::score::WeightSlice;

/// Scores weights of one tensor; a smaller score means safer to drop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scorer<'a> {
    score: Score,
    n_cols: usize,
    inputs: Option<&'a InputView>,
    norm: Option<&'a WeightNorm>,
}

impl<'a> Scorer<'a> {
    pub(crate) fn new(tensor: &TensorPlan, inputs: Option<&'a InputView>, norm: Option<&'a WeightNorm>) -> Self {
        Self { score: tensor.score().unwrap_or_default(), n_cols: tensor.rows().n_cols, inputs, norm }
    }

    /// The scores of some weights, the first of which has this place in its tensor. They may be the weights themselves.
    pub(crate) fn of<'b>(&self, values: &'b [f32], first: usize, scratch: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        let weights = WeightSlice { values, first, n_cols: self.n_cols, inputs: self.inputs };
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

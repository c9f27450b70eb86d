//! Gradient checkpointing by layer.
//!
//! Only the states between layers are stored, and each layer runs again in the backward pass.
//!
//! The autodiff graph of one layer is in memory at a time (Chen et al., "Training Deep Nets with Sublinear
//! Memory Cost", 2016).

use crate::distiller::Distiller;
use crate::traced::{Traced, TrainingBatch};
use crate::trained::Trained;
use crate::{Layered, Outputs};
use briquette_core::{Error, Result};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;

/// The accumulated gradients of the parameters, and the loss with its terms.
type GradsAndLosses<N> = (GradientsAccumulator<Trained<N>>, Vec<f32>);

/// The layers of a network with this input type.
type DynLayered<'a, I> = &'a dyn Layered<Input = I>;

impl Distiller {
    /// Adds the gradients of a batch, whose loss is weighted by `share`, to `sum`.
    ///
    /// `seed` makes dropout identical in both runs of a layer.
    pub(crate) fn by_layer<N: Traced>(
        &self,
        model: &Trained<N>,
        of_teacher: Option<&Outputs>,
        batch: &TrainingBatch<N::Input>,
        (share, seed): (f64, u64),
        mut sum: GradientsAccumulator<Trained<N>>,
    ) -> Result<GradsAndLosses<N>> {
        let (input, wanted) = (&batch.input, self.settings.blend.wanted());
        let layers = model.student.layered().ok_or_else(not_layered)?;
        let mut states = self.states(model, input, seed)?;

        let leaves: Vec<Tensor<3>> = states[1..].iter().map(leaf).collect();
        let found = layers.leave(leaves.clone(), input, wanted);
        let (loss, losses) = self.judged(model, &found, of_teacher, batch)?;
        let mut grads = self.scaled(loss * share).backward();
        let of_states: Vec<Option<Tensor<3>>> = leaves.iter().map(|leaf| leaf.grad_remove(&mut grads)).collect();
        sum.accumulate(model, GradientsParams::from_grads(grads, model));
        drop((found, leaves));

        let mut towards: Option<Tensor<3>> = None;
        for (index, of_loss) in of_states.into_iter().enumerate().rev() {
            states.truncate(index + 1);
            let Some(grad) = both(towards.take(), of_loss) else { continue };
            let state = leaf(&states[index]);
            let left = self.run_layer(layers, index, state.clone(), input, seed);
            let mut grads = (left * Tensor::from_inner(grad)).sum().backward();
            towards = state.grad_remove(&mut grads);
            sum.accumulate(model, GradientsParams::from_grads(grads, model));
        }
        let entered = self.enter(layers, input, seed);
        if let Some(grad) = towards.filter(|_| entered.is_tracked()) {
            let grads = (entered * Tensor::from_inner(grad)).sum().backward();
            sum.accumulate(model, GradientsParams::from_grads(grads, model));
        }
        Ok((sum, losses))
    }

    /// Returns the input of the first layer and the output of each layer, without a graph: the first of the two
    /// runs.
    fn states<N: Traced>(&self, model: &Trained<N>, input: &N::Input, seed: u64) -> Result<Vec<Tensor<3>>> {
        let still = model.student.clone().no_grad();
        let still = still.layered().ok_or_else(not_layered)?;
        let mut states = vec![self.enter(still, input, seed).without_autodiff()];
        for index in 0..still.n_layers() {
            let state = Tensor::from_inner(states[index].clone());
            states.push(self.run_layer(still, index, state, input, seed).without_autodiff());
        }
        Ok(states)
    }

    fn enter<I>(&self, layers: DynLayered<I>, input: &I, seed: u64) -> Tensor<3> {
        self.seed(seed, 0);
        layers.enter(input)
    }

    fn run_layer<I>(&self, layers: DynLayered<I>, index: usize, state: Tensor<3>, input: &I, seed: u64) -> Tensor<3> {
        self.seed(seed, index + 1);
        layers.layer(index, state, input)
    }
}

fn not_layered() -> Error {
    Error::bug("a network without layers cannot be trained by layer")
}

/// Returns a state that is a leaf of the autodiff graph, so that its gradient can be passed to the previous
/// layer.
fn leaf(state: &Tensor<3>) -> Tensor<3> {
    Tensor::from_inner(state.clone()).require_grad()
}

/// Returns the sum of the terms that are present.
fn both(a: Option<Tensor<3>>, b: Option<Tensor<3>>) -> Option<Tensor<3>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

//! Gradients layer by layer: what goes from one layer to the next is kept, and each layer runs once more in the backward pass, so
//! that the graph of one layer is in memory at a time (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).

use crate::distiller::{Distiller, Trained};
use crate::traced::{Traced, TrainingBatch};
use crate::{Layered, Outputs};
use briquette_core::{Error, Result};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;

/// The parameters' gradients so far, the loss and its terms.
type GradsAndLosses<N> = (GradientsAccumulator<Trained<N>>, Vec<f32>);

impl Distiller {
    /// Adds the gradients of a batch, whose loss counts by `share`, to `sum`. `seed` makes what is drawn at random in a layer the same
    /// in both of its runs.
    pub(crate) fn by_layer<N: Traced>(
        &self,
        model: &Trained<N>,
        of_teacher: Option<&Outputs>,
        batch: &TrainingBatch<N::Input>,
        (share, seed): (f64, u64),
        mut sum: GradientsAccumulator<Trained<N>>,
    ) -> Result<GradsAndLosses<N>> {
        let (input, wanted) = (&batch.input, self.settings.blend.wanted());
        let not_layered = || Error::bug("a network without layers is trained by layer");
        let layers = model.student.layered().ok_or_else(not_layered)?;
        // Drawing belongs to a piece: what comes in is the first.
        let enter = |layers: &dyn Layered<Input = N::Input>| {
            self.seed(seed, 0);
            layers.enter(input)
        };
        let layer = |layers: &dyn Layered<Input = N::Input>, index: usize, state: Tensor<3>| {
            self.seed(seed, index + 1);
            layers.layer(index, state, input)
        };

        let still = model.student.clone().no_grad();
        let still = still.layered().ok_or_else(not_layered)?;
        let mut states = vec![enter(still).without_autodiff()];
        for index in 0..still.n_layers() {
            let next = layer(still, index, Tensor::from_inner(states[index].clone()));
            states.push(next.without_autodiff());
        }

        let leaf = |state: &Tensor<3>| Tensor::from_inner(state.clone()).require_grad();
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
            let mut grads = (layer(layers, index, state.clone()) * Tensor::from_inner(grad)).sum().backward();
            towards = state.grad_remove(&mut grads);
            sum.accumulate(model, GradientsParams::from_grads(grads, model));
        }
        let entered = enter(layers);
        if let Some(grad) = towards.filter(|_| entered.is_tracked()) {
            let grads = (entered * Tensor::from_inner(grad)).sum().backward();
            sum.accumulate(model, GradientsParams::from_grads(grads, model));
        }
        Ok((sum, losses))
    }
}

/// The sum of what there is.
fn both(a: Option<Tensor<3>>, b: Option<Tensor<3>>) -> Option<Tensor<3>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

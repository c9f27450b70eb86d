//! Masks and grids while a network trains: in one pass on the CPU, with straight-through gradients.

use crate::fused::masked::fake_quantize::ScaledGrid;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Bool, Tensor};

/// What is made of a parameter besides its tensors.
#[derive(Debug, Clone, Copy)]
pub struct FakeQuantization {
    /// Whether there is a byte for each weight that says if it is dropped.
    pub has_mask: bool,
    /// The grid that weights are rounded to, where they are.
    pub grid: Option<ScaledGrid>,
    /// Whether the scales have gradients.
    pub is_learned: bool,
}

/// What a backend makes of parameters in training. Where there is no mask, scale or zero point, any tensor is passed and not read.
#[backend_extension(Flex: cfg(feature = "flex"), Autodiff)]
pub trait SimulateOps: Backend {
    /// Masked and rounded weights: see [`fake_quantize`](crate::fused::masked::fake_quantize()).
    fn fake_quantize_weights(
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        zeros: FloatTensor<Self>,
        how: FakeQuantization,
    ) -> FloatTensor<Self>;
}

/// The gradients of [`SimulateOps`].
pub trait FakeQuantizeGrads: Backend {
    /// The gradient of weights under a mask.
    fn kept_grad(dy: FloatTensor<Self>, dropped: BoolTensor<Self>) -> FloatTensor<Self>;

    /// The gradients of weights and of their scales.
    fn learned_grads(
        dy: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        how: FakeQuantization,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: SimulateOps + FakeQuantizeGrads, C: CheckpointStrategy> SimulateOps for Autodiff<B, C> {
    fn fake_quantize_weights(
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        zeros: FloatTensor<Self>,
        how: FakeQuantization,
    ) -> FloatTensor<Self> {
        let nodes = [weights.node(), scales.node()];
        let [weights, scales, zeros] = [weights, scales, zeros].map(|tensor| tensor.into_primitive());
        let value = B::fake_quantize_weights(weights.clone(), dropped.clone(), scales.clone(), zeros, how);
        match WeightStep.prepare::<C>(nodes).compute_bound().stateful() {
            // Both belong to parameters, which the module holds anyway.
            OpsKind::Tracked(step) => step.finish((weights, dropped, scales, how), value),
            OpsKind::UnTracked(step) => step.finish(value),
        }
    }
}

#[derive(Debug)]
struct WeightStep;

impl<B: FakeQuantizeGrads> Backward<B, 2> for WeightStep {
    type State = (FloatTensor<B>, BoolTensor<B>, FloatTensor<B>, FakeQuantization);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let ([weight_node, scale_node], (weights, dropped, scales, how)) = (ops.parents, ops.state);
        let dy = grads.consume::<B>(&ops.node);
        let of_weights = if how.is_learned && how.grid.is_some() {
            let (of_weights, of_scales) = B::learned_grads(dy, weights, dropped, scales, how);
            if let Some(node) = scale_node {
                grads.register::<B>(node.id, of_scales);
            }
            of_weights
        } else if how.has_mask {
            B::kept_grad(dy, dropped)
        } else {
            dy
        };
        if let Some(node) = weight_node {
            grads.register::<B>(node.id, of_weights);
        }
    }
}

/// Weights as a network computes with them: masked, and rounded where `grid` says so: see
/// [`fake_quantize`](crate::fused::masked::fake_quantize()). `dropped`, `scales` and `zeros` are as long as they have to be, or empty.
///
/// Gradients reach kept weights as if nothing were rounded (the straight-through estimator; Bengio et al., 2013), and, where they
/// `is_learned`, the scales too, as [`learned_grads`](crate::fused::masked::learned_grads) has it.
///
/// # Panics
/// If the lengths disagree, or [`fake_quantizes`](super::fake_quantizes) says no.
pub fn fake_quantize<const D: usize>(
    weights: Tensor<D>,
    dropped: Tensor<1, Bool>,
    [scales, zeros]: [Tensor<1>; 2],
    grid: Option<ScaledGrid>,
    is_learned: bool,
) -> Tensor<D> {
    let how = FakeQuantization { has_mask: dropped.dims()[0] > 0, grid, is_learned };
    let (weights, dropped) = (weights.into_dispatch(), dropped.into_dispatch());
    let [scales, zeros] = [scales, zeros].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as SimulateOps>::fake_quantize_weights(weights, dropped, scales, zeros, how))
}

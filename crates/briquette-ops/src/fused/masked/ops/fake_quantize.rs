//! Fake quantization of masked weights as a burn operation, with straight-through gradients.

use crate::fused::masked::fake_quantize::ScaledGrid;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Bool, Tensor};

/// The options of a fake quantization besides its tensors.
#[derive(Debug, Clone, Copy)]
pub struct FakeQuantization {
    /// Whether there is a mask with one byte per weight, 1 if it is dropped.
    pub has_mask: bool,
    /// The grid that weights are rounded to, if any.
    pub grid: Option<ScaledGrid>,
    /// Whether scales have gradients.
    pub is_learned: bool,
}

/// Fake quantization of weights by a backend.
///
/// A missing mask, scale or zero point is passed as any tensor, which is not read.
#[backend_extension(Flex: cfg(feature = "flex"), Autodiff)]
pub trait FakeQuantizeOps: Backend {
    /// Masks and rounds weights: see [`fake_quantize`](crate::fused::masked::fake_quantize()).
    fn fake_quantize_weights(
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        zeros: FloatTensor<Self>,
        how: FakeQuantization,
    ) -> FloatTensor<Self>;
}

/// The gradients of [`FakeQuantizeOps`].
pub trait FakeQuantizeGrads: Backend {
    /// Computes the gradient of weights with a mask.
    fn kept_grad(dy: FloatTensor<Self>, dropped: BoolTensor<Self>) -> FloatTensor<Self>;

    /// Computes the gradients of weights and their scales.
    fn learned_grads(
        dy: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        how: FakeQuantization,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: FakeQuantizeOps + FakeQuantizeGrads, C: CheckpointStrategy> FakeQuantizeOps for Autodiff<B, C> {
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
            // Both belong to parameters, which stay in memory with the module.
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

/// Masks weights, and rounds them if `grid` is given: see
/// [`fake_quantize`](crate::fused::masked::fake_quantize()).
///
/// `dropped`, `scales` and `zeros` have the required length or are empty. Kept weights get gradients as if they
/// were not rounded (the straight-through estimator; Bengio et al., 2013). If scales are learned
/// (`is_learned`), they get those of [`learned_grads`](crate::fused::masked::learned_grads).
///
/// # Panics
/// If the lengths disagree, or [`fake_quantizes`](super::fake_quantizes) returns false.
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
    Tensor::from_dispatch(<Dispatch as FakeQuantizeOps>::fake_quantize_weights(weights, dropped, scales, zeros, how))
}

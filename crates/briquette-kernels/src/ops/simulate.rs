//! Masks, grids and rounded activations while a network trains: in one pass on the CPU, with straight-through gradients.

use super::device::is_cpu;
use crate::activations::ActivationGrid;
use crate::simulate::ScaledGrid;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{Bool, DType, Tensor};

/// What is made of a parameter besides its tensors.
#[derive(Debug, Clone, Copy)]
pub struct Simulation {
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
    /// Masked and rounded weights: see [`simulate`](crate::simulate::simulate).
    fn simulate_weights(
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        zeros: FloatTensor<Self>,
        how: Simulation,
    ) -> FloatTensor<Self>;

    /// Rows of activations, rounded to 8 bits each by itself.
    fn simulate_activations(x: FloatTensor<Self>, n_cols: usize, grid: ActivationGrid) -> FloatTensor<Self>;
}

/// The gradients of [`SimulateOps`].
pub trait SimulateGrads: Backend {
    /// The gradient of weights under a mask.
    fn kept_grad(dy: FloatTensor<Self>, dropped: BoolTensor<Self>) -> FloatTensor<Self>;

    /// The gradients of weights and of their scales.
    fn learned_grads(
        dy: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        how: Simulation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl<B: SimulateOps + SimulateGrads, C: CheckpointStrategy> SimulateOps for Autodiff<B, C> {
    fn simulate_weights(
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        zeros: FloatTensor<Self>,
        how: Simulation,
    ) -> FloatTensor<Self> {
        let nodes = [weights.node(), scales.node()];
        let [weights, scales, zeros] = [weights, scales, zeros].map(|tensor| tensor.into_primitive());
        let value = B::simulate_weights(weights.clone(), dropped.clone(), scales.clone(), zeros, how);
        match WeightStep.prepare::<C>(nodes).compute_bound().stateful() {
            // Both belong to parameters, which the module holds anyway.
            OpsKind::Tracked(step) => step.finish((weights, dropped, scales, how), value),
            OpsKind::UnTracked(step) => step.finish(value),
        }
    }

    fn simulate_activations(x: FloatTensor<Self>, n_cols: usize, grid: ActivationGrid) -> FloatTensor<Self> {
        let step = ActivationStep.prepare::<C>([x.node()]).compute_bound();
        step.stateless(B::simulate_activations(x.into_primitive(), n_cols, grid))
    }
}

#[derive(Debug)]
struct WeightStep;

impl<B: SimulateGrads> Backward<B, 2> for WeightStep {
    type State = (FloatTensor<B>, BoolTensor<B>, FloatTensor<B>, Simulation);

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

#[derive(Debug)]
struct ActivationStep;

impl<B: Backend> Backward<B, 1> for ActivationStep {
    type State = ();

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |dy| dy);
    }
}

/// Whether the operations of training take `x`: it is f32 and on the CPU, with gradients recorded or not.
pub fn simulates<const D: usize>(x: &Tensor<D>) -> bool {
    is_cpu(&x.device().inner()) && x.dtype() == DType::F32
}

/// Weights as a network computes with them: masked, and rounded where `grid` says so: see
/// [`simulate`](crate::simulate::simulate). `dropped`, `scales` and `zeros` are as long as they have to be, or empty.
///
/// Gradients reach kept weights as if nothing were rounded (the straight-through estimator; Bengio et al., 2013), and, where they
/// `is_learned`, the scales too, as [`learned_grads`](crate::simulate::learned_grads) has it.
///
/// # Panics
/// If the lengths disagree, or [`simulates`] says no.
pub fn simulate<const D: usize>(
    weights: Tensor<D>,
    dropped: Tensor<1, Bool>,
    [scales, zeros]: [Tensor<1>; 2],
    grid: Option<ScaledGrid>,
    is_learned: bool,
) -> Tensor<D> {
    let how = Simulation { has_mask: dropped.dims()[0] > 0, grid, is_learned };
    let (weights, dropped) = (weights.into_dispatch(), dropped.into_dispatch());
    let [scales, zeros] = [scales, zeros].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as SimulateOps>::simulate_weights(weights, dropped, scales, zeros, how))
}

/// Activations as a quantized layer sees them: each row of `n_cols` elements becomes codes of its own scale and zero point, and
/// floats again, exactly as [`quantize_rows`](crate::quantize_rows()) rounds them. Gradients pass straight through.
///
/// # Panics
/// If `n_cols` does not divide the number of elements, or [`simulates`] says no.
pub fn simulate_activations<const D: usize>(x: Tensor<D>, n_cols: usize, grid: ActivationGrid) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as SimulateOps>::simulate_activations(x.into_dispatch(), n_cols, grid))
}

/// Calls `f` with the elements of a tensor of the CPU, without copying them where they lie in order; `None` where the tensor is
/// elsewhere, or not of f32.
pub fn with_floats<const D: usize, R>(tensor: &Tensor<D>, f: impl FnOnce(&[f32]) -> R) -> Option<R> {
    if !simulates(tensor) {
        return None;
    }
    host::floats(tensor.clone().without_autodiff(), f)
}

/// As [`with_floats`], for booleans, a byte each.
pub fn with_bools<R>(tensor: &Tensor<1, Bool>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    if !is_cpu(&tensor.device().inner()) {
        return None;
    }
    host::bools(tensor.clone().without_autodiff(), f)
}

#[cfg(feature = "flex")]
use super::flex::host;

#[cfg(not(feature = "flex"))]
mod host {
    use burn::tensor::{Bool, Tensor};

    pub(super) fn floats<const D: usize, R>(_: Tensor<D>, _: impl FnOnce(&[f32]) -> R) -> Option<R> {
        None
    }

    pub(super) fn bools<R>(_: Tensor<1, Bool>, _: impl FnOnce(&[u8]) -> R) -> Option<R> {
        None
    }
}

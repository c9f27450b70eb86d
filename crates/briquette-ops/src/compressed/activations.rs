//! Fake quantization of activations for training, in one pass on the CPU with straight-through gradients.

use briquette_cpu::ActivationGrid;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// Fake quantization of activations by a backend.
#[backend_extension(Flex: cfg(feature = "flex"), Autodiff)]
pub trait ActivationOps: Backend {
    /// Fake-quantizes rows of activations to 8 bits, each row separately.
    fn fake_quantize_activations(x: FloatTensor<Self>, n_cols: usize, grid: ActivationGrid) -> FloatTensor<Self>;
}

impl<B: ActivationOps, C: CheckpointStrategy> ActivationOps for Autodiff<B, C> {
    fn fake_quantize_activations(x: FloatTensor<Self>, n_cols: usize, grid: ActivationGrid) -> FloatTensor<Self> {
        let step = ActivationStep.prepare::<C>([x.node()]).compute_bound();
        step.stateless(B::fake_quantize_activations(x.into_primitive(), n_cols, grid))
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

/// Fake-quantizes activations in rows of `n_cols` elements, each with its own scale and zero point.
///
/// The values are exactly those of [`quantize_rows`](briquette_cpu::quantize_rows()), dequantized. Gradients
/// pass straight through.
///
/// # Panics
/// If `n_cols` does not divide the number of elements, or `x` is not f32 and on the CPU.
pub fn fake_quantize_activations<const D: usize>(x: Tensor<D>, n_cols: usize, grid: ActivationGrid) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as ActivationOps>::fake_quantize_activations(x.into_dispatch(), n_cols, grid))
}

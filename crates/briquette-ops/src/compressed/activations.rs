//! Fake quantization of activations for training, in one pass on the CPU with straight-through gradients.

use briquette_cpu::ActivationGrid;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Tensor};

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

/// Fake-quantizes activations like [`fake_quantize_activations`], with burn's operations, on any device.
///
/// Rows have `n_cols` elements. There are no gradients. Values are computed in f32 and have the type of `x`.
///
/// # Panics
/// If `n_cols` does not divide the number of elements.
pub fn round_activations<const D: usize>(x: Tensor<D>, n_cols: usize, grid: ActivationGrid) -> Tensor<D> {
    let (shape, dtype) = (x.shape(), x.dtype());
    if shape.num_elements() == 0 {
        return x;
    }
    let x = x.detach().cast(DType::F32).reshape([-1, n_cols as i32]);
    let (scale, zero) = match grid {
        ActivationGrid::Asymmetric => {
            let (min, max) = (x.clone().min_dim(1).clamp_max(0.0), x.clone().max_dim(1).clamp_min(0.0));
            let scale = or_one((max - min.clone()).div_scalar(255.0));
            (scale.clone(), min.neg().div(scale).round().clamp(0.0, 255.0))
        }
        ActivationGrid::Fixed(grid) => {
            let of_rows = |number: f32| Tensor::full([x.dims()[0], 1], number, (&x.device(), DType::F32));
            (of_rows(grid.scale), of_rows(grid.zero.into()))
        }
        ActivationGrid::Symmetric | ActivationGrid::SymmetricFull => {
            let n_steps = if grid == ActivationGrid::Symmetric { 127.0 } else { 127.5 };
            let scale = or_one(x.clone().abs().max_dim(1).div_scalar(n_steps));
            (scale.clone(), scale.mul_scalar(0.0).add_scalar(128.0))
        }
    };
    let codes = (x.mul(scale.clone().recip()).round() + zero.clone()).clamp(0.0, 255.0);
    let rounded = (codes - zero).mul(scale).reshape(shape);
    if dtype == DType::F32 { rounded } else { rounded.cast(dtype) }
}

/// Replaces scales of 0 by 1.
fn or_one(scale: Tensor<2>) -> Tensor<2> {
    let is_zero = scale.clone().equal_elem(0.0);
    scale.mask_fill(is_zero, 1.0)
}

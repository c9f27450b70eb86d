//! The kernels as burn operations.
//!
//! Weights are packed on the host and passed as a shared handle, so that a backend can keep them as it likes. Only flex, on
//! the CPU, implements [`QuantizedOps`] so far. The operations are for inference: no gradient flows through them.

#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "flex")]
mod flex_fused;
mod fused;
mod weights;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Device, Int, Tensor};
pub use fused::{FusedOps, Heads, Norm, add_norm, attention, fuses, gelu, rows_at_once};
use std::sync::Arc;
pub use weights::{Conv2dCall, LinearWeights, QuantizedConv2d};

use crate::embedding::Int8Embedding;

/// What a backend does with quantized weights.
#[backend_extension(Flex: cfg(feature = "flex"))]
pub trait QuantizedOps: Backend {
    /// `x · wᵀ + bias` over the last dimension of `x`, in the type of `x`.
    fn quantized_linear(x: FloatTensor<Self>, weights: LinearWeights, bias: Option<Vec<f32>>) -> FloatTensor<Self>;

    /// A convolution of `x` `[n, in, height, width]`, in the type of `x`.
    fn quantized_conv2d(x: FloatTensor<Self>, call: Conv2dCall) -> FloatTensor<Self>;

    /// The same, added to `y` before ReLU; both are f32.
    fn quantized_conv2d_add(x: FloatTensor<Self>, y: FloatTensor<Self>, call: Conv2dCall) -> FloatTensor<Self>;

    /// Rows of a table, with one more dimension than `ids`, as f32.
    fn quantized_embedding(ids: IntTensor<Self>, table: Arc<Int8Embedding>) -> FloatTensor<Self>;
}

/// Whether tensors of this device can be given to the operations: it is the CPU's, and no gradients are recorded on it.
#[cfg(feature = "flex")]
pub fn runs_on(device: &Device) -> bool {
    !device.is_autodiff() && matches!(device.as_dispatch(), burn::backend::DispatchDevice::Flex(_))
}

/// No backend has them here.
#[cfg(not(feature = "flex"))]
pub fn runs_on(_device: &Device) -> bool {
    false
}

/// `y[.., o] = Σᵢ x[.., i] * w[o, i] + bias[o]`: see [`int8_linear`](crate::int8_linear),
/// [`weight_only_linear`](crate::weight_only_linear) and [`int4_linear`](crate::int4_linear).
///
/// # Panics
/// If the last dimension of `x` is not the number of inputs, the bias is not as long as there are outputs, or the
/// backend has no quantized operations.
pub fn linear<const D: usize>(x: Tensor<D>, weights: &LinearWeights, bias: Option<Tensor<1>>) -> Tensor<D> {
    let bias = bias.map(|bias| to_host(bias, weights.n_out()));
    Tensor::from_dispatch(<Dispatch as QuantizedOps>::quantized_linear(x.into_dispatch(), weights.clone(), bias))
}

/// A convolution of `x` `[n, in, height, width]`, added to `y` where it is given: see
/// [`int8_conv2d`](crate::int8_conv2d()) and [`Finish`](crate::Finish).
///
/// # Panics
/// If `x` does not have the channels of the weights, `y` is not of the output's shape, either is not f32 while `y` is
/// given, or the backend has no quantized operations.
pub fn conv2d(x: Tensor<4>, y: Option<Tensor<4>>, call: Conv2dCall) -> Tensor<4> {
    let x = x.into_dispatch();
    Tensor::from_dispatch(match y {
        Some(y) => <Dispatch as QuantizedOps>::quantized_conv2d_add(x, y.into_dispatch(), call),
        None => <Dispatch as QuantizedOps>::quantized_conv2d(x, call),
    })
}

/// A bias as f32, whatever its type; on the CPU this copies a few kilobytes.
fn to_host(bias: Tensor<1>, n_out: usize) -> Vec<f32> {
    let bias = floats(bias);
    assert_eq!(bias.len(), n_out, "a bias of {} for {n_out} outputs", bias.len());
    bias
}

fn floats(vector: Tensor<1>) -> Vec<f32> {
    vector.into_data().iter::<f32>().collect()
}

/// Rows of a table for `ids` `[n, tokens]`, `[n, tokens, n_cols]`: see [`int8_embedding`](crate::int8_embedding).
///
/// # Panics
/// If an id is not a row of the table, or the backend of `ids` has no quantized operations.
pub fn embedding(ids: Tensor<2, Int>, table: &Arc<Int8Embedding>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as QuantizedOps>::quantized_embedding(ids.into_dispatch(), table.clone()))
}

#[cfg(all(test, feature = "flex"))]
mod tests;

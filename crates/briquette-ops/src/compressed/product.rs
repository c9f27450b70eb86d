//! Products with a tied head, in one pass over its weights on the CPU.

use super::device::is_cpu;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Tensor, module};

/// Products with row-major weights.
#[backend_extension(Flex: cfg(feature = "flex"))]
pub trait ProductOps: Backend {
    /// Computes `x · weightsᵀ` over the last dimension.
    fn rows_product(x: FloatTensor<Self>, weights: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Computes `x · weightsᵀ` with weights `[n_out, n_in]`.
///
/// See [`float_product`](briquette_cpu::float_product()). Uses burn's own product for other types and devices,
/// and with autodiff.
pub fn product(x: Tensor<3>, weights: Tensor<2>) -> Tensor<3> {
    let is_taken = |device, dtype| is_cpu(&device) && dtype == DType::F32;
    if !is_taken(x.device(), x.dtype()) || !is_taken(weights.device(), weights.dtype()) {
        // A batched product would have a gradient of the weights for each batch entry.
        return module::linear(x, weights.transpose(), None);
    }
    Tensor::from_dispatch(<Dispatch as ProductOps>::rows_product(x.into_dispatch(), weights.into_dispatch()))
}

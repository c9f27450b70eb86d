//! Losses as pure functions of tensors.
//!
//! A student's outputs and a teacher's outputs or labels give one number.
//!
//! A teacher's outputs are constants: no gradient flows into them, and they may be on the plain device. Losses
//! are f32 for outputs of any type.

pub mod attention;
pub mod embedding;
pub mod hidden;
pub mod labels;
pub mod logits;

use burn::tensor::{Bool, DType, FloatDType, Tensor};

/// Casts to f32: half precision cannot represent sums over vocabularies.
pub(crate) fn wide<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if tensor.dtype() == DType::F32 { tensor } else { tensor.cast(FloatDType::F32) }
}

/// Returns `x · y / (|x| |y|)` of each row, `[n]`; lengths are at least 1e-12.
pub(crate) fn cosines(x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
    (unit(x) * unit(y)).sum_dim(1).squeeze_dim(1)
}

/// Scales rows to length 1; lengths are at least 1e-12.
pub(crate) fn unit(x: Tensor<2>) -> Tensor<2> {
    let length = x.clone().square().sum_dim(1).clamp_min(1e-24).sqrt();
    x / length
}

/// Returns the mean of one value per token over the tokens that are not padding.
pub(crate) fn mean_of_tokens(values: Tensor<2>, padding: Option<Tensor<2, Bool>>) -> Tensor<1> {
    match padding {
        None => values.mean(),
        Some(padding) => {
            let there = padding.bool_not().float().cast(FloatDType::F32);
            (values * there.clone()).sum() / there.sum().clamp_min(1.0)
        }
    }
}

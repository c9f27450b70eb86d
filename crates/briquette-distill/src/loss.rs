//! Losses as pure functions of tensors: a student's outputs, a teacher's or labels, one number.
//!
//! A teacher's outputs are constants: no gradient flows into them, and they may lie on the plain device. Losses are f32,
//! whatever the outputs are.

pub mod attention;
pub mod embedding;
pub mod hidden;
pub mod labels;
pub mod logits;

use burn::tensor::{Bool, DType, FloatDType, Tensor};

/// As f32: halves cannot hold sums over vocabularies.
pub(crate) fn wide<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if tensor.dtype() == DType::F32 { tensor } else { tensor.cast(FloatDType::F32) }
}

/// `x · y / (|x| |y|)` of each row, `[n]`; lengths below 1e-12 count as that.
pub(crate) fn cosines(x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
    (unit(x) * unit(y)).sum_dim(1).squeeze_dim(1)
}

/// Rows scaled to length 1; lengths below 1e-12 count as that.
pub(crate) fn unit(x: Tensor<2>) -> Tensor<2> {
    let length = x.clone().square().sum_dim(1).clamp_min(1e-24).sqrt();
    x / length
}

/// The mean of one value a token over the tokens that are there; `padding` is true where there is none.
pub(crate) fn mean_of_tokens(values: Tensor<2>, padding: Option<Tensor<2, Bool>>) -> Tensor<1> {
    match padding {
        None => values.mean(),
        Some(padding) => {
            let there = padding.bool_not().float().cast(FloatDType::F32);
            (values * there.clone()).sum() / there.sum().clamp_min(1.0)
        }
    }
}

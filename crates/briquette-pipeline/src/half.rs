//! What a recipe calls half precision, as burn has it.

use briquette_recipe::Dtype;
use burn::tensor::FloatDType;

/// The half precision it is, if it is one.
pub(crate) fn half(dtype: Dtype) -> Option<FloatDType> {
    match dtype {
        Dtype::F32 => None,
        Dtype::Bf16 => Some(FloatDType::BF16),
        Dtype::F16 => Some(FloatDType::F16),
    }
}

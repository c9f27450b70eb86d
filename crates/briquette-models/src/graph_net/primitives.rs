//! Primitives with one output and no weights.

use super::functions::{pad, pad_same, pool, reduce};
use super::value::{AnyTensor, BinaryFunction, with_tensor};
use briquette_graph::op::Primitive;
use burn::tensor::activation::softmax;
use burn::tensor::module::adaptive_avg_pool2d;

/// Computes a primitive of its inputs.
///
/// # Panics
/// If an input is missing or has another rank, or the index of layers refuses graphs with this primitive.
pub(super) fn apply_primitive(primitive: &Primitive, mut inputs: Vec<AnyTensor>) -> AnyTensor {
    if let Primitive::Concat { axis } = primitive {
        return AnyTensor::joined(inputs, *axis);
    }
    let x = inputs.remove(0);
    match primitive {
        Primitive::MatMul { transpose_b: true } => x.zip(inputs.remove(0), BinaryFunction::MatMulTransposed),
        Primitive::MatMul { .. } => x.zip(inputs.remove(0), BinaryFunction::MatMul),
        Primitive::Transpose(permutation) => x.permuted(permutation),
        Primitive::Slice { axis, start, len } => x.narrowed(*axis, *start, *len),
        Primitive::Scale(factor) => with_tensor!(x, x => (x * *factor).into()),
        Primitive::Pad { before, after } => pad(x, before, after),
        Primitive::PadSame { size, stride } => pad_same(x, size, stride),
        Primitive::Reduce { axes, kind } => reduce(x, axes, *kind),
        Primitive::Pool(window) => pool(x.four(), window),
        Primitive::AdaptivePool(size) => adaptive_avg_pool2d(x.four(), [size[0], size[1]]).into(),
        Primitive::Softmax { axis } => with_tensor!(x, x => softmax(x, *axis).into()),
        other => panic!("found {}, expected a primitive that runs", other.name()),
    }
}

//! Primitives with one output and no weights.

use super::functions::{pad, pad_same, pool, reduce};
use super::value::{AnyTensor, BinaryFunction, with_tensor};
use briquette_graph::op::{FixedGrid, NumberFunction, Primitive, Reduction};
use burn::tensor::activation::softmax;
use burn::tensor::module::adaptive_avg_pool2d;
use burn::tensor::{Tensor, TensorData};

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
        Primitive::Number { function, number } => with_number(x, *function, *number),
        Primitive::FakeQuantize(grid) => with_tensor!(x, x => fake_quantized(x, *grid).into()),
        Primitive::CumulativeSum { axis } => with_tensor!(x, x => x.cumsum(*axis).into()),
        Primitive::TopIndices { axis, n, largest, last_first } => top_indices(x, *axis, *n, *largest, *last_first),
        Primitive::Resize(factor) => resized(x, *factor),
        Primitive::Pad { before, after } => pad(x, before, after),
        Primitive::PadSame { size, stride } => pad_same(x, size, stride),
        Primitive::Reduce { axes, kind } => reduce(x, axes, *kind),
        Primitive::Pool(window) => pool(x.four(), window),
        Primitive::AdaptivePool(size) if size.len() != 2 => {
            let axes: Vec<usize> = (2..size.len() + 2).collect();
            reduce(x, &axes, Reduction::Mean)
        }
        Primitive::AdaptivePool(size) => adaptive_avg_pool2d(x.four(), [size[0], size[1]]).into(),
        Primitive::Softmax { axis } => with_tensor!(x, x => softmax(x, *axis).into()),
        other => panic!("found {}, expected a primitive that runs", other.name()),
    }
}

/// Rounds each element to a grid.
pub(super) fn fake_quantized<const D: usize>(x: Tensor<D>, grid: FixedGrid) -> Tensor<D> {
    let [low, high] = grid.codes.map(|code| f64::from(code - grid.zero));
    if !x.is_autodiff() {
        return (x / grid.scale).round().clamp(low, high) * grid.scale;
    }
    // Gradients pass straight through the rounding, and are 0 outside of the range.
    let steps = (x / grid.scale).clamp(low, high);
    let plain = steps.clone().without_autodiff();
    ((steps - plain.clone()) + plain.round()) * grid.scale
}

/// Returns the indices of the largest or smallest elements along an axis, from the host: the order of equal elements is
/// the same on every device.
fn top_indices(x: AnyTensor, axis: usize, n: usize, largest: bool, last_first: bool) -> AnyTensor {
    let device = x.device();
    let x = x.floats();
    let dims = x.dims();
    let mut values = x.to_f32("top indices").unwrap_or_else(|error| panic!("{error}"));
    // -0 becomes 0, which is equal to it.
    values.iter_mut().for_each(|value| *value += 0.0);
    let (len, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let mut kept = dims;
    kept[axis] = n;
    let mut found = vec![0.0; kept.iter().product()];
    let mut order: Vec<usize> = Vec::with_capacity(len);
    for (outer, lines) in found.chunks_mut(n * inner).enumerate() {
        for at in 0..inner {
            let value = |index: usize| values[(outer * len + index) * inner + at];
            order.clear();
            order.extend(0..len);
            order.sort_unstable_by(|&a, &b| {
                let by_value = if largest { value(b).total_cmp(&value(a)) } else { value(a).total_cmp(&value(b)) };
                by_value.then(if last_first { b.cmp(&a) } else { a.cmp(&b) })
            });
            order.iter().take(n).enumerate().for_each(|(rank, &index)| lines[rank * inner + at] = index as f32);
        }
    }
    AnyTensor::from(Tensor::<1>::from_data(TensorData::new(found, [kept.iter().product::<usize>()]), &device))
        .reshaped(&kept)
}

/// Applies a function of each element and a number.
fn with_number(x: AnyTensor, function: NumberFunction, n: f64) -> AnyTensor {
    with_tensor!(x, x => match function {
        NumberFunction::Add => x + n,
        NumberFunction::SubtractFrom => -x + n,
        NumberFunction::Divide => x.recip() * n,
        NumberFunction::DivideBy => x / n,
        NumberFunction::Quotient => {
            let quotient = x / n;
            quotient.clone().sign() * quotient.abs().floor()
        }
        // The general function calls `pow` for each element.
        NumberFunction::Power if n == 3.0 => x.clone() * x.clone() * x,
        NumberFunction::Power if n.fract() == 0.0 && n.abs() <= 64.0 => x.powi_scalar(n as i32),
        NumberFunction::Power => x.powf_scalar(n),
        NumberFunction::PowerOf => (x * n.ln()).exp(),
        NumberFunction::AtLeast => x.clamp_min(n),
        NumberFunction::AtMost => x.clamp_max(n),
        NumberFunction::LeakyRelu => x.clone().clamp_min(0.0) + x.clamp_max(0.0) * n,
        NumberFunction::Elu => x.clone().clamp_min(0.0) + (x.clamp_max(0.0).exp() - 1.0) * n,
    }.into())
}

/// Repeats each element of the axes after the second.
fn resized(x: AnyTensor, factor: usize) -> AnyTensor {
    let rank = x.dims().len();
    (2..rank).fold(x, |x, axis| {
        let dims = x.dims();
        let mut repeated = dims.clone();
        repeated.insert(axis + 1, 1);
        let column = x.reshaped(&repeated);
        repeated[axis + 1] = factor;
        let mut joined = dims;
        joined[axis] *= factor;
        column.expanded(&repeated).reshaped(&joined)
    })
}

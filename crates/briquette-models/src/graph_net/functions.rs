//! Functions of values: elementwise functions, reshapes, reductions and pools.

use super::value::{AnyTensor, BinaryFunction, with_tensor};
use briquette_graph::op::{ElementFunction, PoolWindow, Reduction, same_zeros};
use briquette_ops::compressed::max_pool2d;
use briquette_ops::fused::{ActivationFunction, activate, relu};
use burn::tensor::Tensor;
use burn::tensor::module::avg_pool2d;
use burn::tensor::ops::AvgPoolOptions;

/// Applies a function of one input.
pub(super) fn apply(function: ElementFunction, x: AnyTensor) -> AnyTensor {
    with_tensor!(x, x => match function {
        ElementFunction::Gelu => briquette_ops::fused::gelu(x),
        ElementFunction::GeluTanh => activate(x, ActivationFunction::GeluTanh),
        ElementFunction::Relu => relu(x),
        ElementFunction::Relu6 => activate(x, ActivationFunction::Relu6),
        ElementFunction::Silu => activate(x, ActivationFunction::Silu),
        ElementFunction::Sigmoid => activate(x, ActivationFunction::Sigmoid),
        ElementFunction::Tanh => activate(x, ActivationFunction::Tanh),
        ElementFunction::HardSwish => activate(x, ActivationFunction::HardSwish),
        ElementFunction::HardSigmoid => activate(x, ActivationFunction::HardSigmoid),
        ElementFunction::QuickGelu => activate(x, ActivationFunction::QuickGelu),
        ElementFunction::Neg => -x,
        ElementFunction::Square => x.powi_scalar(2),
        ElementFunction::Rsqrt => x.sqrt().recip(),
        ElementFunction::Foreign(name) => super::foreign::of_one(name, x),
        other => panic!("{} is no function of one input", other.name()),
    }.into())
}

/// Applies a function to values, which broadcast.
pub(super) fn elementwise(function: ElementFunction, inputs: Vec<AnyTensor>) -> AnyTensor {
    let op = match function {
        ElementFunction::Add => BinaryFunction::Add,
        ElementFunction::Sub => BinaryFunction::Sub,
        ElementFunction::Mul => BinaryFunction::Mul,
        ElementFunction::Foreign(name) if super::foreign::takes_several(name) => {
            return super::foreign::of_several(name, inputs);
        }
        unary => return apply(unary, inputs.into_iter().next().expect("an input")),
    };
    inputs.into_iter().reduce(|a, b| a.zip(b, op)).expect("an input")
}

pub(super) fn split(x: &AnyTensor, axis: usize, sizes: &[usize]) -> Vec<AnyTensor> {
    let mut start = 0;
    let part = |&len: &usize| {
        start += len;
        x.clone().narrowed(axis, start - len, len)
    };
    sizes.iter().map(part).collect()
}

/// Reshapes like `from` to `to`, which are the shapes of an example of another batch size and length.
///
/// Leading axes that the example keeps have the extents of `x`. If the first axis changes, it changes in proportion.
pub(super) fn reshape(x: AnyTensor, from: &[usize], to: &[usize]) -> AnyTensor {
    let dims = x.dims();
    let n_kept = from.iter().zip(to).take_while(|(from, to)| from == to).count();
    let mut shape = to.to_vec();
    shape[..n_kept].copy_from_slice(&dims[..n_kept]);
    if n_kept == 0 {
        shape[0] = to[0] * dims[0] / from[0];
    }
    x.reshaped(&shape)
}

/// Repeats axes like from `from` to `to`. The batch is repeated later, where values of the whole batch are met.
pub(super) fn expand(x: AnyTensor, from: &[usize], to: &[usize]) -> AnyTensor {
    let dims = x.with_rank(to.len());
    let mut shape = to.to_vec();
    let is_kept = |axis: usize| axis == 0 || from.len() == to.len() && from[axis] == to[axis];
    for (axis, extent) in dims.dims().into_iter().enumerate() {
        if is_kept(axis) {
            shape[axis] = extent;
        }
    }
    dims.expanded(&shape)
}

/// Cuts `[batch, length, heads · parts · width]` into parts `[batch, length, heads · width]`.
pub(super) fn split_heads(x: Tensor<3>, heads: usize, parts: usize) -> Vec<AnyTensor> {
    let [batch, length, all] = x.dims();
    let width = all / heads / parts;
    let by_part = x.reshape([batch, length, heads, parts, width]);
    let part = |index| by_part.clone().narrow(3, index, 1).reshape([batch, length, heads * width]).into();
    (0..parts).map(part).collect()
}

/// Puts learned tokens, repeated for every item, before the tokens `[batch, length, width]`.
pub(super) fn prepend_tokens(inputs: Vec<AnyTensor>) -> AnyTensor {
    let mut inputs = inputs.into_iter();
    let x = inputs.next().expect("tokens");
    let batch = x.dims()[0];
    let learned = inputs.map(|token| {
        let [_, n, width] = token.clone().three().dims();
        token.expanded(&[batch, n, width])
    });
    AnyTensor::joined(learned.chain([x.clone()]).collect(), 1)
}

/// Adds zeros before and after each axis.
pub(super) fn pad(x: AnyTensor, before: &[usize], after: &[usize]) -> AnyTensor {
    let zeros = |x: &AnyTensor, axis: usize, n: usize| {
        let mut shape = x.dims();
        shape[axis] = n;
        let n_elements: usize = shape.iter().product();
        let device = with_tensor!(x, x => x.device());
        AnyTensor::from(Tensor::<1>::zeros([n_elements], &device)).reshaped(&shape)
    };
    before.iter().zip(after).enumerate().fold(x, |x, (axis, (&before, &after))| {
        let first = (before > 0).then(|| zeros(&x, axis, before));
        let last = (after > 0).then(|| zeros(&x, axis, after));
        if first.is_none() && last.is_none() {
            return x;
        }
        AnyTensor::joined(first.into_iter().chain([x]).chain(last).collect(), axis)
    })
}

/// Adds zeros around the axes after the second; see [`Primitive::PadSame`](briquette_graph::op::Primitive::PadSame).
pub(super) fn pad_same(x: AnyTensor, size: &[usize], stride: &[usize]) -> AnyTensor {
    let dims = x.dims();
    let (mut before, mut after) = (vec![0; dims.len()], vec![0; dims.len()]);
    for (at, (&size, &stride)) in size.iter().zip(stride).enumerate() {
        let zeros = same_zeros(dims[at + 2], size, stride).expect("a window that fits the image");
        [before[at + 2], after[at + 2]] = zeros;
    }
    pad(x, &before, &after)
}

pub(super) fn reduce(x: AnyTensor, axes: &[usize], kind: Reduction) -> AnyTensor {
    with_tensor!(x, x => axes.iter().fold(x, |x, axis| match kind {
        Reduction::Mean => x.mean_dim(*axis),
        Reduction::Sum => x.sum_dim(*axis),
        Reduction::Max => x.max_dim(*axis),
    }).into())
}

pub(super) fn pool(x: Tensor<4>, window: &PoolWindow) -> AnyTensor {
    let [size, stride, padding] = [&window.size, &window.stride, &window.padding].map(|pair| [pair[0], pair[1]]);
    match window.kind {
        Reduction::Max => max_pool2d(x, size, stride, padding).into(),
        kind => {
            let pads = padding.map(|pad| (pad, pad));
            let options = AvgPoolOptions { kernel_size: size, stride, padding: pads, ..AvgPoolOptions::new(size) };
            let mean = avg_pool2d(x, options);
            let n = (size[0] * size[1]) as f64;
            if kind == Reduction::Sum { (mean * n).into() } else { mean.into() }
        }
    }
}

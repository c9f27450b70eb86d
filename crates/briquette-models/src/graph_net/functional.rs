//! Layers of ONNX models whose weights are inputs: shared weights, constants, and computed weights.

use super::functions::reduce;
use super::program::HeldConstant;
use super::steps::FunctionalCall;
use super::value::{AnyTensor, BinaryFunction, with_tensor};
use briquette_graph::op::{ConvSettings, Reduction};
use burn::tensor::module::{conv_transpose1d, conv_transpose2d, conv1d, conv2d};
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions};
use burn::tensor::{Device, Tensor, TensorData};

impl HeldConstant {
    /// Returns the constant on a device. A single number has one axis.
    pub(super) fn to_tensor(&self, device: &Device) -> AnyTensor {
        let flat = Tensor::<1>::from_data(TensorData::new(self.values.clone(), [self.values.len()]), device);
        AnyTensor::from(flat).reshaped(&at_least_one_axis(&self.shape))
    }
}

/// Values have one axis or more.
fn at_least_one_axis(shape: &[usize]) -> Vec<usize> {
    if shape.is_empty() { vec![1] } else { shape.to_vec() }
}

/// Computes an operation of its inputs and weights.
///
/// # Panics
/// If an input is missing or has another shape.
pub(super) fn apply_functional(call: &FunctionalCall, inputs: Vec<AnyTensor>) -> AnyTensor {
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("an input");
    let x = next();
    match call {
        FunctionalCall::Reshape(to) => x.reshaped(&at_least_one_axis(to)),
        FunctionalCall::Expand(to) => x.expanded(&at_least_one_axis(to)),
        FunctionalCall::Gather(to) => gather(x, next(), to),
        FunctionalCall::Linear { is_turned } => {
            let function = if *is_turned { BinaryFunction::MatMul } else { BinaryFunction::MatMulTransposed };
            added(x.zip(next(), function), inputs.next())
        }
        FunctionalCall::LayerNorm(eps) => {
            let axis = x.dims().len() - 1;
            let normed = normalized(centred(x, axis), axis, *eps).zip(next(), BinaryFunction::Mul);
            added(normed, inputs.next())
        }
        FunctionalCall::RmsNorm(eps) => {
            let axis = x.dims().len() - 1;
            normalized(x, axis, *eps).zip(next(), BinaryFunction::Mul)
        }
        FunctionalCall::BatchNorm(eps) => batch_norm(x, [next(), next(), next(), next()], *eps),
        FunctionalCall::GroupNorm { groups, eps } => {
            let dims = x.dims();
            let inner = dims.iter().skip(1).product::<usize>() / groups;
            let grouped = x.reshaped(&[dims[0], *groups, inner]);
            let normed = normalized(centred(grouped, 2), 2, *eps).reshaped(&dims);
            let [weight, bias] = [next(), next()].map(|vector| by_channel(vector, dims.len()));
            normed.zip(weight, BinaryFunction::Mul).zip(bias, BinaryFunction::Add)
        }
        FunctionalCall::Conv(settings) => {
            let weight = next();
            conv(x, weight, inputs.next(), settings)
        }
    }
}

fn added(x: AnyTensor, bias: Option<AnyTensor>) -> AnyTensor {
    match bias {
        Some(bias) => x.zip(bias, BinaryFunction::Add),
        None => x,
    }
}

fn centred(x: AnyTensor, axis: usize) -> AnyTensor {
    let mean = reduce(x.clone(), &[axis], Reduction::Mean);
    x.zip(mean, BinaryFunction::Sub)
}

/// Divides by the root of the mean square along an axis.
fn normalized(x: AnyTensor, axis: usize, eps: f64) -> AnyTensor {
    with_tensor!(x, x => {
        let scale = (x.clone().square().mean_dim(axis) + eps).sqrt();
        (x / scale).into()
    })
}

/// Gives a vector of channels axes of extent 1 after it.
fn by_channel(vector: AnyTensor, rank: usize) -> AnyTensor {
    let n = vector.dims()[0];
    let shape: Vec<usize> = [n].into_iter().chain(std::iter::repeat_n(1, rank.saturating_sub(2))).collect();
    vector.reshaped(&shape)
}

fn batch_norm(x: AnyTensor, vectors: [AnyTensor; 4], eps: f64) -> AnyTensor {
    let rank = x.dims().len();
    let [weight, bias, mean, variance] = vectors.map(|vector| by_channel(vector, rank));
    let scale = with_tensor!(variance, x => (x + eps).sqrt().recip().into());
    let factor = weight.zip(scale, BinaryFunction::Mul);
    x.zip(mean, BinaryFunction::Sub).zip(factor, BinaryFunction::Mul).zip(bias, BinaryFunction::Add)
}

/// Looks up rows of the first axis. Negative indices count from its end.
fn gather(table: AnyTensor, indices: AnyTensor, to: &[usize]) -> AnyTensor {
    let dims = table.dims();
    let ids = indices.flat_ids();
    let (n, width) = (dims[0], dims[1..].iter().product::<usize>());
    let ids = ids.clone() + ids.lower_elem(0).int() * n as i64;
    let rows = table.reshaped(&[n, width]).two().select(0, ids);
    AnyTensor::from(rows).reshaped(&at_least_one_axis(to))
}

fn conv(x: AnyTensor, weight: AnyTensor, bias: Option<AnyTensor>, settings: &ConvSettings) -> AnyTensor {
    let bias = bias.map(AnyTensor::one);
    match settings.stride.len() {
        1 => {
            let [stride, padding, dilation] = [&settings.stride, &settings.padding, &settings.dilation].map(|l| [l[0]]);
            let (x, weight) = (x.three(), weight.three());
            if settings.transposed {
                let options = ConvTransposeOptions::new(stride, padding, [0], dilation, settings.groups);
                return conv_transpose1d(x, weight, bias, options).into();
            }
            conv1d(x, weight, bias, ConvOptions::new(stride, padding, dilation, settings.groups)).into()
        }
        _ => {
            let [stride, padding, dilation] =
                [&settings.stride, &settings.padding, &settings.dilation].map(|l| [l[0], l[1]]);
            let (x, weight) = (x.four(), weight.four());
            if settings.transposed {
                let options = ConvTransposeOptions::new(stride, padding, [0, 0], dilation, settings.groups);
                return conv_transpose2d(x, weight, bias, options).into();
            }
            conv2d(x, weight, bias, ConvOptions::new(stride, padding, dilation, settings.groups)).into()
        }
    }
}

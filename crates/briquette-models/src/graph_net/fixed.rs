//! Steps between activations on fixed grids: codes in and codes out on the CPU, rounded floats elsewhere.

use super::functions::{apply, pad, pool, reduce};
use super::layer::GraphLayer;
use super::primitives::fake_quantized;
use super::value::{AnyTensor, BinaryFunction, with_tensor};
use crate::layers::{After, Then};
use briquette_cpu::{Conv2dShape, active_level};
use briquette_graph::op::{ElementFunction, FixedGrid, PoolWindow, Reduction, same_zeros};
use briquette_ops::compressed::{CodeGrid, ImageCodes, image_codes};
use std::sync::Arc;

/// An operation whose output is rounded to a grid.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FixedCall {
    pub(super) kind: FixedKind,
    /// The function between them: ReLU or ReLU6.
    pub(super) function: Option<ElementFunction>,
    pub(super) grid: FixedGrid,
}

/// Zeros before and after the height and the width of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ConvZeros {
    Given([[usize; 2]; 2]),
    /// As many as a window needs: see [`Primitive::PadSame`](briquette_graph::op::Primitive::PadSame).
    Same {
        size: [usize; 2],
        stride: [usize; 2],
    },
}

impl ConvZeros {
    /// Returns the zeros of an image of this height and width.
    fn of(self, extents: [usize; 2]) -> [[usize; 2]; 2] {
        match self {
            Self::Given(zeros) => zeros,
            Self::Same { size, stride } => [0, 1]
                .map(|axis| same_zeros(extents[axis], size[axis], stride[axis]).expect("a window that fits the image")),
        }
    }
}

/// What is computed before the rounding.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FixedKind {
    /// Nothing.
    Same,
    /// A convolution of a layer, with zeros added before and after height and width. A second input is its bias; without one, a batch
    /// norm may follow.
    Conv { layer: usize, norm: Option<usize>, zeros: ConvZeros },
    /// The sum of two images.
    Add,
    /// The inputs, joined along their channels.
    Join,
    /// The maximum of each window.
    MaxPool(PoolWindow),
    /// The mean of each channel.
    Mean,
}

impl FixedKind {
    /// Returns the step's name, as reports print it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Same => "fake-quantize",
            Self::Conv { .. } => "convolution of codes (fused)",
            Self::Add => "sum of codes (fused)",
            Self::Join => "concatenate codes (fused)",
            Self::MaxPool(_) => "pool of codes (fused)",
            Self::Mean => "mean of codes (fused)",
        }
    }
}

/// Computes a step; `layers` are those of a convolution and its batch norm.
///
/// # Panics
/// If an input is missing or has another rank.
pub(super) fn fixed(call: &FixedCall, layers: &[&GraphLayer], inputs: Vec<AnyTensor>) -> AnyTensor {
    match code_grid(call.grid).and_then(|grid| on_codes(call, grid, layers, &inputs)) {
        Some((codes, device)) => AnyTensor::Codes(Arc::new(codes), device),
        None => on_floats(call, layers, inputs.into_iter().map(AnyTensor::decoded).collect()),
    }
}

/// Returns a grid with codes from 0 to 255.
pub(super) fn of_codes(grid: CodeGrid) -> FixedGrid {
    FixedGrid { scale: grid.scale, zero: grid.zero.into(), codes: [0, 255] }
}

/// Returns the same grid for codes from 0 to 255; `None` if there are more or fewer codes.
pub(super) fn code_grid(grid: FixedGrid) -> Option<CodeGrid> {
    let [low, high] = grid.codes;
    let zero = u8::try_from(grid.zero - low).ok().filter(|_| high - low == 255)?;
    Some(CodeGrid { scale: grid.scale, zero })
}

fn on_codes(
    call: &FixedCall,
    grid: CodeGrid,
    layers: &[&GraphLayer],
    inputs: &[AnyTensor],
) -> Option<(ImageCodes, burn::tensor::Device)> {
    let level = active_level();
    if let ([AnyTensor::Four(x)], FixedKind::Same, None) = (inputs, &call.kind, call.function) {
        return Some((image_codes(x, grid)?, x.device()));
    }
    let AnyTensor::Codes(x, device) = inputs.first()? else { return None };
    let is_bounded = matches!(call.kind, FixedKind::Conv { .. } | FixedKind::Add);
    let bounds = match call.function {
        None => [0, 255],
        Some(_) if !is_bounded => return None,
        Some(ElementFunction::Relu) => [grid.zero, 255],
        Some(_) => [grid.zero, grid.code(6.0)],
    };
    let found = match (&call.kind, layers, &inputs[1..]) {
        (FixedKind::Conv { zeros, .. }, [GraphLayer::Conv2d(conv), GraphLayer::BatchNorm(norm)], []) => {
            conv.forward_codes(x, zeros.of([x.dims[2], x.dims[3]]), After::Norm(norm), (grid, bounds))?
        }
        (FixedKind::Conv { zeros, .. }, [GraphLayer::Conv2d(conv)], bias) => {
            let n_out = conv.weight.lazy_shape()[0];
            // A bias that is repeated over the channels is added to floats.
            if bias.iter().any(|bias| bias.dims().iter().product::<usize>() != n_out) {
                return None;
            }
            let bias = bias.first().map_or(After::Nothing, |bias| After::Bias(bias.clone().reshaped(&[n_out]).one()));
            conv.forward_codes(x, zeros.of([x.dims[2], x.dims[3]]), bias, (grid, bounds))?
        }
        (FixedKind::Add, _, [AnyTensor::Codes(y, _)]) if x.dims == y.dims => x.add(level, y, grid, bounds),
        (FixedKind::Join, _, others) => {
            let others = others.iter().map(|other| if let AnyTensor::Codes(y, _) = other { Some(&**y) } else { None });
            let parts: Vec<&ImageCodes> = std::iter::once(Some(&**x)).chain(others).collect::<Option<_>>()?;
            ImageCodes::join(level, &parts, grid)
        }
        (FixedKind::MaxPool(window), ..) if x.grid == grid => x.max_pool(level, &pool_shape(window, x.dims[1])?),
        (FixedKind::Mean, ..) => x.mean(grid),
        _ => return None,
    };
    Some((found, device.clone()))
}

fn pool_shape(window: &PoolWindow, n_channels: usize) -> Option<Conv2dShape> {
    let pair = |list: &[usize]| <[usize; 2]>::try_from(list).ok();
    let padding = pair(&window.padding)?.map(|n| [n, n]);
    let shape = Conv2dShape::new(n_channels, n_channels, pair(&window.size)?);
    Some(Conv2dShape { stride: pair(&window.stride)?, padding, ..shape })
}

fn on_floats(call: &FixedCall, layers: &[&GraphLayer], inputs: Vec<AnyTensor>) -> AnyTensor {
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("an input");
    let x = next();
    let found = match &call.kind {
        FixedKind::Same => x,
        FixedKind::Conv { zeros, .. } => {
            let zeros = match x.dims().as_slice() {
                [.., height, width] => zeros.of([*height, *width]),
                _ => [[0; 2]; 2],
            };
            let [before, after] = [0, 1].map(|side| [0, 0, zeros[0][side], zeros[1][side]]);
            let x = if zeros.iter().flatten().any(|n| *n > 0) { pad(x, &before, &after) } else { x };
            let y: AnyTensor = match layers {
                [GraphLayer::Conv2d(conv), GraphLayer::BatchNorm(norm)] => {
                    conv.forward_then(x.four(), After::Norm(norm), Then::default()).into()
                }
                [GraphLayer::Conv2d(conv)] => conv.forward(x.four()).into(),
                [GraphLayer::Conv1d(conv)] => conv.forward(x.three()).into(),
                other => panic!("found {other:?}, expected a convolution"),
            };
            match inputs.next() {
                Some(bias) => y.zip(bias, BinaryFunction::Add),
                None => y,
            }
        }
        FixedKind::Add => x.zip(next(), BinaryFunction::Add),
        FixedKind::Join => AnyTensor::joined(std::iter::once(x).chain(inputs).collect(), 1),
        FixedKind::MaxPool(window) => pool(x.four(), window),
        FixedKind::Mean => reduce(x, &[2, 3], Reduction::Mean),
    };
    let found = match call.function {
        Some(function) => apply(function, found),
        None => found,
    };
    with_tensor!(found, x => fake_quantized(x, call.grid).into())
}

//! Images of codes on fixed grids, on the CPU.

use super::device::is_cpu;
use super::weights::QuantizedConv2d;
use crate::fused::masked::ops::with_floats;
pub use briquette_cpu::{CodeGrid, ImageCodes};
use briquette_cpu::{Conv2dShape, FixedConv2d, active_level};
use burn::tensor::Tensor;

/// The parameters of a convolution of codes. See [`FixedConv2d`].
#[derive(Debug, Clone, Copy)]
pub struct FixedConv2dCall<'a> {
    /// Stride, padding, dilation and channels.
    pub shape: Conv2dShape,
    /// The factor of each output channel; 1 if absent.
    pub factors: Option<&'a [f32]>,
    /// The summand of each output channel; 0 if absent.
    pub bias: Option<&'a [f32]>,
    /// The grid of the outputs.
    pub grid: CodeGrid,
    /// The lowest and the highest code of the outputs.
    pub bounds: [u8; 2],
}

/// Convolves codes to codes; `None` if the weights are on a GPU.
///
/// # Panics
/// See [`fixed_conv2d`](briquette_cpu::fixed_conv2d()).
pub fn fixed_conv2d(x: &ImageCodes, weights: &QuantizedConv2d, call: FixedConv2dCall) -> Option<ImageCodes> {
    let FixedConv2dCall { shape, factors, bias, grid, bounds } = call;
    let conv = FixedConv2d { weights: weights.placed.on_host()?, shape, factors, bias, grid, bounds };
    Some(briquette_cpu::fixed_conv2d(active_level(), x, &conv))
}

/// Rounds images `[n, channels, height, width]` to codes; `None` if they are not f32 on the CPU, or record gradients.
pub fn image_codes(x: &Tensor<4>, grid: CodeGrid) -> Option<ImageCodes> {
    is_cpu(&x.device()).then_some(())?;
    with_floats(x, |values| ImageCodes::of_floats(active_level(), values, x.dims(), grid))
}

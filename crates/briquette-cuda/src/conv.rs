//! Convolutions: patches of images as rows of a product, and depthwise convolutions directly.
//!
//! Images are codes `[image, channel, height, width]`, each image in whole words. The order of inputs is that
//! of PyTorch's weights, `[channel, ky, kx]`.

use crate::epilogue::{EpilogueFlags, write_at};
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Units of a cube.
pub const UNITS: usize = 256;

/// The geometry of a convolution.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct ConvGeometry {
    /// Channels of an image.
    pub channels: u32,
    /// Height of an image.
    pub height: u32,
    /// Width of an image.
    pub width: u32,
    /// Words per image.
    pub image_words: u32,
    /// Height of the output.
    pub out_height: u32,
    /// Width of the output.
    pub out_width: u32,
    /// Height of the kernel.
    pub kernel_height: u32,
    /// Width of the kernel.
    pub kernel_width: u32,
    /// Stride between patches, in rows.
    pub stride_y: u32,
    /// Stride between patches, in columns.
    pub stride_x: u32,
    /// Rows of zero padding above.
    pub top: u32,
    /// Columns of zero padding on the left.
    pub left: u32,
    /// Dilation between taps, in rows.
    pub dilation_y: u32,
    /// Dilation between taps, in columns.
    pub dilation_x: u32,
}

/// Returns the code at a tap of an output pixel, or `zero` for padding.
#[cube]
fn tap(codes: &[u32], image: u32, channel: u32, ky: u32, kx: u32, pixel: u32, zero: u32, steps: &ConvGeometry) -> u32 {
    let y = pixel / steps.out_width * steps.stride_y + ky * steps.dilation_y;
    let x = pixel % steps.out_width * steps.stride_x + kx * steps.dilation_x;
    let mut code = zero;
    // A position left of or above the image wraps around to more than its size.
    let (y, x) = (y - steps.top, x - steps.left);
    if y < steps.height && x < steps.width {
        let at = (channel * steps.height + y) * steps.width + x;
        code = codes[(image * steps.image_words + at / 4u32) as usize] >> (at % 4u32 * 8u32);
    }
    code & 0xffu32
}

/// Writes patches as rows of `row_words` words, one unit per word.
///
/// Starts at pixel `first`, counted over all images, and at channel `first_channel`.
#[cube(launch_unchecked)]
pub fn patches(
    codes: &[u32],
    zeros: &[i32],
    rows: &mut [u32],
    first: u32,
    first_channel: u32,
    depth: u32,
    row_words: u32,
    n_words: u32,
    steps: ConvGeometry,
) {
    let at = ABSOLUTE_POS as u32;
    if at < n_words {
        let (pixel, word) = (first + at / row_words, at % row_words);
        let pixels = steps.out_height * steps.out_width;
        let (image, pixel) = (pixel / pixels, pixel % pixels);
        let zero = u32::reinterpret(zeros[image as usize]);
        let taps = steps.kernel_height * steps.kernel_width;
        let mut packed = 0u32;
        #[unroll]
        for i in 0..4u32 {
            let input = word * 4u32 + i;
            if input < depth {
                let (channel, rest) = (first_channel + input / taps, input % taps);
                let (ky, kx) = (rest / steps.kernel_width, rest % steps.kernel_width);
                packed |= tap(codes, image, channel, ky, kx, pixel, zero, &steps) << comptime!(i * 8);
            }
        }
        rows[at as usize] = packed;
    }
}

/// Computes a depthwise convolution with weights `[channel, row_words]`, one unit per output.
#[cube(launch_unchecked)]
pub fn depthwise<F: Float>(
    codes: &[u32],
    weights: &[u32],
    image_scales: &[f32],
    image_zeros: &[i32],
    col_scales: &[f32],
    scale: &[f32],
    shift: &[f32],
    y: &mut [F],
    n_outputs: u32,
    row_words: u32,
    steps: ConvGeometry,
    #[comptime] epilogue: EpilogueFlags,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS as u32;
    if at < n_outputs {
        let pixels = steps.out_height * steps.out_width;
        let (pixel, channel) = (at % pixels, at / pixels % steps.channels);
        let image = at / pixels / steps.channels;
        let zero = image_zeros[image as usize];
        let mut sum = 0i32;
        let mut n = 0u32;
        while n < steps.kernel_height * steps.kernel_width {
            let (ky, kx) = (n / steps.kernel_width, n % steps.kernel_width);
            let code = tap(codes, image, channel, ky, kx, pixel, u32::reinterpret(zero), &steps);
            let weight = weights[(channel * row_words + n / 4u32) as usize] >> (n % 4u32 * 8u32);
            sum += (signed(code) - zero) * signed(weight & 0xffu32);
            n += 1u32;
        }
        let channel = channel as usize;
        let value = f32::cast_from(sum) * image_scales[image as usize] * col_scales[channel];
        write_at::<F>(value, channel, at as usize, scale, shift, y, epilogue);
    }
}

/// Returns a byte as a signed number.
#[cube]
fn signed(byte: u32) -> i32 {
    i32::reinterpret(byte ^ 0x80u32) - 128i32
}

//! Depthwise convolutions, computed tap by tap with channels last.
#![allow(unsafe_code)]

use super::image::Image;
use super::packed::swap_inner;
use crate::float::{Conv2dShape, on_path};
use crate::simd::{self, SEGMENT, TapBlocks, TapRow};
use crate::weights::{Int8Weights, to_rows};
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::SimdLevel;
use std::ops::Range;

/// The weights of a depthwise convolution, unpacked for one call.
pub(crate) struct Taps {
    /// `[tap, channel]`.
    weights: Vec<i32>,
    /// The sum of the weights of each channel, to be multiplied by the zero point of an image.
    sums: Vec<i32>,
    scales: Vec<f32>,
}

/// Computes `(sum − zero · weight sum) · scale · weight scale` of each channel.
fn finish(
    level: SimdLevel,
    sums: &[i32],
    of_image: (i32, f32),
    weight_sums: &[i32],
    scales: &[f32],
    values: &mut [f32],
) {
    #[inline(always)]
    fn body(sums: &[i32], of_image: (i32, f32), weight_sums: &[i32], scales: &[f32], values: &mut [f32]) {
        let (zero, scale) = of_image;
        for (((value, sum), weights), of_weights) in values.iter_mut().zip(sums).zip(weight_sums).zip(scales) {
            *value = (sum - zero * weights) as f32 * scale * of_weights;
        }
    }
    on_path!(
        level,
        body(sums: &[i32], of_image: (i32, f32), weight_sums: &[i32], scales: &[f32], values: &mut [f32])
    );
}

impl Taps {
    pub(crate) fn new(weights: &impl Int8Weights) -> Self {
        let (n_channels, n_taps) = (weights.n_out(), weights.n_in());
        let codes: Vec<i32> = to_rows(weights).into_iter().map(i32::from).collect();
        Self {
            sums: (0..n_channels).map(|c| codes[c * n_taps..(c + 1) * n_taps].iter().sum()).collect(),
            weights: swap_inner(&codes, n_channels, n_taps),
            scales: (0..n_channels).map(|c| weights.scale(c)).collect(),
        }
    }

    /// Computes the outputs `[pixel, channel]` of some pixels into `values`.
    pub(crate) fn convolve(
        &self,
        level: SimdLevel,
        shape: &Conv2dShape,
        image: &Image,
        pixels: Range<usize>,
        values: &mut Vec<f32>,
    ) {
        let n = shape.n_out;
        values.resize(pixels.len() * n, 0.0);
        let mut sums = vec![0; n];
        each_pixel(shape, image, pixels, &mut |index, taps| {
            simd::depthwise(level, taps, &self.weights, &mut sums);
            let values = &mut values[index * n..][..n];
            finish(level, &sums, (image.zero, image.scale), &self.sums, &self.scales, values);
        });
    }
}

/// Convolves the pixels of `codes` `[pixel, channel]`, starting at `first`.
///
/// # Panics
/// If the level has no kernel: see [`simd::has_depthwise_row`].
pub(crate) fn convolve_to_codes(
    level: SimdLevel,
    (shape, image): (&Conv2dShape, &Image),
    blocks: &TapBlocks,
    mut first: usize,
    mut codes: &mut [u8],
) {
    let ([_, out_width], [height, width]) = (shape.out_size(image.size), image.size);
    let padding = vec![image.zero as u8; width.max(1) * shape.n_in];
    let [top, left] = [shape.padding[0][0], shape.padding[1][0]];
    let mut lines = Vec::new();
    while !codes.is_empty() {
        let [row, column] = [first / out_width, first % out_width];
        let rows: Vec<&[u8]> = (0..shape.kernel[0])
            .map(|ky| (row * shape.stride[0] + ky * shape.dilation[0]).checked_sub(top).filter(|y| *y < height))
            .map(|y| y.map_or(&padding[..width * shape.n_in], |y| image.pixels(y * width..(y + 1) * width)))
            .collect();
        let row = TapRow {
            rows: &rows,
            padding: &padding[..shape.n_in],
            first: (column * shape.stride[1]) as isize - left as isize,
            stride: shape.stride[1],
            dilation: shape.dilation[1],
        };
        if lines.is_empty() {
            lines = row.lines(blocks);
        }
        let n = (out_width - column).min(SEGMENT).min(codes.len() / shape.n_out);
        let (now, later) = codes.split_at_mut(n * shape.n_out);
        simd::depthwise_row(level, &row, blocks, &mut lines, now);
        (first, codes) = (first + n, later);
    }
}

/// Passes the input codes of each tap of some pixels to `each`, with the index of the pixel.
fn each_pixel(shape: &Conv2dShape, image: &Image, pixels: Range<usize>, each: &mut dyn FnMut(usize, &[&[u8]])) {
    let (kernel, [_, out_width]) = (shape.kernel, shape.out_size(image.size));
    let (padding, mut taps) = (vec![image.zero as u8; shape.n_out], Vec::new());
    for (index, pixel) in pixels.enumerate() {
        let at = [pixel / out_width, pixel % out_width];
        taps.clear();
        for ky in 0..kernel[0] {
            for kx in 0..kernel[1] {
                let source = shape.source(at, [ky, kx], image.size);
                taps.push(source.map_or(&padding[..], |source| image.pixel(source)));
            }
        }
        each(index, &taps);
    }
}

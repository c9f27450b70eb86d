//! Depthwise convolutions, computed tap by tap with channels last.
#![allow(unsafe_code)]

use super::image::Image;
use super::packed::swap_inner;
use crate::float::{Conv2dShape, on_path};
use crate::simd::{self, TapBlocks};
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
            true
        });
    }
}

/// Convolves some pixels to codes `[pixel, channel]`. Returns false if the level has no kernel for it.
pub(crate) fn convolve_to_codes(
    level: SimdLevel,
    (shape, image): (&Conv2dShape, &Image),
    blocks: &TapBlocks,
    pixels: Range<usize>,
    codes: &mut [u8],
) -> bool {
    let n = shape.n_out;
    each_pixel(shape, image, pixels, &mut |index, taps| {
        simd::depthwise_to_codes(level, taps, blocks, &mut codes[index * n..][..n])
    })
}

/// Passes the input codes of each tap of some pixels to `each`, with the index of the pixel, until it returns false.
fn each_pixel(
    shape: &Conv2dShape,
    image: &Image,
    pixels: Range<usize>,
    each: &mut dyn FnMut(usize, &[&[u8]]) -> bool,
) -> bool {
    let (kernel, [_, out_width]) = (shape.kernel, shape.out_size(image.size));
    let (padding, mut taps) = (vec![image.zero as u8; shape.n_out], Vec::new());
    pixels.enumerate().all(|(index, pixel)| {
        let at = [pixel / out_width, pixel % out_width];
        taps.clear();
        for ky in 0..kernel[0] {
            for kx in 0..kernel[1] {
                let source = shape.source(at, [ky, kx], image.size);
                taps.push(source.map_or(&padding[..], |source| image.pixel(source)));
            }
        }
        each(index, &taps)
    })
}

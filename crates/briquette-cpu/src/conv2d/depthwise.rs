//! Depthwise convolutions, computed tap by tap with channels last.
#![allow(unsafe_code)]

use super::image::Image;
use super::packed::swap_inner;
use crate::float::{Conv2dShape, on_path};
use crate::simd;
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
        let (n, kernel, [_, out_width]) = (shape.n_out, shape.kernel, shape.out_size(image.size));
        values.resize(pixels.len() * n, 0.0);
        let (padding, mut sums, mut rows) = (vec![image.zero as u8; n], vec![0; n], Vec::new());
        for (pixel, values) in pixels.zip(values.chunks_exact_mut(n)) {
            let at = [pixel / out_width, pixel % out_width];
            rows.clear();
            for ky in 0..kernel[0] {
                for kx in 0..kernel[1] {
                    let source = shape.source(at, [ky, kx], image.size);
                    rows.push(source.map_or(&padding[..], |source| image.pixel(source)));
                }
            }
            simd::depthwise(level, &rows, &self.weights, &mut sums);
            finish(level, &sums, (image.zero, image.scale), &self.sums, &self.scales, values);
        }
    }
}

//! Depthwise convolutions, computed tap by tap with channels last.

use super::image::Image;
use super::packed::swap_inner;
use crate::float::Conv2dShape;
use crate::simd;
use crate::weights::{Int8Weights, to_rows};
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
            rows.clear();
            rows.extend((0..kernel[0] * kernel[1]).map(|tap| {
                let at = [tap / kernel[1], tap % kernel[1]];
                let source = shape.source([pixel / out_width, pixel % out_width], at, image.size);
                source.map_or(&padding[..], |source| image.pixel(source))
            }));
            simd::depthwise(level, &rows, &self.weights, &mut sums);
            for (c, value) in values.iter_mut().enumerate() {
                *value = (sums[c] - image.zero * self.sums[c]) as f32 * image.scale * self.scales[c];
            }
        }
    }
}

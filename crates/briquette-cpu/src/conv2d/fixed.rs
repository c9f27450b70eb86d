//! Convolutions of codes to codes, with grids that are fixed before the network runs.

use super::code_product::CodeProduct;
use super::depthwise::convolve_to_codes;
use super::epilogue::ConvEpilogue;
use super::image::Image;
use super::packed::ConvPanels;
use super::unscaled::Unscaled;
use super::{Conv2dShape, How, ImageConv, PAYS, PackedConv2d, by_threads};
use crate::activations::CodeGrid;
use crate::image_codes::{ImageCodes, requantize};
use crate::panels::threads_for;
use crate::simd::{CodeRounding, TapBlocks, has_depthwise_row};
use crate::weights::Int8Weights;
use briquette_core::simd::SimdLevel;

/// A convolution of codes, and the grid of its outputs.
#[derive(Debug, Clone, Copy)]
pub struct FixedConv2d<'a> {
    /// The packed weights.
    pub weights: &'a PackedConv2d,
    /// Stride, padding, dilation and channels.
    pub shape: Conv2dShape,
    /// The factor of each output channel; 1 if absent.
    pub factors: Option<&'a [f32]>,
    /// The summand of each output channel; 0 if absent.
    pub bias: Option<&'a [f32]>,
    /// The grid of the outputs.
    pub grid: CodeGrid,
    /// The lowest and the highest code of the outputs; the code of 0 is the lowest after a ReLU.
    pub bounds: [u8; 2],
}

/// Convolves images of codes to images of codes: `clamp(round((factor · Σ w·x + bias) / scale) + zero)`, where `w` and `x`
/// are the values of their codes.
///
/// Sums of products are exact. Padding is exactly zero.
///
/// # Panics
/// If the channels or the lengths of factors and bias do not match the shape, or the shape does not match the weights.
pub fn fixed_conv2d(level: SimdLevel, x: &ImageCodes, conv: &FixedConv2d) -> ImageCodes {
    match &conv.weights.panels {
        ConvPanels::Dense(weights) => each_image(level, x, conv, weights),
        ConvPanels::Sparse(weights) => each_image(level, x, conv, weights),
    }
}

fn each_image<W: Int8Weights>(level: SimdLevel, x: &ImageCodes, conv: &FixedConv2d, weights: &W) -> ImageCodes {
    let (shape, [n_images, n_channels, height, width]) = (conv.shape, x.dims);
    assert_eq!(conv.weights.dims, shape.weight_dims(), "weights and {shape:?}");
    assert_eq!(n_channels, shape.n_in, "channels of the input of {shape:?}");
    for given in [conv.factors, conv.bias].into_iter().flatten() {
        assert_eq!(given.len(), shape.n_out, "factors or a bias of {shape:?}");
    }
    let [out_height, out_width] = shape.out_size([height, width]);
    let mut y = ImageCodes::new([n_images, shape.n_out, out_height, out_width], conv.grid);
    let n_codes = shape.n_out * out_height * out_width;
    if n_codes == 0 {
        return y;
    }
    let scale = x.grid.scale / conv.grid.scale;
    let factor = |channel: usize| conv.factors.map_or(1.0, |factors| factors[channel]);
    let factors: Vec<f32> = (0..shape.n_out).map(|channel| scale * weights.scale(channel) * factor(channel)).collect();
    let weights = &Unscaled(weights);
    let bias = |channel: usize| conv.bias.map_or(0.0, |bias| bias[channel] / conv.grid.scale);
    let shifts: Vec<f32> = (0..shape.n_out).map(|channel| bias(channel) + f32::from(conv.grid.zero)).collect();
    let (zero, bounds) = (i32::from(x.grid.zero), conv.bounds.map(f32::from));
    let rounding = CodeRounding { factors: &factors, shifts: &shifts, zero, bounds };
    let n_threads = threads_for(shape.depth() * n_codes, PAYS);
    // The scales of the inputs and of the weights are part of the factor.
    let image = |index| Image::of_codes(x.image(index), n_channels, [height, width], (1.0, zero));
    let images = (0..n_images).map(image).zip(y.codes.chunks_exact_mut(n_codes));
    if shape.is_depthwise() && has_depthwise_row(level) {
        let blocks = TapBlocks::new(conv.weights.by_tap(), &rounding);
        for (image, y) in images {
            let convolve = |first: usize, out: &mut [u8], _: usize| {
                convolve_to_codes(level, (&shape, &image), &blocks, first, out)
            };
            by_threads(0, y, [shape.n_out, n_threads], &convolve);
        }
    } else if let Some(product) = CodeProduct::of(level, conv.weights, shape) {
        for (image, y) in images {
            let image = product.prepared(image);
            let convolve = |first: usize, out: &mut [u8], _: usize| product.convolve(&image, &rounding, first, out);
            by_threads(0, y, [shape.n_out, n_threads], &convolve);
        }
    } else {
        let how = How::of(&shape, weights);
        for (image, y) in images {
            let epilogue = ConvEpilogue::default();
            let conv = ImageConv { level, shape: &shape, weights, image: &image, how: &how, epilogue };
            by_threads(0, y, [shape.n_out, n_threads], &|first, out: &mut [u8], n_threads| {
                conv.round_pixels(&rounding, first, out, n_threads)
            });
        }
    }
    y
}

impl<W: Int8Weights> ImageConv<'_, W> {
    /// Computes the pixels of `out` as floats, starting at `first`, and rounds them to codes.
    fn round_pixels(&self, rounding: &CodeRounding, first: usize, out: &mut [u8], n_threads: usize) {
        let n_out = self.shape.n_out;
        self.each_tile(first, out, n_threads, |values, channels, out| {
            let rounding = rounding.of(channels.clone());
            requantize(self.level, values, &rounding, &mut out[channels.start..], n_out);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv2d::tests::kinds;

    fn numbers(n: usize, seed: u64) -> impl Iterator<Item = u64> {
        (0..n as u64).map(move |i| (i + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33)
    }

    /// Computes all outputs by definition.
    fn reference(x: &ImageCodes, conv: &FixedConv2d, codes: &[i8], scales: &[f32]) -> Vec<u8> {
        let (shape, [n_images, _, height, width]) = (conv.shape, x.dims);
        let [out_height, out_width] = shape.out_size([height, width]);
        let (n_in, n_out) = (shape.n_in / shape.groups, shape.n_out / shape.groups);
        let n_taps = shape.kernel[0] * shape.kernel[1];
        let output = |at: usize| {
            let (channel, pixel) = (at % shape.n_out, at / shape.n_out % (out_height * out_width));
            let image = x.image(at / (shape.n_out * out_height * out_width));
            let term = |(input, tap): (usize, usize)| {
                let at = [pixel / out_width, pixel % out_width];
                let tap_at = [tap / shape.kernel[1], tap % shape.kernel[1]];
                shape.source(at, tap_at, [height, width]).map_or(0, |source| {
                    let code = image[source * shape.n_in + channel / n_out * n_in + input];
                    let weight = codes[(channel * n_in + input) * n_taps + tap];
                    (i32::from(code) - i32::from(x.grid.zero)) * i32::from(weight)
                })
            };
            let sum: i32 = (0..n_in).flat_map(|input| (0..n_taps).map(move |tap| (input, tap))).map(term).sum();
            let factor = conv.factors.map_or(1.0, |factors| factors[channel]);
            let value = sum as f32 * (x.grid.scale / conv.grid.scale * scales[channel] * factor);
            let steps =
                value + (conv.bias.map_or(0.0, |bias| bias[channel]) / conv.grid.scale + f32::from(conv.grid.zero));
            let [low, high] = conv.bounds.map(f32::from);
            steps.round_ties_even().clamp(low, high) as u8
        };
        (0..n_images * shape.n_out * out_height * out_width).map(output).collect()
    }

    fn agrees(shape: Conv2dShape, n_images: usize, [height, width]: [usize; 2], seed: u64) {
        let codes: Vec<i8> = numbers(shape.n_out * shape.depth(), seed).map(|bits| bits as i8).collect();
        let scales: Vec<f32> = (0..shape.n_out).map(|i| 0.01 + i as f32 * 1e-4).collect();
        let bias: Vec<f32> = (0..shape.n_out).map(|i| i as f32 - 2.0).collect();
        let mut x = ImageCodes::new([n_images, shape.n_in, height, width], CodeGrid { scale: 0.02, zero: 100 });
        x.codes.iter_mut().zip(numbers(1 << 20, seed ^ 5)).for_each(|(code, bits)| *code = bits as u8);
        let factors: Vec<f32> = (0..shape.n_out).map(|i| 0.7 + i as f32 * 0.01).collect();
        // On the smallest grid, steps exceed numbers of 32 bits.
        for (bounds, is_sparse, scale) in [([0, 255], false, 0.3), ([90, 200], true, 0.3), ([90, 200], false, 1e-12)] {
            let factors = is_sparse.then_some(&*factors);
            let weights = PackedConv2d::new(&codes, &scales, shape.weight_dims(), is_sparse).unwrap();
            let grid = CodeGrid { scale, zero: 90 };
            let conv = FixedConv2d { weights: &weights, shape, factors, bias: Some(&bias), grid, bounds };
            let expected = reference(&x, &conv, &codes, &scales);
            assert!(expected.is_empty() || expected.iter().any(|code| *code != expected[0]), "{shape:?}");
            for level in SimdLevel::available() {
                assert_eq!(fixed_conv2d(level, &x, &conv).codes, expected, "{level} {bounds:?} {shape:?}");
            }
        }
    }

    #[test]
    fn every_kind_of_convolution_agrees_with_its_definition() {
        for (seed, (shape, n_images, size)) in (1..).zip(kinds()) {
            agrees(shape, n_images, size, seed);
        }
    }
}

//! Images of 8-bit codes on grids that are fixed before a network runs, with channels last.
#![allow(unsafe_code)]

use crate::activations::CodeGrid;
use crate::conv2d::{Conv2dShape, channels_last};
use crate::float::on_path;
use crate::simd::{self, CodeRounding, rounded};
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::SimdLevel;

/// Pixels that are quantized together.
const PIXELS: usize = 256;

/// Codes of images, in the order `[image, height, width, channel]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageCodes {
    /// The codes.
    pub codes: Vec<u8>,
    /// Images, channels, height and width.
    pub dims: [usize; 4],
    /// The grid of all codes.
    pub grid: CodeGrid,
}

impl ImageCodes {
    /// Returns images of code 0.
    pub(crate) fn new(dims: [usize; 4], grid: CodeGrid) -> Self {
        Self { codes: vec![0; dims.iter().product()], dims, grid }
    }

    /// Rounds images `[image, channel, height, width]` to a grid: `clamp(round(x / scale) + zero)`. NaN becomes the lowest code.
    ///
    /// # Panics
    /// If the number of values does not match `dims`.
    pub fn of_floats(level: SimdLevel, x: &[f32], dims: [usize; 4], grid: CodeGrid) -> Self {
        let mut found = Self::new(dims, grid);
        assert_eq!(x.len(), found.codes.len(), "values for {dims:?}");
        let [_, n_channels, height, width] = dims;
        let n_pixels = height * width;
        let n_values = (n_channels * n_pixels).max(1);
        for (x, codes) in x.chunks_exact(n_values).zip(found.codes.chunks_exact_mut(n_values)) {
            for (index, codes) in codes.chunks_mut((PIXELS * n_channels).max(1)).enumerate() {
                let pixels = index * PIXELS..n_pixels.min((index + 1) * PIXELS);
                let quantize = |values: &[f32], plane: &mut [u8]| quantize(level, values, grid, plane);
                channels_last(level, quantize, |channel| &x[channel * n_pixels..][pixels.clone()], n_channels, codes);
            }
        }
        found
    }

    /// Returns the values `[image, channel, height, width]`.
    pub fn to_floats(&self) -> Vec<f32> {
        let [_, n_channels, height, width] = self.dims;
        let n_pixels = height * width;
        let mut values = vec![0.0; self.codes.len()];
        let n_values = (n_channels * n_pixels).max(1);
        for (codes, values) in self.codes.chunks_exact(n_values).zip(values.chunks_exact_mut(n_values)) {
            for (pixel, codes) in codes.chunks_exact(n_channels.max(1)).enumerate() {
                for (channel, &code) in codes.iter().enumerate() {
                    values[channel * n_pixels + pixel] = self.grid.value(code);
                }
            }
        }
        values
    }

    /// Returns the codes of an image.
    pub(crate) fn image(&self, index: usize) -> &[u8] {
        let n_codes: usize = self.dims[1..].iter().product();
        &self.codes[index * n_codes..(index + 1) * n_codes]
    }

    /// Adds two images on other grids: `clamp(round((a + b) / scale) + zero)`, to codes within `bounds`.
    ///
    /// # Panics
    /// If the extents differ.
    #[must_use]
    pub fn add(&self, level: SimdLevel, other: &Self, grid: CodeGrid, bounds: [u8; 2]) -> Self {
        assert_eq!(self.dims, other.dims, "extents of a sum");
        let mut sum = Self::new(self.dims, grid);
        let factors = [self, other].map(|side| side.grid.scale / grid.scale);
        let zeros: f32 =
            [self, other].iter().zip(factors).map(|(side, factor)| f32::from(side.grid.zero) * factor).sum();
        let shift = f32::from(grid.zero) - zeros;
        add(level, [&self.codes, &other.codes], factors, shift, bounds, &mut sum.codes);
        sum
    }

    /// Joins images along their channels on one grid.
    ///
    /// # Panics
    /// If there is no image, or other extents differ.
    pub fn join(level: SimdLevel, parts: &[&Self], grid: CodeGrid) -> Self {
        let [n_images, _, height, width] = parts[0].dims;
        let n_channels = parts.iter().map(|part| part.dims[1]).sum();
        let mut joined = Self::new([n_images, n_channels, height, width], grid);
        let mut first = 0;
        for part in parts {
            let n = part.dims[1];
            assert_eq!(part.dims, [n_images, n, height, width], "extents of joined images");
            let factor = part.grid.scale / grid.scale;
            let shift = f32::from(grid.zero) - f32::from(part.grid.zero) * factor;
            let pixels = part.codes.chunks_exact(n.max(1)).zip(joined.codes.chunks_exact_mut(n_channels.max(1)));
            for (from, to) in pixels {
                let to = &mut to[first..first + n];
                if part.grid == grid { to.copy_from_slice(from) } else { rescale(level, from, factor, shift, to) }
            }
            first += n;
        }
        joined
    }

    /// Computes the maximum of each window. Padding is below every value; a window of padding alone has code 0.
    #[must_use]
    pub fn max_pool(&self, level: SimdLevel, shape: &Conv2dShape) -> Self {
        let [n_images, n_channels, height, width] = self.dims;
        let [out_height, out_width] = shape.out_size([height, width]);
        let mut found = Self::new([n_images, n_channels, out_height, out_width], self.grid);
        let n_codes = (n_channels * out_height * out_width).max(1);
        for (index, out) in found.codes.chunks_exact_mut(n_codes).enumerate() {
            max_pool(level, self.image(index), [height, width], n_channels, shape, out);
        }
        found
    }

    /// Computes the mean of each channel, `[image, channel, 1, 1]`.
    #[must_use]
    pub fn mean(&self, grid: CodeGrid) -> Self {
        let [n_images, n_channels, height, width] = self.dims;
        let mut found = Self::new([n_images, n_channels, 1, 1], grid);
        let n_pixels = height * width;
        let mut sums = vec![0_u32; n_channels];
        for (index, out) in found.codes.chunks_exact_mut(n_channels.max(1)).enumerate() {
            sums.fill(0);
            for pixel in self.image(index).chunks_exact(n_channels.max(1)) {
                sums.iter_mut().zip(pixel).for_each(|(sum, &code)| *sum += u32::from(code));
            }
            for (sum, out) in sums.iter().zip(out) {
                let mean = (*sum as f32 / n_pixels as f32 - f32::from(self.grid.zero)) * self.grid.scale;
                *out = grid.code(mean);
            }
        }
        found
    }
}

impl CodeGrid {
    /// Returns the value of a code.
    pub fn value(self, code: u8) -> f32 {
        (i32::from(code) - i32::from(self.zero)) as f32 * self.scale
    }

    /// Returns the code of a value.
    pub fn code(self, value: f32) -> u8 {
        rounded(value / self.scale + f32::from(self.zero), [0.0, 255.0])
    }
}

fn quantize(level: SimdLevel, values: &[f32], grid: CodeGrid, codes: &mut [u8]) {
    #[inline(always)]
    fn body(values: &[f32], grid: CodeGrid, codes: &mut [u8]) {
        let zero = f32::from(grid.zero);
        codes.iter_mut().zip(values).for_each(|(code, value)| *code = rounded(value / grid.scale + zero, [0.0, 255.0]));
    }
    on_path!(level, body(values: &[f32], grid: CodeGrid, codes: &mut [u8]));
}

/// Rounds rows with a value for each output to codes; rows of codes are `stride` apart. See [`CodeRounding`].
pub(crate) fn requantize(level: SimdLevel, values: &[f32], rounding: &CodeRounding, codes: &mut [u8], stride: usize) {
    let n = rounding.shifts.len();
    for (row, values) in values.chunks_exact(n.max(1)).enumerate() {
        simd::requantize(level, values, rounding, &mut codes[row * stride..][..n]);
    }
}

fn add(level: SimdLevel, sides: [&[u8]; 2], factors: [f32; 2], shift: f32, bounds: [u8; 2], sum: &mut [u8]) {
    #[inline(always)]
    fn body(sides: [&[u8]; 2], factors: [f32; 2], shift: f32, bounds: [f32; 2], sum: &mut [u8]) {
        for ((sum, a), b) in sum.iter_mut().zip(sides[0]).zip(sides[1]) {
            *sum = rounded(f32::from(*a) * factors[0] + f32::from(*b) * factors[1] + shift, bounds);
        }
    }
    let bounds = bounds.map(f32::from);
    on_path!(level, body(sides: [&[u8]; 2], factors: [f32; 2], shift: f32, bounds: [f32; 2], sum: &mut [u8]));
}

fn rescale(level: SimdLevel, from: &[u8], factor: f32, shift: f32, to: &mut [u8]) {
    #[inline(always)]
    fn body(from: &[u8], factor: f32, shift: f32, to: &mut [u8]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = rounded(f32::from(*from) * factor + shift, [0.0, 255.0]));
    }
    on_path!(level, body(from: &[u8], factor: f32, shift: f32, to: &mut [u8]));
}

/// Computes the maximum of each window of an image.
fn max_pool(level: SimdLevel, image: &[u8], size: [usize; 2], n_channels: usize, shape: &Conv2dShape, out: &mut [u8]) {
    #[inline(always)]
    fn body(image: &[u8], size: [usize; 2], n_channels: usize, shape: &Conv2dShape, out: &mut [u8]) {
        let [_, out_width] = shape.out_size(size);
        for (pixel, out) in out.chunks_exact_mut(n_channels.max(1)).enumerate() {
            let at = [pixel / out_width, pixel % out_width];
            for tap in 0..shape.kernel[0] * shape.kernel[1] {
                let tap = [tap / shape.kernel[1], tap % shape.kernel[1]];
                let Some(source) = shape.source(at, tap, size) else { continue };
                let codes = &image[source * n_channels..][..n_channels];
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = (*out).max(*code));
            }
        }
    }
    on_path!(
        level,
        body(image: &[u8], size: [usize; 2], n_channels: usize, shape: &Conv2dShape, out: &mut [u8])
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: CodeGrid = CodeGrid { scale: 0.05, zero: 40 };

    fn image(dims: [usize; 4], seed: usize, grid: CodeGrid) -> ImageCodes {
        let n: usize = dims.iter().product();
        ImageCodes { codes: (0..n).map(|i| ((i + seed) * 37 % 251) as u8).collect(), dims, grid }
    }

    #[test]
    fn values_become_the_nearest_codes_and_are_read_back() {
        let dims = [2, 13, 17, 19];
        let x: Vec<f32> = (0..2 * 13 * 17 * 19).map(|i| (i * 53 % 997) as f32 * 0.02 - 6.0).collect();
        let expected: Vec<f32> =
            x.iter().map(|value| (value / 0.05).round_ties_even().clamp(-40.0, 215.0) * 0.05).collect();
        for level in SimdLevel::available() {
            assert_eq!(ImageCodes::of_floats(level, &x, dims, GRID).to_floats(), expected, "{level}");
            let odd = ImageCodes::of_floats(level, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], [1, 3, 1, 1], GRID);
            assert_eq!(odd.codes, [0, 255, 0], "{level}");
        }
    }

    #[test]
    fn sums_and_joins_round_once() {
        let other = CodeGrid { scale: 0.03, zero: 7 };
        let (a, b) = (image([2, 5, 3, 4], 1, GRID), image([2, 5, 3, 4], 9, other));
        let out = CodeGrid { scale: 0.1, zero: 20 };
        let near = |found: f32, value: f32| (found - value.clamp(-2.0, 23.5)).abs() <= 0.0501;
        for level in SimdLevel::available() {
            let [plain, above] = [[0, 255], [20, 255]].map(|bounds| a.add(level, &b, out, bounds).to_floats());
            for ((x, y), (plain, above)) in a.to_floats().iter().zip(b.to_floats()).zip(plain.iter().zip(above)) {
                assert!(near(*plain, x + y) && near(above, (x + y).max(0.0)), "{level}: {x} + {y} is {plain}, {above}");
            }
            let joined = ImageCodes::join(level, &[&a, &b], GRID);
            assert_eq!(joined.dims, [2, 10, 3, 4]);
            for (pixel, codes) in joined.codes.chunks_exact(10).enumerate() {
                assert_eq!(codes[..5], a.codes[pixel * 5..][..5]);
                let expected: Vec<u8> =
                    b.codes[pixel * 5..][..5].iter().map(|&code| GRID.code(other.value(code))).collect();
                assert!(codes[5..].iter().zip(expected).all(|(a, b)| a.abs_diff(b) <= 1), "{level}");
            }
        }
    }

    #[test]
    fn pools_agree_with_their_definition() {
        let x = image([2, 6, 7, 5], 3, GRID);
        let values = x.to_floats();
        let shape = Conv2dShape { stride: [2, 2], padding: [[1; 2]; 2], ..Conv2dShape::new(6, 6, [3, 3]) };
        let planes = crate::float::max_pool2d(&values, [7, 5], &shape);
        for level in SimdLevel::available() {
            let pooled = x.max_pool(level, &shape);
            assert_eq!((pooled.dims, pooled.to_floats()), ([2, 6, 4, 3], planes.clone()), "{level}");
        }
        let means = x.mean(CodeGrid { scale: 0.02, zero: 0 }).to_floats();
        for (mean, plane) in means.iter().zip(values.chunks_exact(35)) {
            let expected = (plane.iter().sum::<f32>() / 35.0).clamp(0.0, 5.1);
            assert!((mean - expected).abs() <= 0.0101, "{mean} and {expected}");
        }
    }
}

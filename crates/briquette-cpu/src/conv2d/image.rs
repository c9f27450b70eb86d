//! The codes of one image, with channels last.

use crate::activations::{ActivationElement, ActivationGrid};
use crate::simd::{self, COLUMNS, ColumnRanges, RowQuantizer, ValueRange};
use briquette_core::simd::SimdLevel;
use rayon::prelude::*;
use std::borrow::Cow;

/// Values in a chunk when threads compute the range of an image.
const RANGE_CHUNK: usize = 1 << 16;
/// Pixels and channels that a thread transposes together: whole cache lines of codes, which stay in the L1
/// cache.
const PIXELS: usize = COLUMNS;
const CHANNELS: usize = 64;

/// Codes of one image `[height, width, channel]`, with one scale and zero point for the image or for each pixel.
pub(crate) struct Image<'a> {
    codes: Cow<'a, [u8]>,
    n_channels: usize,
    pub(crate) size: [usize; 2],
    pub(crate) scale: f32,
    pub(crate) zero: i32,
    /// Scale and zero point of each pixel; empty if the image has one.
    pub(crate) by_pixel: Vec<(f32, i32)>,
}

impl<'a> Image<'a> {
    /// Returns codes `[height, width, channel]` with one scale and zero point.
    pub(crate) fn of_codes(
        codes: impl Into<Cow<'a, [u8]>>,
        n_channels: usize,
        size: [usize; 2],
        (scale, zero): (f32, i32),
    ) -> Self {
        Self { codes: codes.into(), n_channels, size, scale, zero, by_pixel: Vec::new() }
    }

    /// Quantizes `x` `[channel, height, width]` as one row.
    pub(crate) fn new<T: ActivationElement>(
        level: SimdLevel,
        x: &[T],
        n_channels: usize,
        size: [usize; 2],
        grid: ActivationGrid,
    ) -> Self {
        let (row, n_pixels) = (row_of(level, x, grid), size[0] * size[1]);
        Self::filled_as_row(row, n_channels, size, |first, codes| {
            let pixels = first..n_pixels.min(first + PIXELS);
            let quantize = |values: &[f32], plane: &mut [u8]| simd::quantize(level, values, row, plane);
            channels_last(level, quantize, |channel| &x[channel * n_pixels..][pixels.clone()], n_channels, codes);
        })
    }

    /// Quantizes the channels of each pixel of `x` `[channel, height, width]` as a row.
    pub(crate) fn by_pixel<T: ActivationElement>(
        level: SimdLevel,
        x: &[T],
        n_channels: usize,
        size: [usize; 2],
        grid: ActivationGrid,
    ) -> Self {
        let n_pixels = size[0] * size[1];
        Self::filled_by_pixel(n_channels, size, |first, codes, scales| {
            let channel = |channel| &x[channel * n_pixels + first..][..scales.len()];
            let (mut ranges, mut scratch) = (ColumnRanges::default(), Vec::new());
            for index in 0..n_channels {
                simd::add_to_ranges(level, T::widened(channel(index), &mut scratch), &mut ranges);
            }
            let pixels = ranges.quantizers(scales.len(), grid);
            let quantize = |values: &[f32], plane: &mut [u8]| simd::quantize_columns(level, values, &pixels, plane);
            channels_last(level, quantize, channel, n_channels, codes);
            for (scale, pixel) in scales.iter_mut().zip(&pixels.columns) {
                *scale = (pixel.scale, pixel.zero);
            }
        })
    }

    /// Quantizes `x` `[height, width, channel]` as one row.
    pub(crate) fn of_last<T: ActivationElement>(
        level: SimdLevel,
        x: &[T],
        n_channels: usize,
        size: [usize; 2],
        grid: ActivationGrid,
    ) -> Self {
        let row = row_of(level, x, grid);
        Self::filled_as_row(row, n_channels, size, |first, codes| {
            let values = &x[first * n_channels..][..codes.len()];
            simd::quantize(level, T::widened(values, &mut Vec::new()), row, codes);
        })
    }

    /// Quantizes each pixel of `x` `[height, width, channel]` as a row.
    pub(crate) fn of_last_by_pixel<T: ActivationElement>(
        level: SimdLevel,
        x: &[T],
        n_channels: usize,
        size: [usize; 2],
        grid: ActivationGrid,
    ) -> Self {
        Self::filled_by_pixel(n_channels, size, |first, codes, scales| {
            let (values, mut scratch) = (&x[first * n_channels..], Vec::new());
            let pixels = values.chunks_exact(n_channels).zip(codes.chunks_exact_mut(n_channels)).zip(scales);
            for ((values, codes), scale) in pixels {
                *scale = simd::quantize_row(level, T::widened(values, &mut scratch), grid, codes);
            }
        })
    }

    /// Returns an image of one row. `fill` gets the first of up to [`PIXELS`] pixels and their codes.
    fn filled_as_row(
        row: RowQuantizer,
        n_channels: usize,
        size: [usize; 2],
        fill: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Self {
        let (mut codes, n_codes) = (vec![0; n_channels * size[0] * size[1]], (PIXELS * n_channels).max(1));
        match is_shared(codes.len()) {
            true => codes.par_chunks_mut(n_codes).enumerate().for_each(|(i, codes)| fill(i * PIXELS, codes)),
            false => codes.chunks_mut(n_codes).enumerate().for_each(|(i, codes)| fill(i * PIXELS, codes)),
        }
        Self::of_codes(codes, n_channels, size, (row.scale, row.zero))
    }

    /// Returns an image with a row for each pixel. `fill` gets the first of up to [`PIXELS`] pixels, their codes, and their scales and
    /// zero points.
    fn filled_by_pixel(
        n_channels: usize,
        size: [usize; 2],
        fill: impl Fn(usize, &mut [u8], &mut [(f32, i32)]) + Sync,
    ) -> Self {
        let n_pixels = size[0] * size[1];
        let (mut codes, mut by_pixel) = (vec![0; n_channels * n_pixels], vec![(1.0, 0); n_pixels]);
        let n_codes = (PIXELS * n_channels).max(1);
        if is_shared(codes.len()) {
            let chunks = codes.par_chunks_mut(n_codes).zip(by_pixel.par_chunks_mut(PIXELS));
            chunks.enumerate().for_each(|(i, (codes, scales))| fill(i * PIXELS, codes, scales));
        } else {
            let chunks = codes.chunks_mut(n_codes).zip(by_pixel.chunks_mut(PIXELS));
            chunks.enumerate().for_each(|(i, (codes, scales))| fill(i * PIXELS, codes, scales));
        }
        Self { by_pixel, ..Self::of_codes(codes, n_channels, size, (1.0, 0)) }
    }

    /// Returns the channels of a pixel.
    pub(crate) fn pixel(&self, index: usize) -> &[u8] {
        self.pixels(index..index + 1)
    }

    /// Returns all codes from a pixel on.
    pub(crate) fn all_from(&self, pixel: usize) -> &[u8] {
        &self.codes[pixel * self.n_channels..]
    }

    /// Returns the channels of neighbouring pixels.
    #[inline]
    pub(crate) fn pixels(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.codes[range.start * self.n_channels..range.end * self.n_channels]
    }
}

/// Returns whether threads share the values of an image.
fn is_shared(n_values: usize) -> bool {
    n_values > RANGE_CHUNK && rayon::current_num_threads() > 1
}

/// Returns the quantizer of all values of an image.
fn row_of<T: ActivationElement>(level: SimdLevel, x: &[T], grid: ActivationGrid) -> RowQuantizer {
    let value_range = |x: &[T]| simd::value_range(level, T::widened(x, &mut Vec::new()), grid);
    match is_shared(x.len()) {
        true => x.par_chunks(RANGE_CHUNK).map(value_range).reduce(ValueRange::default, ValueRange::merge).scale(grid),
        false => value_range(x).scale(grid),
    }
}

/// Quantizes neighbouring pixels, stored by channel, into `codes` `[pixel, channel]`; `quantize` does one channel.
pub(crate) fn channels_last<'a, T: ActivationElement + 'a>(
    level: SimdLevel,
    quantize: impl Fn(&[f32], &mut [u8]),
    channel: impl Fn(usize) -> &'a [T],
    n_channels: usize,
    codes: &mut [u8],
) {
    let (mut planes, mut scratch) = (vec![[0_u8; PIXELS]; CHANNELS.min(n_channels.next_multiple_of(8))], Vec::new());
    for first in (0..n_channels).step_by(CHANNELS) {
        let n = CHANNELS.min(n_channels - first);
        for (i, plane) in planes[..n].iter_mut().enumerate() {
            quantize(T::widened(channel(first + i), &mut scratch), plane);
        }
        for (block, codes) in codes.chunks_mut(64 * n_channels).enumerate() {
            for (i, planes) in planes[..n.next_multiple_of(8)].as_chunks::<8>().0.iter().enumerate() {
                let turned = simd::turn_bytes(level, planes.each_ref().map(|plane| &plane.as_chunks().0[block]));
                for (codes, turned) in codes.chunks_exact_mut(n_channels).zip(&turned) {
                    let codes = &mut codes[first + 8 * i..first + n.min(8 * i + 8)];
                    match codes.first_chunk_mut::<8>() {
                        Some(codes) => *codes = *turned,
                        None => copy_few(turned, codes),
                    }
                }
            }
        }
    }
}

/// Copies fewer than 8 codes. A call of `memcpy` takes longer than that.
#[inline]
fn copy_few(from: &[u8; 8], to: &mut [u8]) {
    let (fours, rest) = to.as_chunks_mut::<4>();
    let (twos, last) = rest.as_chunks_mut::<2>();
    let mut at = 0;
    if let [four] = fours {
        *four = [from[0], from[1], from[2], from[3]];
        at = 4;
    }
    if let [two] = twos {
        *two = [from[at], from[at + 1]];
        at += 2;
    }
    if let [one] = last {
        *one = from[at];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_codes_equal_row_codes_with_channels_last() {
        for (n_channels, size) in [(1, [1, 1]), (3, [5, 7]), (8, [4, 4]), (13, [33, 41]), (70, [9, 31])] {
            let n_pixels = size[0] * size[1];
            let x: Vec<f32> = (0..n_channels * n_pixels).map(|i| (i * 37 % 101) as f32 - 40.0).collect();
            for grid in [ActivationGrid::Symmetric, ActivationGrid::Asymmetric] {
                let row = crate::quantize_rows(SimdLevel::SCALAR, &x, 1, x.len(), grid);
                for level in SimdLevel::available() {
                    let image = Image::new(level, &x, n_channels, size, grid);
                    assert_eq!((image.scale, image.zero), (row.scales()[0], row.zeros()[0]));
                    for pixel in 0..n_pixels {
                        let expected: Vec<u8> = (0..n_channels).map(|c| row.row(0)[c * n_pixels + pixel]).collect();
                        assert_eq!(image.pixel(pixel), expected, "{level} {n_channels} {size:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn pixel_codes_equal_row_codes_of_their_channels() {
        for (n_channels, size) in [(1, [1, 1]), (3, [5, 7]), (13, [33, 41]), (70, [9, 31])] {
            let n_pixels = size[0] * size[1];
            let mut x: Vec<f32> = (0..n_channels * n_pixels).map(|i| (i * 37 % 101) as f32 - 40.0).collect();
            // Pixels of zeros, of one value that is not finite, and of magnitudes whose scale has no inverse.
            for value in [0.0, f32::NAN, f32::INFINITY, 1e-40] {
                let pixel = n_pixels * 3 / 4;
                (0..n_channels).for_each(|c| x[c * n_pixels + pixel] = value);
                let rows: Vec<f32> =
                    (0..n_pixels * n_channels).map(|i| x[i % n_channels * n_pixels + i / n_channels]).collect();
                for grid in [ActivationGrid::Symmetric, ActivationGrid::SymmetricFull, ActivationGrid::Asymmetric] {
                    let expected = crate::quantize_rows(SimdLevel::SCALAR, &rows, n_pixels, n_channels, grid);
                    for level in SimdLevel::available() {
                        let image = Image::by_pixel(level, &x, n_channels, size, grid);
                        for (at, (scale, zero)) in image.by_pixel.iter().enumerate() {
                            let row = (expected.scales()[at], expected.zeros()[at]);
                            assert_eq!((scale.to_bits(), *zero), (row.0.to_bits(), row.1), "{level} {grid:?} at {at}");
                            assert!(scale.is_nan() || image.pixel(at) == expected.row(at), "{level} {grid:?} at {at}");
                        }
                    }
                }
            }
        }
    }
}

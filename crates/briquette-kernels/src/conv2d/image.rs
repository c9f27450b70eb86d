//! The codes of one image, channels last.

use crate::path::Path;
use crate::quantize_rows::{Activation, ActivationGrid};
use crate::simd::{self, RowScale, Span};
use rayon::prelude::*;

/// Values whose span a thread finds at once.
const SPAN: usize = 1 << 16;
/// Pixels that a thread turns at once; the codes of 8 channels of them stay in the first cache.
const PIXELS: usize = 1024;

/// Codes of one image `[height, width, channel]`, of one scale and zero point.
pub(crate) struct Image {
    codes: Vec<u8>,
    n_channels: usize,
    pub(crate) size: [usize; 2],
    pub(crate) scale: f32,
    pub(crate) zero: i32,
}

impl Image {
    /// Quantizes `x` `[channel, height, width]`.
    pub(crate) fn new<T: Activation>(
        path: Path,
        x: &[T],
        n_channels: usize,
        size: [usize; 2],
        grid: ActivationGrid,
    ) -> Self {
        let n_pixels = size[0] * size[1];
        let mut codes = vec![0; x.len()];
        let span = |x: &[T]| simd::span(path, T::widened(x, &mut Vec::new()), grid);
        let is_large = x.len() > SPAN && rayon::current_num_threads() > 1;
        let row = match is_large {
            true => x.par_chunks(SPAN).map(span).reduce(Span::default, Span::merge).scale(grid),
            false => span(x).scale(grid),
        };
        let fill = |(i, codes): (usize, &mut [u8])| {
            let pixels = i * PIXELS..n_pixels.min((i + 1) * PIXELS);
            channels_last(path, row, |channel| &x[channel * n_pixels..][pixels.clone()], n_channels, codes);
        };
        let n_codes = (PIXELS * n_channels).max(1);
        match is_large {
            true => codes.par_chunks_mut(n_codes).enumerate().for_each(fill),
            false => codes.chunks_mut(n_codes).enumerate().for_each(fill),
        }
        Self { codes, n_channels, size, scale: row.scale, zero: row.zero }
    }

    /// The channels of a pixel.
    pub(crate) fn pixel(&self, index: usize) -> &[u8] {
        self.pixels(index..index + 1)
    }

    /// The channels of neighbouring pixels.
    pub(crate) fn pixels(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.codes[range.start * self.n_channels..range.end * self.n_channels]
    }
}

/// Quantizes neighbouring pixels, given by the channel, to `codes` `[pixel, channel]`.
fn channels_last<'a, T: Activation + 'a>(
    path: Path,
    row: RowScale,
    channel: impl Fn(usize) -> &'a [T],
    n_channels: usize,
    codes: &mut [u8],
) {
    let (mut planes, mut scratch) = ([[0_u8; PIXELS]; 8], Vec::new());
    for first in (0..n_channels).step_by(8) {
        let n = 8.min(n_channels - first);
        for (i, plane) in planes[..n].iter_mut().enumerate() {
            simd::quantize(path, T::widened(channel(first + i), &mut scratch), row, plane);
        }
        for (block, codes) in codes.chunks_mut(8 * n_channels).enumerate() {
            let at = 8 * block;
            let turned =
                turn(std::array::from_fn(|i| u64::from_le_bytes(*planes[i][at..].first_chunk().unwrap_or(&[0; 8]))));
            for (pixel, codes) in codes.chunks_exact_mut(n_channels).enumerate() {
                let codes = &mut codes[first..first + n];
                match codes.first_chunk_mut::<8>() {
                    Some(codes) => *codes = turned[pixel].to_le_bytes(),
                    None => codes.copy_from_slice(&turned[pixel].to_le_bytes()[..n]),
                }
            }
        }
    }
}

/// Transposes 8 rows of 8 bytes.
fn turn(mut rows: [u64; 8]) -> [u64; 8] {
    for (distance, mask) in [(4, 0x0000_0000_ffff_ffff), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ff)] {
        for i in (0..8).filter(|i| i & distance == 0) {
            let swapped = (rows[i] >> (8 * distance) ^ rows[i + distance]) & mask;
            rows[i] ^= swapped << (8 * distance);
            rows[i + distance] ^= swapped;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_row_with_channels_last() {
        for (n_channels, size) in [(1, [1, 1]), (3, [5, 7]), (8, [4, 4]), (13, [33, 41])] {
            let n_pixels = size[0] * size[1];
            let x: Vec<f32> = (0..n_channels * n_pixels).map(|i| (i * 37 % 101) as f32 - 40.0).collect();
            for grid in [ActivationGrid::Symmetric, ActivationGrid::Asymmetric] {
                let row = crate::quantize_rows(Path::SCALAR, &x, 1, x.len(), grid);
                for path in Path::available() {
                    let image = Image::new(path, &x, n_channels, size, grid);
                    assert_eq!((image.scale, image.zero), (row.scales()[0], row.zeros()[0]));
                    for pixel in 0..n_pixels {
                        let expected: Vec<u8> = (0..n_channels).map(|c| row.row(0)[c * n_pixels + pixel]).collect();
                        assert_eq!(image.pixel(pixel), expected, "{path} {n_channels} {size:?}");
                    }
                }
            }
        }
    }
}

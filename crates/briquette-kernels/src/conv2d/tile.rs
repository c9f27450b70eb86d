//! A tile of output pixels: its patches, and its outputs before they are transposed.

use super::Conv2dShape;
use crate::code_rows::CodeRows;
use crate::linear::multiply_panels;
use crate::path::Path;
use crate::quantize_rows::QuantizedRows;
use crate::simd::{self, Block};
use crate::weights::Int8Weights;
use std::ops::Range;

/// Codes of one image `[height, width, channel]`.
pub(crate) struct Image {
    codes: Vec<u8>,
    n_channels: usize,
    size: [usize; 2],
    scale: f32,
    zero: i32,
}

impl Image {
    /// From one row of codes `[channel, height, width]`.
    pub(crate) fn new(row: &QuantizedRows, n_channels: usize, size: [usize; 2]) -> Self {
        let (planar, n_pixels) = (row.row(0), size[0] * size[1]);
        let mut codes = vec![0; planar.len()];
        for (channel, plane) in planar.chunks_exact(n_pixels.max(1)).enumerate() {
            for (pixel, &code) in plane.iter().enumerate() {
                codes[pixel * n_channels + channel] = code;
            }
        }
        Self { codes, n_channels, size, scale: row.scales()[0], zero: row.zeros()[0] }
    }

    fn pixel(&self, index: usize) -> &[u8] {
        &self.codes[index * self.n_channels..(index + 1) * self.n_channels]
    }
}

/// Memory for a tile, used again for the next.
#[derive(Default)]
pub(crate) struct Tile {
    patches: QuantizedRows,
    /// `[pixel, output]`.
    values: Vec<f32>,
    sums: Vec<i32>,
    weights: Vec<i8>,
}

impl Tile {
    /// Fills the patches of a group, `[pixel][ky, kx, in]`.
    pub(crate) fn gather(&mut self, shape: &Conv2dShape, image: &Image, group: usize, pixels: Range<usize>) {
        let n_in = shape.n_in / shape.groups;
        let [_, out_width] = shape.out_size(image.size);
        self.patches.reset(pixels.len(), shape.depth(), image.scale, image.zero);
        for (row, pixel) in pixels.enumerate() {
            let mut patch = self.patches.row_mut(row);
            for tap in 0..shape.kernel[0] * shape.kernel[1] {
                let at = [tap / shape.kernel[1], tap % shape.kernel[1]];
                let (now, later) = patch.split_at_mut(n_in);
                match shape.source([pixel / out_width, pixel % out_width], at, image.size) {
                    Some(source) => now.copy_from_slice(&image.pixel(source)[group * n_in..(group + 1) * n_in]),
                    None => now.fill(image.zero as u8),
                }
                patch = later;
            }
        }
    }

    /// Multiplies the patches by panels.
    pub(crate) fn multiply(&mut self, path: Path, weights: &impl Int8Weights, bias: Option<&[f32]>) {
        let (n_rows, n_out) = (self.patches.n_rows(), weights.n_out());
        self.values.resize(n_rows * n_out, 0.0);
        let out = Block::new(&mut self.values, n_rows, n_out);
        multiply_panels(path, self.patches.block(), weights, bias, 0, out, 1);
    }

    /// Multiplies the patches by rows of weights, those of `outputs`.
    pub(crate) fn multiply_rows(
        &mut self,
        path: Path,
        rows: &CodeRows,
        scales: &[f32],
        outputs: Range<usize>,
        bias: Option<&[f32]>,
    ) {
        let (n_rows, n_out) = (self.patches.n_rows(), outputs.len());
        self.values.resize(n_rows * n_out, 0.0);
        for (n, output) in outputs.enumerate() {
            let weights = rows.row(output, &mut self.weights);
            for row in 0..n_rows {
                let sum = simd::dot(path, self.patches.row(row), weights, self.patches.zeros()[row]);
                let value = sum as f32 * self.patches.scales()[row] * scales[output];
                self.values[row * n_out + n] = value + bias.map_or(0.0, |bias| bias[n]);
            }
        }
    }

    /// Convolves every channel with its own taps, `[tap, channel]`.
    #[expect(clippy::too_many_arguments, reason = "the parts of one convolution")]
    pub(crate) fn depthwise(
        &mut self,
        path: Path,
        shape: &Conv2dShape,
        image: &Image,
        pixels: Range<usize>,
        taps: &CodeRows,
        scales: &[f32],
        bias: Option<&[f32]>,
    ) {
        let (n, kernel, [_, out_width]) = (shape.n_out, shape.kernel, shape.out_size(image.size));
        self.values.resize(pixels.len() * n, 0.0);
        self.sums.resize(n, 0);
        let mut scratch = Vec::new();
        let all_taps: Vec<i8> = (0..shape.depth()).flat_map(|tap| taps.row(tap, &mut scratch).to_vec()).collect();
        for (pixel, values) in pixels.zip(self.values.chunks_exact_mut(n)) {
            let taps = all_taps.chunks_exact(n).enumerate().filter_map(|(tap, weights)| {
                let at = [tap / kernel[1], tap % kernel[1]];
                let source = shape.source([pixel / out_width, pixel % out_width], at, image.size)?;
                Some((image.pixel(source), weights))
            });
            simd::depthwise(path, taps, image.zero, &mut self.sums);
            for (c, (value, &sum)) in values.iter_mut().zip(&self.sums).enumerate() {
                *value = sum as f32 * image.scale * scales[c] + bias.map_or(0.0, |bias| bias[c]);
            }
        }
    }

    /// Writes the values, `[pixel, output]`, to `[output, pixel]`.
    pub(crate) fn transpose_to(&self, mut out: Block) {
        let n_out = out.n_rows();
        for channel in 0..n_out {
            for (value, values) in out.row(channel).iter_mut().zip(self.values.chunks_exact(n_out)) {
                *value = values[channel];
            }
        }
    }
}

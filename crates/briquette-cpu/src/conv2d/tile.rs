//! Patches and outputs of a tile of output pixels.

use super::image::Image;
use super::unpacked::Unpacked;
use crate::float::Conv2dShape;
use crate::linear::multiply_panels;
use crate::quantize_rows::QuantizedRows;
use crate::simd::{self, OutputBlock, PatchRows, RowBlock};
use crate::weights::Int8Weights;
use briquette_core::simd::SimdLevel;
use std::ops::Range;

/// Memory for a tile, reused for the next tile.
#[derive(Default)]
pub(crate) struct PatchTile {
    patches: QuantizedRows,
    /// `[pixel, output]`.
    pub(crate) values: Vec<f32>,
}

/// Copies a patch row by row of the kernel, where the taps of a row are neighbouring pixels: one group, no dilation of the width.
fn gather_rows(shape: &Conv2dShape, image: &Image, [row, col]: [usize; 2], patch: &mut [u8]) {
    let ([height, width], n_in, n_taps) = (image.size, shape.n_in, shape.kernel[1]);
    let [top, left] = [shape.padding[0][0], shape.padding[1][0]];
    let first = (col * shape.stride[1]).checked_sub(left).filter(|first| first + n_taps <= width);
    for (ky, run) in patch.chunks_exact_mut((n_taps * n_in).max(1)).enumerate() {
        let y = (row * shape.stride[0] + ky * shape.dilation[0]).checked_sub(top).filter(|y| *y < height);
        match (y, first) {
            (None, _) => run.fill(image.zero as u8),
            (Some(y), Some(first)) => run.copy_from_slice(image.pixels(y * width + first..y * width + first + n_taps)),
            (Some(y), None) => {
                for (kx, tap) in run.chunks_exact_mut(n_in).enumerate() {
                    match (col * shape.stride[1] + kx).checked_sub(left).filter(|x| *x < width) {
                        Some(x) => tap.copy_from_slice(image.pixel(y * width + x)),
                        None => tap.fill(image.zero as u8),
                    }
                }
            }
        }
    }
}

impl PatchTile {
    /// Fills the patches of a group, `[pixel][ky, kx, in]`.
    pub(crate) fn gather(&mut self, shape: &Conv2dShape, image: &Image, group: usize, pixels: Range<usize>) {
        let n_in = shape.n_in / shape.groups;
        let [_, out_width] = shape.out_size(image.size);
        self.patches.reset(pixels.len(), shape.depth(), image.scale, image.zero);
        for (row, pixel) in pixels.enumerate() {
            let at = [pixel / out_width, pixel % out_width];
            if let Some(source) = shape.source(at, [0, 0], image.size).filter(|_| !image.by_pixel.is_empty()) {
                self.patches.set_scale(row, image.by_pixel[source]);
            }
            let mut patch = self.patches.row_mut(row);
            if shape.groups == 1 && shape.dilation[1] == 1 {
                gather_rows(shape, image, at, patch);
                continue;
            }
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

    /// Multiplies the patches by the panels starting at `first`, up to `n_out` outputs.
    pub(crate) fn multiply(
        &mut self,
        level: SimdLevel,
        weights: &impl Int8Weights,
        first: usize,
        n_out: usize,
        n_threads: usize,
    ) {
        let rows = self.patches.block();
        self.values.resize(rows.n_rows() * n_out, 0.0);
        let out = OutputBlock::new(&mut self.values, rows.n_rows(), n_out);
        multiply_panels(level, rows, weights, None, first, out, n_threads);
    }

    /// Returns the patches of some pixels of a convolution with one group.
    pub(crate) fn gathered(&mut self, shape: &Conv2dShape, image: &Image, pixels: Range<usize>) -> PatchRows<'_> {
        self.gather(shape, image, 0, pixels);
        let RowBlock { codes, stride, .. } = self.patches.block();
        PatchRows { codes, n_rows: self.patches.n_rows(), stride, n_runs: 1, between: 0 }
    }

    /// Multiplies the patches by the weight rows of `outputs`.
    pub(crate) fn multiply_rows(&mut self, level: SimdLevel, weights: &Unpacked, outputs: Range<usize>) {
        let (n_rows, n_out) = (self.patches.n_rows(), outputs.len());
        self.values.resize(n_rows * n_out, 0.0);
        for (n, output) in outputs.enumerate() {
            for row in 0..n_rows {
                let (codes, zero) = (self.patches.row(row), self.patches.zeros()[row]);
                let sum = simd::dot(level, codes, weights.row(output), zero);
                self.values[row * n_out + n] = sum as f32 * self.patches.scales()[row] * weights.scales[output];
            }
        }
    }
}

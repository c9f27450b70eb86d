//! Patches and outputs of a tile of output pixels.

use super::image::Image;
use super::unpacked::Unpacked;
use crate::float::Conv2dShape;
use crate::linear::multiply_panels;
use crate::quantize_rows::QuantizedRows;
use crate::simd::{self, OutputBlock};
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

/// Copies a patch whose taps are contiguous, row by row.
///
/// Returns false if a tap is padding; the patch may then be partly written.
fn gather_runs(shape: &Conv2dShape, image: &Image, at: [usize; 2], patch: &mut [u8]) -> bool {
    let width = shape.kernel[1];
    let runs = patch.chunks_exact_mut((width * shape.n_in).max(1)).take(shape.kernel[0]);
    let first = |ky| shape.source(at, [ky, 0], image.size);
    let last = |ky| shape.source(at, [ky, width - 1], image.size);
    width > 0
        && runs.enumerate().all(|(ky, run)| match (first(ky), last(ky)) {
            (Some(first), Some(last)) => {
                run.copy_from_slice(image.pixels(first..last + 1));
                true
            }
            _ => false,
        })
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
            if shape.groups == 1 && shape.dilation[1] == 1 && gather_runs(shape, image, at, patch) {
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
        let n_rows = self.patches.n_rows();
        self.values.resize(n_rows * n_out, 0.0);
        let out = OutputBlock::new(&mut self.values, n_rows, n_out);
        multiply_panels(level, self.patches.block(), weights, None, first, out, n_threads);
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

//! Patches and outputs of a tile of output pixels.

use super::image::Image;
use super::unpacked::Unpacked;
use crate::float::Conv2dShape;
use crate::linear::multiply_panels;
use crate::quantize_rows::QuantizedRows;
use crate::simd::{self, CodeRounding, Kernel, OutputBlock, PANEL, PanelColumns, RoundedRows, RowBlock};
use crate::weights::Int8Weights;
use briquette_core::simd::{Isa, SimdLevel};
use std::ops::Range;

/// Memory for a tile, reused for the next tile.
#[derive(Default)]
pub(crate) struct PatchTile {
    patches: QuantizedRows,
    /// A scale and a zero point for each pixel that is read in place, which are not used.
    scales: Vec<f32>,
    zeros: Vec<i32>,
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

/// Returns whether the pixels of an image are the patches of a convolution, and the kernel of a level reads no byte after a row.
fn reads_pixels(level: SimdLevel, shape: &Conv2dShape, image: &Image) -> bool {
    let is_alone = shape.is_pointwise() && shape.stride == [1, 1] && image.by_pixel.is_empty();
    is_alone && shape.n_in.is_multiple_of(4) && level.isa() == Isa::Avx512Vnni
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

    /// Multiplies the patches of some pixels by all panels, and rounds the outputs to codes. Pixels are read in place if that is
    /// possible: see [`reads_pixels`].
    ///
    /// Returns false and does nothing if the instruction set has no kernel for it.
    pub(crate) fn multiply_to_codes(
        &mut self,
        (level, shape, image): (SimdLevel, &Conv2dShape, &Image),
        pixels: Range<usize>,
        weights: &impl Int8Weights,
        rounding: &CodeRounding,
        out: &mut [u8],
    ) -> bool {
        let rows = if reads_pixels(level, shape, image) {
            self.scales.resize(pixels.len(), 1.0);
            self.zeros.resize(pixels.len(), 0);
            let codes = image.pixels(pixels);
            RowBlock { codes, stride: shape.n_in, scales: &self.scales, zeros: &self.zeros }
        } else {
            self.gather(shape, image, 0, pixels);
            self.patches.block()
        };
        let (mut kernel, mut columns) = (Kernel::new(level, rows), PanelColumns::EMPTY);
        (0..shape.n_out.div_ceil(PANEL)).all(|index| {
            weights.columns(index, None, &mut columns);
            let mut out = RoundedRows { codes: &mut out[index * PANEL..], stride: shape.n_out };
            let rounding = rounding.of(index * PANEL..shape.n_out.min((index + 1) * PANEL));
            weights.multiply_to_codes(&mut kernel, index, (&columns, &rounding), &mut out)
        })
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

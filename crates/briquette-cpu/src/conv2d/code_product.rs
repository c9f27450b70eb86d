//! Convolutions of codes to codes by a product that reads patches in place.

use super::image::Image;
use super::packed::{ConvPanels, PackedConv2d};
use super::tile::PatchTile;
use super::{Conv2dShape, TILE};
use crate::MAX_DEPTH;
use crate::packed::PackedInt8;
use crate::simd::{CodeRounding, PANEL, PanelColumns, PatchRows, RoundedRows, has_code_product};
use briquette_core::simd::SimdLevel;
use std::borrow::Cow;
use std::ops::Range;

/// Codes that the kernel reads together.
const GROUP: usize = 4;

/// A convolution with one group, for a level with a kernel.
pub(super) struct CodeProduct<'a> {
    level: SimdLevel,
    weights: &'a PackedInt8,
    /// The convolution of the image with its padding, if patches are read in place.
    in_place: Option<Conv2dShape>,
    /// Whether each run of a patch in place has a multiple of 4 codes.
    has_whole_groups: bool,
    /// The convolution of the image as it is.
    shape: Conv2dShape,
}

impl<'a> CodeProduct<'a> {
    /// Returns `None` if the level has no kernel for the weights.
    pub(super) fn of(level: SimdLevel, weights: &'a PackedConv2d, shape: Conv2dShape) -> Option<Self> {
        let ConvPanels::Dense(dense) = &weights.panels else { return None };
        if shape.groups != 1 || !has_code_product(level) {
            return None;
        }
        // The kernel reads groups of four codes. The weights of codes after the end of a run are 0.
        let n_run = shape.kernel[1] * shape.n_in;
        let has_whole_groups = n_run.is_multiple_of(GROUP);
        let can_read = shape.dilation[1] == 1 && shape.kernel[0] * n_run.next_multiple_of(GROUP) <= MAX_DEPTH;
        let in_place = can_read.then_some(Conv2dShape { padding: [[0; 2]; 2], ..shape });
        let weights = if in_place.is_some() && !has_whole_groups { weights.with_whole_groups() } else { dense };
        Some(Self { level, weights, in_place, has_whole_groups, shape })
    }

    /// Returns the image with its padding, as [`Self::convolve`] reads it.
    ///
    /// A few codes follow the last pixel if the kernel reads them.
    pub(super) fn prepared<'i>(&self, image: Image<'i>) -> Image<'i> {
        let ([[top, bottom], [left, right]], [height, width]) = (self.shape.padding, image.size);
        let size = [height + top + bottom, width + left + right];
        if self.in_place.is_none() || size == image.size && self.has_whole_groups {
            return image;
        }
        let n_in = self.shape.n_in;
        let mut codes = vec![image.zero as u8; size[0] * size[1] * n_in + GROUP - 1];
        for (y, row) in codes.chunks_exact_mut((size[1] * n_in).max(1)).skip(top).take(height).enumerate() {
            row[left * n_in..(left + width) * n_in].copy_from_slice(image.pixels(y * width..(y + 1) * width));
        }
        Image::of_codes(Cow::Owned(codes), n_in, size, (image.scale, image.zero))
    }

    /// Computes the pixels of `out` `[pixel, channel]`, starting at `first`.
    pub(super) fn convolve(&self, image: &Image, rounding: &CodeRounding, mut first: usize, out: &mut [u8]) {
        let n_out = self.shape.n_out;
        let [_, out_width] = self.in_place.unwrap_or(self.shape).out_size(image.size);
        // Whole rows of pixels, if they are short.
        let size = if out_width < TILE { TILE / out_width * out_width } else { TILE };
        let mut tile = PatchTile::default();
        for out in out.chunks_mut(size * n_out) {
            let pixels = first..first + out.len() / n_out;
            first = pixels.end;
            match &self.in_place {
                Some(shape) => self.multiply(&in_place(shape, image, pixels), rounding, out),
                None => self.multiply(&[(0, tile.gathered(&self.shape, image, pixels))], rounding, out),
            }
        }
    }

    /// Multiplies patches by all panels. Each block of patches comes with the pixel of `out` that it starts at.
    fn multiply(&self, blocks: &[(usize, PatchRows)], rounding: &CodeRounding, out: &mut [u8]) {
        let (n_out, mut columns) = (self.shape.n_out, PanelColumns::EMPTY);
        for first in (0..n_out).step_by(PANEL) {
            let rounding = rounding.of(first..n_out.min(first + PANEL));
            for (pixel, rows) in blocks {
                let mut out = RoundedRows { codes: &mut out[pixel * n_out + first..], stride: n_out };
                self.weights.multiply_to_codes(self.level, rows, first / PANEL, (&mut columns, &rounding), &mut out);
            }
        }
    }
}

/// Returns the patches of some pixels in place, one block for each row of outputs.
fn in_place<'a>(shape: &Conv2dShape, image: &'a Image, pixels: Range<usize>) -> Vec<(usize, PatchRows<'a>)> {
    let ([_, out_width], [_, width], n_in) = (shape.out_size(image.size), image.size, shape.n_in);
    let is_alone = shape.is_pointwise() && shape.stride == [1, 1];
    let (mut blocks, mut at) = (Vec::new(), pixels.start);
    while at < pixels.end {
        let [row, column] = [at / out_width, at % out_width];
        let n_rows = if is_alone { pixels.len() } else { (out_width - column).min(pixels.end - at) };
        let source = row * shape.stride[0] * width + column * shape.stride[1];
        let patches = PatchRows {
            codes: image.all_from(source),
            n_rows,
            stride: shape.stride[1] * n_in,
            n_runs: shape.kernel[0],
            between: shape.dilation[0] * width * n_in,
        };
        blocks.push((at - pixels.start, patches));
        at += n_rows;
    }
    blocks
}

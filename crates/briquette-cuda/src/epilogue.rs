//! The epilogue of a product, which converts sums to outputs.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

/// The steps after `v = (sum - zero * column sum) * row scale * column scale`.
///
/// Scale and shift, addition to `y`, and ReLU, like `ConvEpilogue` of `briquette-cpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EpilogueFlags {
    /// Whether there is a factor for each column.
    pub scale: bool,
    /// Whether there is a summand for each column.
    pub shift: bool,
    /// Whether to add outputs to the values in `y`.
    pub adds: bool,
    /// Whether to set negative outputs to 0.
    pub relu: bool,
}

/// The positions of outputs. Row `r` of the product is row `r % image_rows` of image `r / image_rows`, and has scale
/// `r / scale_rows`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct OutputLayout {
    /// Rows per image.
    pub image_rows: u32,
    /// Rows that share a scale.
    pub scale_rows: u32,
    /// Stride between images, in outputs.
    pub image_stride: u32,
    /// Stride between rows, in outputs.
    pub row_stride: u32,
    /// Stride between columns, in outputs.
    pub col_stride: u32,
    /// The index of the product's first row, counted over all images.
    pub first_row: u32,
    /// The first column to compute. Earlier columns, also of the weights, belong to other products.
    pub first_col: u32,
}

/// Returns the index of a row's scale, and the position of its first output.
#[cube]
pub fn place(layout: &OutputLayout, row: usize) -> (usize, usize) {
    let row = layout.first_row as usize + row;
    let (image, pixel) = (row / layout.image_rows as usize, row % layout.image_rows as usize);
    (row / layout.scale_rows as usize, image * layout.image_stride as usize + pixel * layout.row_stride as usize)
}

/// Writes the output of column `col` from its value before [`EpilogueFlags`]; `first` is the position of the
/// row's first output.
#[cube]
pub fn write<F: Float>(
    value: f32,
    col: usize,
    first: usize,
    scale: &[f32],
    shift: &[f32],
    y: &mut [F],
    layout: &OutputLayout,
    #[comptime] epilogue: EpilogueFlags,
) {
    write_at::<F>(value, col, first + col * layout.col_stride as usize, scale, shift, y, epilogue);
}

/// Writes output `at` with the factor and summand of column `col`.
#[cube]
pub fn write_at<F: Float>(
    value: f32,
    col: usize,
    at: usize,
    scale: &[f32],
    shift: &[f32],
    y: &mut [F],
    #[comptime] epilogue: EpilogueFlags,
) {
    let mut value = value;
    if comptime!(epilogue.scale) {
        value *= scale[col];
    }
    if comptime!(epilogue.shift) {
        value += shift[col];
    }
    if comptime!(epilogue.adds) {
        value += f32::cast_from(y[at]);
    }
    if comptime!(epilogue.relu) && value < 0.0f32 {
        value = 0.0f32;
    }
    y[at] = F::cast_from(value);
}

/// Returns `(sum - zero * column sum) * row scale * column scale`.
#[cube]
pub fn scaled(sum: i32, zero: i32, row_scale: f32, col_sum: i32, col_scale: f32) -> f32 {
    f32::cast_from(sum - zero * col_sum) * row_scale * col_scale
}

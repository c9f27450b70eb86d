//! What is done to the sums of a product before they are written.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

/// Which steps follow `v = (sum - zero * column sum) * row scale * column scale`: `y = v * scale + shift`, added to what `y`
/// holds, and negatives 0. See `ConvEpilogue` of `briquette-cpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EpilogueFlags {
    /// Whether each column has a factor.
    pub scale: bool,
    /// Whether each column has a term.
    pub shift: bool,
    /// Whether outputs are added to what `y` holds.
    pub adds: bool,
    /// Whether negatives become 0.
    pub relu: bool,
}

/// Where outputs go. Row `r` of the product is row `r % image_rows` of image `r / image_rows`; images share a scale.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct OutputLayout {
    /// Rows of an image.
    pub image_rows: u32,
    /// Outputs from one image to the next.
    pub image_stride: u32,
    /// Outputs from one row to the next.
    pub row_stride: u32,
    /// Outputs from one column to the next.
    pub col_stride: u32,
    /// The row, counted over all images, that the first row of the product is.
    pub first_row: u32,
    /// The first column that is computed: those before it, of the weights too, belong to other products.
    pub first_col: u32,
}

/// The image of a row, and where its first output goes.
#[cube]
pub fn place(layout: &OutputLayout, row: usize) -> (usize, usize) {
    let row = layout.first_row as usize + row;
    let (image, pixel) = (row / layout.image_rows as usize, row % layout.image_rows as usize);
    (image, image * layout.image_stride as usize + pixel * layout.row_stride as usize)
}

/// Writes the output of column `col` of a row whose first output is `first`, from its value before [`EpilogueFlags`].
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

/// Writes output `at`, which has the factor and the term `col`.
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

/// `(sum - zero * column sum) * row scale * column scale`.
#[cube]
pub fn scaled(sum: i32, zero: i32, row_scale: f32, col_sum: i32, col_scale: f32) -> f32 {
    f32::cast_from(sum - zero * col_sum) * row_scale * col_scale
}

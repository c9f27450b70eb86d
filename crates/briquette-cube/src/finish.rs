//! What becomes of the sums of a product.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

/// Which steps follow `v = (sum - zero * column sum) * row scale * column scale`: `y = v * scale + shift`, added to what `y`
/// holds, and negatives 0. See `Finish` of `briquette-kernels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Finish {
    /// Whether each column has a factor.
    pub scale: bool,
    /// Whether each column has a term.
    pub shift: bool,
    /// Whether outputs are added to what there is.
    pub adds: bool,
    /// Whether negatives become 0.
    pub relu: bool,
}

/// Where outputs go. Row `r` of the product is row `r % image_rows` of image `r / image_rows`; images share a scale.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Target {
    /// Rows of an image.
    pub image_rows: u32,
    /// Outputs from one image to the next.
    pub image_stride: u32,
    /// Outputs from one row to the next.
    pub row_stride: u32,
    /// Outputs from one column to the next.
    pub col_stride: u32,
    /// The row of the first one.
    pub first_row: u32,
    /// The first column: columns before it, of the weights too, belong to other products.
    pub first_col: u32,
}

/// The image of a row, and where its first output goes.
#[cube]
pub fn place(target: &Target, row: usize) -> (usize, usize) {
    let row = target.first_row as usize + row;
    let (image, pixel) = (row / target.image_rows as usize, row % target.image_rows as usize);
    (image, image * target.image_stride as usize + pixel * target.row_stride as usize)
}

/// Writes the output of column `col` of a row whose first output is `first`, from its value before [`Finish`].
#[cube]
pub fn write<F: Float>(
    value: f32,
    col: usize,
    first: usize,
    scale: &[f32],
    shift: &[f32],
    y: &mut [F],
    target: &Target,
    #[comptime] finish: Finish,
) {
    write_at::<F>(value, col, first + col * target.col_stride as usize, scale, shift, y, finish);
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
    #[comptime] finish: Finish,
) {
    let mut value = value;
    if comptime!(finish.scale) {
        value *= scale[col];
    }
    if comptime!(finish.shift) {
        value += shift[col];
    }
    if comptime!(finish.adds) {
        value += f32::cast_from(y[at]);
    }
    if comptime!(finish.relu) && value < 0.0f32 {
        value = 0.0f32;
    }
    y[at] = F::cast_from(value);
}

/// `(sum - zero * column sum) * row scale * column scale`.
#[cube]
pub fn scaled(sum: i32, zero: i32, row_scale: f32, col_sum: i32, col_scale: f32) -> f32 {
    f32::cast_from(sum - zero * col_sum) * row_scale * col_scale
}

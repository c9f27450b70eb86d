//! Launches of kernels for products of codes.

use super::{CodeWords, DeviceEpilogue, Floats, OutputPlacement, RowScales, arg};
use crate::dp4a;
use crate::gpu::{DeviceBuffer, Gpu, cubes, groups, u32_of};
use crate::int8::Int8;
use crate::mma::{self, MmaTile};
use crate::stored::{DeviceBitmask, DeviceCodes};
use crate::wgmma;
use cubecl_core::prelude::{BufferArg, CubeDim};

/// The operands, output positions and epilogue of a product.
pub(crate) struct Product<'a> {
    pub(crate) codes: &'a CodeWords,
    pub(crate) rows: &'a RowScales,
    pub(crate) weights: &'a Int8,
    pub(crate) place: OutputPlacement,
    pub(crate) epilogue: &'a DeviceEpilogue,
}

impl Product<'_> {
    pub(super) const fn n_cols(&self) -> usize {
        self.place.end_col - self.place.first_col
    }

    pub(super) fn args(&self) -> [BufferArg; 6] {
        let [scale, shift] = self.epilogue.args(self.weights.n_out(), &self.weights.scales);
        let (rows, weights) = (self.rows, self.weights);
        assert_eq!(self.codes.row_words, weights.row_words(), "words of a row");
        assert!(self.place.end_col <= weights.n_out(), "columns of {} outputs", weights.n_out());
        [arg(&rows.scales, 4), arg(&rows.zeros, 4), arg(&weights.sums, 4), arg(&weights.scales, 4), scale, shift]
    }
}

/// Computes a product with matrix instructions, from the stored weights or from their dense `words`.
pub(crate) fn product_mma(gpu: &Gpu, product: &Product, words: Option<&DeviceBuffer>, tile: MmaTile, y: &Floats) {
    let (codes, weights) = (product.codes, product.weights);
    let [row_scales, zeros, sums, scales, scale, shift] = product.args();
    let [tile_rows, tile_cols] = tile.extents();
    let nothing = || arg(&weights.scales, 4);
    let (dense, is_sparse, [bits, values, bases]) = match (&weights.kept, words) {
        (DeviceCodes::Dense(words), _) | (_, Some(words)) => (arg(words, 16), false, [(); 3].map(|()| nothing())),
        (DeviceCodes::Bitmask(DeviceBitmask { bits, values, bases }), None) => {
            (codes.arg(4), true, [arg(bits, 4), arg(values, 4), arg(bases, 4)])
        }
    };
    // SAFETY: for rows and columns beyond the last, the last is read and nothing is written; rows of codes and
    // weights have the same length.
    unsafe {
        mma::product_mma::launch_unchecked(
            gpu.client(),
            cubes(groups(product.n_cols(), tile_cols), groups(codes.n_rows, tile_rows)),
            CubeDim::new_2d(32, tile.n_warps() as u32),
            codes.arg(4),
            dense,
            bits,
            values,
            bases,
            row_scales,
            zeros,
            sums,
            scales,
            scale,
            shift,
            y.arg(1),
            u32_of(codes.n_rows),
            u32_of(product.place.end_col),
            u32_of(codes.row_words / 4),
            product.place.launch(),
            tile,
            is_sparse,
            product.epilogue.flags(),
            y.dtype,
        );
    }
}

/// Computes a product of dense weights with the matrix instructions of Hopper.
///
/// # Errors
/// The device does not have them.
pub(crate) fn product_wgmma(gpu: &Gpu, product: &Product, words: &DeviceBuffer, y: &Floats) -> Result<(), String> {
    if !gpu.has_warpgroup_matrices() {
        return Err("the device has no matrix instructions for warpgroups".into());
    }
    let codes = product.codes;
    let [row_scales, zeros, sums, scales, scale, shift] = product.args();
    // SAFETY: for rows and columns beyond the last, the last is read and nothing is written; rows of codes and
    // weights have the same length.
    unsafe {
        wgmma::product_wgmma::launch_unchecked(
            gpu.client(),
            cubes(groups(product.n_cols(), wgmma::COLS), groups(codes.n_rows, wgmma::ROWS)),
            CubeDim::new_1d(wgmma::UNITS as u32),
            codes.arg(4),
            arg(words, 16),
            row_scales,
            zeros,
            sums,
            scales,
            scale,
            shift,
            y.arg(1),
            u32_of(codes.n_rows),
            u32_of(product.place.end_col),
            u32_of(codes.row_words / 4),
            product.place.launch(),
            product.epilogue.flags(),
            y.dtype,
        );
    }
    Ok(())
}

/// Computes a product of dense weights with dot products of four codes.
pub(crate) fn product_dp4a(gpu: &Gpu, product: &Product, words: &DeviceBuffer, y: &Floats) {
    let codes = product.codes;
    let [row_scales, zeros, sums, scales, scale, shift] = product.args();
    let n = codes.n_rows * product.n_cols();
    // SAFETY: one unit per output; rows of codes and weights have the same length.
    unsafe {
        dp4a::product_dp4a::launch_unchecked(
            gpu.client(),
            cubes(groups(n, dp4a::UNITS), 1),
            CubeDim::new_1d(dp4a::UNITS as u32),
            codes.arg(1),
            arg(words, 4),
            row_scales,
            zeros,
            sums,
            scales,
            scale,
            shift,
            y.arg(1),
            u32_of(codes.n_rows),
            u32_of(product.place.end_col),
            u32_of(codes.row_words),
            product.place.launch(),
            product.epilogue.flags(),
            y.dtype,
        );
    }
}

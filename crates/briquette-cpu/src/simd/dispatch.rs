//! Selects the version of each loop for the instructions of a level.
#![allow(unsafe_code)]

use super::block::OutputBlock;
use super::column_quantizers::{ColumnQuantizers, ColumnRanges};
use super::int4::{self, Int4Panel};
use super::operands::{PANEL, PanelColumns, PatchRows};
use super::rounded_rows::{CodeRounding, RoundedRows};
use super::row_quantizer::{RowQuantizer, ValueRange};
use super::scalar;
use super::sparse_panels::SparsePanels;
use super::tap_blocks::{SEGMENT, TapBlocks, TapLine, TapRow};
use super::turn::{self, SIDE};
use super::weight_only;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512, float_panel};
use crate::activations::ActivationGrid;
use crate::float_rows::FloatRows;
use briquette_core::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::{Isa, has_byte_expansion, has_fma};

/// Returns the range and the largest magnitude of values.
pub(crate) fn value_range(level: SimdLevel, x: &[f32], grid: ActivationGrid) -> ValueRange {
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::value_range(x, grid) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::value_range(x, grid) },
        _ => scalar::value_range(x, grid),
    }
}

/// Quantizes values; `codes` may be longer than `x`.
pub(crate) fn quantize(level: SimdLevel, x: &[f32], row: RowQuantizer, codes: &mut [u8]) {
    assert!(x.len() <= codes.len(), "{} codes for {} values", codes.len(), x.len());
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available; the lengths were just compared.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::quantize(x, row, codes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::quantize(x, row, codes) },
        _ => scalar::quantize(x, row, codes),
    }
}

/// Quantizes one row and returns its scale and zero point; `codes` may be longer than `x`.
pub(crate) fn quantize_row(level: SimdLevel, x: &[f32], grid: ActivationGrid, codes: &mut [u8]) -> (f32, i32) {
    let row = value_range(level, x, grid).scale(grid);
    quantize(level, x, row, codes);
    (row.scale, row.zero)
}

/// Adds the value of each column in one more row to their ranges.
pub(crate) fn add_to_ranges(level: SimdLevel, row: &[f32], ranges: &mut ColumnRanges) {
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::add_to_ranges(row, ranges) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::add_to_ranges(row, ranges) },
        _ => scalar::add_to_ranges(row, ranges),
    }
}

/// Quantizes the value of each column in a row.
pub(crate) fn quantize_columns(level: SimdLevel, row: &[f32], columns: &ColumnQuantizers, codes: &mut [u8]) {
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::quantize_columns(row, columns, codes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::quantize_columns(row, columns, codes) },
        _ => scalar::quantize_columns(row, columns, codes),
    }
}

/// Computes the depthwise sums of one pixel; see [`scalar::depthwise`].
pub(crate) fn depthwise(level: SimdLevel, taps: &[&[u8]], weights: &[i32], sums: &mut [i32]) {
    assert_eq!(weights.len(), taps.len() * sums.len(), "weights of {} taps", taps.len());
    assert!(taps.iter().all(|codes| codes.len() == sums.len()), "codes of each channel");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available; the lengths were just checked.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::depthwise(taps, weights, sums) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::depthwise(taps, weights, sums) },
        _ => scalar::depthwise(taps, weights, sums),
    }
}

/// Multiplies patches by a panel `[k / 4][32][4]`, and rounds the outputs to codes. AVX-512 prefetches `next`, the panel of the next call.
///
/// # Panics
/// If the level has no kernel for it (see [`has_code_product`]), or the patches do not have as many codes as the panel.
pub(crate) fn multiply_to_codes(
    level: SimdLevel,
    rows: &PatchRows,
    [panel, next]: [&[i8]; 2],
    by_column: (&PanelColumns, &CodeRounding),
    out: &mut RoundedRows,
) {
    assert!(panel.len().is_multiple_of(4 * PANEL) && by_column.0.n <= PANEL, "a panel");
    assert!(rows.has_depth(panel.len() / PANEL), "patches of {} codes", panel.len() / PANEL);
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available; the patches were just checked.
        Isa::Avx512Vnni => unsafe { avx512::multiply_to_codes(*rows, [panel, next], by_column, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni => unsafe { avx2::multiply_to_codes_vnni(*rows, panel, by_column, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2::multiply_to_codes(*rows, panel, by_column, out) },
        _ => unreachable!("{level} has no product of codes to {} codes ({} next)", out.codes.len(), next.len()),
    }
}

/// Returns whether [`multiply_to_codes`] exists for a level.
pub(crate) const fn has_code_product(level: SimdLevel) -> bool {
    matches!(level.isa(), Isa::Avx512Vnni | Isa::AvxVnni | Isa::Avx2)
}

/// Computes the codes of neighbouring pixels of a depthwise convolution, `[pixel, channel]`.
///
/// `lines` come from [`TapRow::lines`].
///
/// # Panics
/// If the level has no kernel for it (see [`has_depthwise_row`]), there are no pixels or too many, or the inputs differ from what `blocks`
/// need.
pub(crate) fn depthwise_row(
    level: SimdLevel,
    row: &TapRow,
    blocks: &TapBlocks,
    lines: &mut [TapLine],
    codes: &mut [u8],
) {
    let (n_channels, [height, _]) = (blocks.weights.n_channels, blocks.weights.kernel);
    let n_pixels = codes.len() / n_channels;
    assert!((1..=SEGMENT).contains(&n_pixels) && codes.len() == n_pixels * n_channels, "codes of each channel");
    assert!(row.rows.len() == height && row.padding.len() == n_channels, "rows and channels");
    let n_inputs = row.rows.first().map_or(0, |row| row.len());
    assert!(n_inputs.is_multiple_of(n_channels), "inputs of each channel");
    assert!(row.rows.iter().all(|row| row.len() == n_inputs), "rows of one image");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available; the lengths were just checked.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::depthwise_row(row, blocks, lines, codes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni => unsafe { avx2::depthwise_row_vnni(row, blocks, lines, codes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2::depthwise_row(row, blocks, lines, codes) },
        _ => unreachable!("{level} has no kernel for rows of a depthwise convolution ({} lines)", lines.len()),
    }
}

/// Returns whether [`depthwise_row`] exists for a level.
pub(crate) const fn has_depthwise_row(level: SimdLevel) -> bool {
    matches!(level.isa(), Isa::Amx | Isa::Avx512Vnni | Isa::AvxVnni | Isa::Avx2)
}

/// Transposes a square of 16 rows of 16, `stride` apart: `to[c][r] = from[r * stride + c]`.
pub(crate) fn turn_square(level: SimdLevel, from: &[f32], stride: usize, to: &mut [[f32; SIDE]; SIDE]) {
    assert!(stride >= SIDE && from.len() >= (SIDE - 1) * stride + SIDE, "16 rows of 16");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available; the lengths were just checked.
        Isa::Amx | Isa::Avx512Vnni => unsafe { turn::turn_avx512(from, stride, to) },
        _ => turn::turn(from, stride, to),
    }
}

/// Transposes 8 planes of 64 bytes, `[c][p]` to `[p][c]`.
pub(crate) fn turn_bytes(level: SimdLevel, planes: [&[u8; 64]; 8]) -> [[u8; 8]; 64] {
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { turn::turn_bytes_avx512(planes) },
        _ => turn::turn_bytes(planes),
    }
}

/// Returns `Σ (codes[i] - zero) * weights[i]`.
pub(crate) fn dot(level: SimdLevel, codes: &[u8], weights: &[i8], zero: i32) -> i32 {
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::dot(codes, weights, zero) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::dot(codes, weights, zero) },
        _ => scalar::dot(codes, weights, zero),
    }
}

/// Multiplies rows of floats by a panel of 4-bit weights; see [`int4::multiply_panel`]. `bias` may be empty.
pub(crate) fn multiply_int4_panel(
    level: SimdLevel,
    rows: &FloatRows,
    panel: Int4Panel,
    bias: &[f32],
    mut out: OutputBlock,
) {
    let n_in = panel.codes.len() / (PANEL / 2);
    assert_eq!([rows.n_rows(), rows.n_in()], [out.n_rows(), n_in], "rows of activations");
    assert_eq!(panel.scales.len(), n_in.div_ceil(panel.group) * PANEL, "scales of the panel");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { int4::multiply_panel_avx512(rows, panel, bias, &mut out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the features were just detected.
        Isa::AvxVnni | Isa::Avx2 if has_fma() => unsafe { int4::multiply_panel_fma(rows, panel, bias, &mut out) },
        _ => int4::multiply_panel(rows, panel, bias, &mut out),
    }
}

/// Multiplies rows of floats by a panel of 8-bit codes; see [`weight_only::multiply_panel`].
pub(crate) fn multiply_float_panel(
    level: SimdLevel,
    rows: &FloatRows,
    panel: &[i8],
    columns: &PanelColumns,
    mut out: OutputBlock,
) {
    assert_eq!(rows.n_rows(), out.n_rows(), "rows of activations");
    assert_eq!(
        (panel.len(), out.n_cols()),
        (rows.n_in().div_ceil(4) * 4 * PANEL, columns.n),
        "codes and columns of the panel"
    );
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { weight_only::multiply_panel_avx512(rows, panel, columns, &mut out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the features were just detected.
        Isa::AvxVnni | Isa::Avx2 if has_fma() => unsafe {
            weight_only::multiply_panel_fma(rows, panel, columns, &mut out)
        },
        _ => weight_only::multiply_panel(rows, panel, columns, &mut out),
    }
}

/// Multiplies rows of floats by up to 32 rows of weights: `out[m, n] = Σ x[m, i] * weights[n][i]`.
///
/// # Panics
/// If the level does not have AVX-512, or the shapes do not match.
pub(crate) fn multiply_weight_rows(level: SimdLevel, rows: &FloatRows, weights: &[f32], mut out: OutputBlock) {
    assert_eq!((rows.n_rows(), weights.len()), (out.n_rows(), rows.n_in() * out.n_cols()), "rows and weights");
    assert!(out.n_cols() <= PANEL, "outputs of a panel");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { float_panel::multiply_weight_rows(rows, weights, &mut out) },
        _ => panic!("{level} does not support rows of weights"),
    }
}

/// Rounds values to codes: see [`CodeRounding`].
///
/// # Panics
/// If the lengths differ.
pub(crate) fn requantize(level: SimdLevel, values: &[f32], rounding: &CodeRounding, codes: &mut [u8]) {
    let lengths = [values.len(), rounding.factors.len(), rounding.shifts.len()];
    assert_eq!(lengths, [codes.len(); 3], "a value, a factor and a shift for each code");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available; the lengths were just compared.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::requantize(values, rounding, codes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::requantize(values, rounding, codes) },
        _ => scalar::requantize(values, rounding, codes),
    }
}

/// Writes all codes of panel `index`, including zeros.
pub(crate) fn expand_panel(level: SimdLevel, panels: &SparsePanels, index: usize, codes: &mut [i8]) {
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available; byte expansion was just detected.
        Isa::Amx | Isa::Avx512Vnni if has_byte_expansion() => unsafe { avx512::expand_panel(panels, index, codes) },
        _ => panels.expand(index, codes),
    }
}

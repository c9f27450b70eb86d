//! The inner loops, and all of this crate's `unsafe`.
//!
//! Every function has one meaning, given by [`mod@scalar`]; the others are fuzzed against it and give the same bits.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod block;
mod float;
#[cfg(target_arch = "x86_64")]
mod float_panel;
mod int4;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod peak;
mod product;
pub(crate) mod scalar;
mod sparse_panels;
mod turn;
mod weight_only;

use crate::float_rows::FloatRows;
use crate::int4::Int4Panel;
use crate::path::{Isa, Path};
use crate::quantize_rows::ActivationGrid;
pub(crate) use attend::{HeadRows, attend};
pub(crate) use block::Block;
pub(crate) use float::{add_norm, gelu};
pub(crate) use kernel::Kernel;
#[cfg(target_arch = "x86_64")]
pub use peak::register_peak;
pub(crate) use product::{Matrix, multiply};
pub(crate) use scalar::{RowScale, Span};
pub(crate) use sparse_panels::SparsePanels;
pub(crate) use turn::SIDE;

/// There is no such peak to compare with.
#[cfg(not(target_arch = "x86_64"))]
pub fn register_peak() -> Option<f64> {
    None
}

/// Outputs in a panel of weights.
pub(crate) const PANEL: usize = 32;

/// Whether the processor and the system have what the functions for `isa` are compiled for.
pub(crate) fn is_available(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => avx512::is_available() && amx::is_available(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => avx512::is_available(),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => avx2::has_vnni(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::is_available(),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => neon::is_available(),
        _ => false,
    }
}

/// Rows of activation codes, `stride` bytes apart, in memory for a multiple of 16 rows.
#[derive(Clone, Copy)]
pub(crate) struct RowBlock<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) stride: usize,
    pub(crate) scales: &'a [f32],
    pub(crate) zeros: &'a [i32],
}

impl RowBlock<'_> {
    pub(crate) fn n_rows(&self) -> usize {
        self.scales.len()
    }
}

/// What the outputs of a panel are made with besides its codes; zeros beyond the last output.
#[repr(C, align(64))]
pub(crate) struct Columns {
    pub(crate) sums: [i32; PANEL],
    pub(crate) scales: [f32; PANEL],
    pub(crate) bias: [f32; PANEL],
    pub(crate) n: usize,
}

impl Columns {
    /// Those of outputs `first..first + 32`.
    pub(crate) fn new(sums: &[i32], scales: &[f32], bias: Option<&[f32]>, first: usize) -> Self {
        let n = PANEL.min(sums.len() - first);
        let mut columns = Self { sums: [0; PANEL], scales: [0.0; PANEL], bias: [0.0; PANEL], n };
        columns.sums[..n].copy_from_slice(&sums[first..first + n]);
        columns.scales[..n].copy_from_slice(&scales[first..first + n]);
        if let Some(bias) = bias {
            columns.bias[..n].copy_from_slice(&bias[first..first + n]);
        }
        columns
    }
}

/// What the scale of values is made from.
pub(crate) fn span(path: Path, x: &[f32], grid: ActivationGrid) -> Span {
    match path.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path exists only where `is_available` said so.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::span(x, grid) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::span(x, grid) },
        _ => scalar::span(x, grid),
    }
}

/// Codes of values; `codes` may be longer than `x`.
pub(crate) fn quantize(path: Path, x: &[f32], row: RowScale, codes: &mut [u8]) {
    assert!(x.len() <= codes.len(), "{} codes for {} values", codes.len(), x.len());
    match path.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path exists only where `is_available` said so; the lengths were just compared.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::quantize(x, row, codes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::quantize(x, row, codes) },
        _ => scalar::quantize(x, row, codes),
    }
}

/// Codes, scale and zero point of one row; `codes` may be longer than `x`.
pub(crate) fn quantize_row(path: Path, x: &[f32], grid: ActivationGrid, codes: &mut [u8]) -> (f32, i32) {
    let row = span(path, x, grid).scale(grid);
    quantize(path, x, row, codes);
    (row.scale, row.zero)
}

/// Depthwise sums of one pixel, of weights that are codes; see [`scalar::depthwise`].
pub(crate) fn depthwise(path: Path, taps: &[&[u8]], weights: &[i32], sums: &mut [i32]) {
    assert_eq!(weights.len(), taps.len() * sums.len(), "weights of {} taps", taps.len());
    assert!(taps.iter().all(|codes| codes.len() == sums.len()), "codes of each channel");
    match path.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path exists only where `is_available` said so; the lengths were just checked.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::depthwise(taps, weights, sums) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::depthwise(taps, weights, sums) },
        _ => scalar::depthwise(taps, weights, sums),
    }
}

/// Turns a square of 16 rows of 16, `stride` apart: `to[c][r] = from[r * stride + c]`.
pub(crate) fn turn_square(path: Path, from: &[f32], stride: usize, to: &mut [[f32; SIDE]; SIDE]) {
    assert!(stride >= SIDE && from.len() >= (SIDE - 1) * stride + SIDE, "16 rows of 16");
    match path.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path exists only where `is_available` said so; the lengths were just checked.
        Isa::Amx | Isa::Avx512Vnni => unsafe { turn::turn_avx512(from, stride, to) },
        _ => turn::turn(from, stride, to),
    }
}

/// Turns 8 planes of 64 bytes, `[c][p]` to `[p][c]`.
pub(crate) fn turn_bytes(path: Path, planes: [&[u8; 64]; 8]) -> [[u8; 8]; 64] {
    match path.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path exists only where `is_available` said so.
        Isa::Amx | Isa::Avx512Vnni => unsafe { turn::turn_bytes_avx512(planes) },
        _ => turn::turn_bytes(planes),
    }
}

/// `Σ (codes[i] - zero) * weights[i]`.
pub(crate) fn dot(path: Path, codes: &[u8], weights: &[i8], zero: i32) -> i32 {
    match path.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path exists only where `is_available` said so.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::dot(codes, weights, zero) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::dot(codes, weights, zero) },
        _ => scalar::dot(codes, weights, zero),
    }
}

/// Rows of floats times a panel of 4-bit weights; see [`int4::multiply_panel`]. No bias is an empty one.
pub(crate) fn multiply_int4_panel(path: Path, rows: &FloatRows, panel: Int4Panel, bias: &[f32], mut out: Block) {
    let n_in = panel.codes.len() / (PANEL / 2);
    assert_eq!([rows.n_rows(), rows.n_in()], [out.n_rows(), n_in], "rows of activations");
    assert_eq!(panel.scales.len(), n_in.div_ceil(panel.group) * PANEL, "scales of the panel");
    match path.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path exists only where `is_available` said so.
        Isa::Amx | Isa::Avx512Vnni => unsafe { int4::multiply_panel_avx512(rows, panel, bias, &mut out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the features were just detected.
        Isa::AvxVnni | Isa::Avx2 if int4::has_fma() => unsafe { int4::multiply_panel_fma(rows, panel, bias, &mut out) },
        _ => int4::multiply_panel(rows, panel, bias, &mut out),
    }
}

/// Rows of floats times a panel of 8-bit codes; see [`weight_only::multiply_panel`].
pub(crate) fn multiply_float_panel(path: Path, rows: &FloatRows, panel: &[i8], columns: &Columns, mut out: Block) {
    assert_eq!(rows.n_rows(), out.n_rows(), "rows of activations");
    assert_eq!(
        (panel.len(), out.n_cols()),
        (rows.n_in().div_ceil(4) * 4 * PANEL, columns.n),
        "codes and columns of the panel"
    );
    match path.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path exists only where `is_available` said so.
        Isa::Amx | Isa::Avx512Vnni => unsafe { weight_only::multiply_panel_avx512(rows, panel, columns, &mut out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the features were just detected.
        Isa::AvxVnni | Isa::Avx2 if int4::has_fma() => unsafe {
            weight_only::multiply_panel_fma(rows, panel, columns, &mut out)
        },
        _ => weight_only::multiply_panel(rows, panel, columns, &mut out),
    }
}

/// Writes panel `index` of `panels` out, zeros too.
pub(crate) fn expand_panel(path: Path, panels: &SparsePanels, index: usize, codes: &mut [i8]) {
    match path.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path exists only where `is_available` said so.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::expand_panel(panels, index, codes) },
        _ => panels.expand(index, codes),
    }
}

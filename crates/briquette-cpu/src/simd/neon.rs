//! NEON with the dot product instructions.
//!
//! `sdot` multiplies signed bytes, so it takes `code - 128`, and 128 times the sums of the weights is added.
#![allow(unsafe_code)]

use super::block::OutputBlock;
use super::operands::{PANEL, PanelColumns, RowBlock};
use super::scalar;
use std::arch::aarch64::*;
use std::arch::asm;

/// Rows that are multiplied together: 16 sums, 4 vectors of weights and a code in 32 registers.
const MAX_ROWS: usize = 4;

/// Computes `sums[i] += Σ codes[4i + t] * weights[4i + t]`. The intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn multiply(mut sums: int32x4_t, codes: int8x16_t, weights: int8x16_t) -> int32x4_t {
    // SAFETY: registers only.
    unsafe {
        asm!("sdot {sums:v}.4s, {codes:v}.16b, {weights:v}.16b", sums = inout(vreg) sums, codes = in(vreg) codes,
            weights = in(vreg) weights, options(nostack, nomem, pure, preserves_flags));
    }
    sums
}

/// See [`scalar::multiply_panel`].
///
/// # Safety
/// The caller has checked the shapes: see [`super::Kernel`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn multiply_panel(rows: RowBlock, panel: &[i8], columns: &PanelColumns, out: &mut OutputBlock) {
    let mut first = 0;
    while first < rows.n_rows() {
        let n = MAX_ROWS.min(rows.n_rows() - first);
        // SAFETY: rows `first..first + n` exist, as deep as the panel.
        unsafe {
            match n {
                1 => tile::<1>(rows, first, panel, columns, out),
                2 => tile::<2>(rows, first, panel, columns, out),
                3 => tile::<3>(rows, first, panel, columns, out),
                _ => tile::<MAX_ROWS>(rows, first, panel, columns, out),
            }
        }
        first += n;
    }
}

/// # Safety
/// Rows `first..first + M` exist, each at least as long as the panel is deep.
#[target_feature(enable = "neon,dotprod")]
unsafe fn tile<const M: usize>(
    rows: RowBlock,
    first: usize,
    panel: &[i8],
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    let codes = &rows.codes[first * rows.stride..];
    let mut sums = [[0_i32; PANEL]; M];
    for half in 0..2 {
        // SAFETY: the caller guarantees the rows.
        let vectors = unsafe { half_panel::<M>(codes, rows.stride, panel, 64 * half) };
        for (sums, vectors) in sums.iter_mut().zip(&vectors) {
            for (j, vector) in vectors.iter().enumerate() {
                // SAFETY: 4 writable numbers.
                unsafe { vst1q_s32(sums[16 * half + 4 * j..][..4].as_mut_ptr(), *vector) };
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        let (zero, scale) = (rows.zeros[first + i], rows.scales[first + i]);
        for (n, value) in out.row(first + i).iter_mut().enumerate() {
            // `code - zero = (code - 128) - (zero - 128)`.
            *value = scalar::finish(sums[n], zero - 128, scale, columns, n);
        }
    }
}

/// Returns the sums of 16 outputs, whose weights start `offset` bytes into each group.
///
/// # Safety
/// `codes` has `M` rows of `stride` bytes, each at least as long as the panel is deep; `offset` is 0 or 64.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn half_panel<const M: usize>(codes: &[u8], stride: usize, panel: &[i8], offset: usize) -> [[int32x4_t; 4]; M] {
    let mut sums = [[vdupq_n_s32(0); 4]; M];
    for (group, weights) in panel.as_chunks::<{ 4 * PANEL }>().0.iter().enumerate() {
        // SAFETY: 64 of the 128 bytes of a group, and 4 codes of each row.
        unsafe {
            let weights: [int8x16_t; 4] = std::array::from_fn(|j| vld1q_s8(weights.as_ptr().add(offset + 16 * j)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let code = codes.as_ptr().add(i * stride + 4 * group).cast::<u32>().read_unaligned();
                let code = vreinterpretq_s8_u32(vdupq_n_u32(code ^ 0x8080_8080));
                for (sum, &weights) in sums.iter_mut().zip(&weights) {
                    *sum = multiply(*sum, code, weights);
                }
            }
        }
    }
    sums
}

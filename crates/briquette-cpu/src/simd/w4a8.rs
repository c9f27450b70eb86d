//! Products of 4-bit weights and int8 activations: selects the version for the instructions of a level.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use super::block::OutputBlock;
use super::operands::PANEL;
use crate::group_layout::{GroupLayout, STEP_BYTES};
use briquette_core::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::{Isa, has_fma};
pub(crate) use scalar::{GroupedBlock, W4A8Panel};

/// Multiplies rows by a panel; see [`w4a8_linear`](crate::w4a8_linear()).
pub(crate) fn multiply_w4a8_panel(level: SimdLevel, rows: GroupedBlock, panel: W4A8Panel, mut out: OutputBlock) {
    let n_steps = panel.codes.len() / STEP_BYTES;
    assert_eq!(rows.n_rows(), out.n_rows(), "rows of activations");
    assert!(out.n_cols() <= PANEL && panel.sums.len() == PANEL, "outputs of a panel");
    assert_eq!(panel.scales.len(), rows.n_groups * PANEL, "scales of the panel");
    assert_eq!(n_steps.div_ceil(panel.steps_per_group.max(1)), rows.n_groups, "groups of the panel");
    assert!(4 * n_steps <= rows.stride && rows.codes.len() >= rows.n_rows() * rows.stride, "codes of the rows");
    assert_eq!((rows.offsets.len(), rows.zeros.len()), (rows.n_rows() * rows.n_groups, rows.n_rows()), "offsets");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available; the shapes were just checked.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::multiply_panel(rows, panel, &mut out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the features were just detected; the shapes were just checked.
        Isa::AvxVnni | Isa::Avx2 if has_fma() => unsafe { avx2::multiply_panel(rows, panel, &mut out) },
        _ => scalar::multiply_panel(rows, panel, &mut out),
    }
}

/// Copies the unsigned codes of a row as signed codes in padded groups; see [`scalar::group_row`].
pub(crate) fn group_codes(level: SimdLevel, from: &[u8], layout: GroupLayout, to: &mut [u8], offsets: &mut [i32]) {
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::group_codes(from, layout, to, offsets) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni | Isa::Avx2 => unsafe { avx2::group_codes(from, layout, to, offsets) },
        _ => scalar::group_row(from, layout, to, offsets),
    }
}

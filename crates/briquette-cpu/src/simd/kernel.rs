//! Products of rows of codes and panels of weights, with the best instructions for their size.
#![allow(unsafe_code)]

use super::block::OutputBlock;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::operands::{PANEL, PanelColumns, RowBlock};
use super::scalar;
use super::sparse_panels::SparsePanels;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};
use briquette_core::simd::Isa;
use briquette_core::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::has_byte_expansion;

/// Rows of codes, and the state for multiplying them by one panel after another.
pub(crate) struct Kernel<'a> {
    level: SimdLevel,
    rows: RowBlock<'a>,
    /// Set at the first use: configuring tiles takes 0.1 µs, a third of the time of a small panel.
    #[cfg(target_arch = "x86_64")]
    tiles: Option<amx::AmxTiles>,
}

impl<'a> Kernel<'a> {
    pub(crate) fn new(level: SimdLevel, rows: RowBlock<'a>) -> Self {
        // AVX-512 reads no byte after a row; other kernels load whole tiles.
        let has_rows = level.isa() == Isa::Avx512Vnni && rows.codes.len() >= rows.n_rows() * rows.stride;
        let n_in_tiles = rows.n_rows().next_multiple_of(16) * rows.stride;
        assert!(has_rows || rows.stride.is_multiple_of(64) && rows.codes.len() >= n_in_tiles, "rows in whole tiles");
        assert_eq!(rows.zeros.len(), rows.n_rows(), "a zero point for each row");
        Self {
            level,
            rows,
            #[cfg(target_arch = "x86_64")]
            tiles: None,
        }
    }

    pub(crate) const fn path(&self) -> SimdLevel {
        self.level
    }

    /// # Safety
    /// The level is AMX.
    #[cfg(target_arch = "x86_64")]
    unsafe fn tiles(&mut self) -> &mut amx::AmxTiles {
        // SAFETY: a level exists only if its instructions are available.
        self.tiles.get_or_insert_with(|| unsafe { amx::AmxTiles::configure(self.rows.n_rows()) })
    }

    fn check_shapes(&self, depth: usize, columns: &PanelColumns, out: &OutputBlock) {
        assert_eq!((out.n_rows(), out.n_cols()), (self.rows.n_rows(), columns.n), "rows and columns of the output");
        assert!(columns.n <= PANEL && depth <= self.rows.stride);
    }

    /// Computes `out[m, n] = (Σ codes[m, k] * panel[k, n] - zeros[m] * sums[n]) * scales[m] * scales[n] +
    /// bias[n]`.
    ///
    /// The panel has the layout `[k / 4][32][4]`. `next`, the panel of the next call, is prefetched.
    pub(crate) fn multiply_panel(&mut self, panel: &[i8], next: &[i8], columns: &PanelColumns, mut out: OutputBlock) {
        assert!(panel.len().is_multiple_of(4 * PANEL));
        self.check_shapes(panel.len() / PANEL, columns, &out);
        let (rows, out) = (self.rows, &mut out);
        let _ = next; // Only AMX and AVX-512 prefetch it.
        match self.level.isa() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a level exists only if its instructions are available; the shapes were just checked.
            Isa::Amx if rows.n_rows() > amx::FEW_ROWS => unsafe {
                amx::multiply_panel(self.tiles(), rows, panel, next, columns, out);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Amx | Isa::Avx512Vnni => unsafe { avx512::multiply_panel(rows, panel, next, columns, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::AvxVnni => unsafe { avx2::multiply_panel_vnni(rows, panel, columns, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe { avx2::multiply_panel(rows, panel, columns, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonDot => unsafe { neon::multiply_panel(rows, panel, columns, out) },
            _ => scalar::multiply_panel(rows, panel, columns, out),
        }
    }

    /// Like [`Self::multiply_panel`] with panel `index` of `panels`, expanded in registers or step by step.
    ///
    /// Returns false and does nothing if it is faster to expand the whole panel to memory first.
    pub(crate) fn multiply_sparse_panel(
        &mut self,
        panels: &SparsePanels,
        index: usize,
        columns: &PanelColumns,
        out: &mut OutputBlock,
    ) -> bool {
        self.check_shapes(4 * panels.n_groups(), columns, out);
        let (rows, (masks, values)) = (self.rows, panels.panel(index));
        match self.level.isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx if rows.n_rows() > amx::FEW_SPARSE_ROWS => {
                // SAFETY: a level exists only if its instructions are available; the shapes were just checked,
                // and the panel comes from `SparsePanels`.
                unsafe { amx::multiply_sparse_panel(self.tiles(), rows, masks, values, columns, out) };
                true
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Vnni if rows.n_rows() <= avx512::MAX_ROWS && has_byte_expansion() => {
                // SAFETY: as above; byte expansion was just detected.
                unsafe { avx512::multiply_sparse_panel(rows, masks, values, columns, out) };
                true
            }
            _ => {
                let _ = (masks, values);
                false
            }
        }
    }
}

//! Sparse int8 weights.

use crate::float_rows::FloatRows;
use crate::panel_layout::{check_depth, check_lengths, pack_panel, panel_bytes, row_sums};
use crate::simd::{self, Kernel, OutputBlock, PANEL, PanelColumns, SparsePanels};
use crate::weights::{Int8Weights, sealed};
use briquette_core::Result;
use briquette_core::aligned_bytes::AlignedBytes;
use briquette_core::simd::SimdLevel;
use std::cell::RefCell;

thread_local! {
    static PANEL_CODES: RefCell<AlignedBytes> = RefCell::new(AlignedBytes::default());
}

/// Sparse int8 weights `[n_out, n_in]`: one bit per weight and one byte per nonzero weight.
///
/// The order is that of [`PackedInt8`](crate::PackedInt8). A sparsity of `s` takes `1 - s + 1/8` bytes per
/// weight. Weights are expanded in registers for a few rows of activations, otherwise a panel of 32 outputs at
/// a time.
#[derive(Clone)]
pub struct SparseInt8 {
    n_out: usize,
    n_in: usize,
    panels: SparsePanels,
    sums: Vec<i32>,
    scales: Vec<f32>,
}

impl SparseInt8 {
    /// Packs row-major `codes` `[n_out, n_in]` with the values `codes[o, i] * scales[o]`.
    ///
    /// # Errors
    /// Refused: there are more than [`MAX_DEPTH`](crate::MAX_DEPTH) inputs.
    ///
    /// # Panics
    /// If the lengths do not match the shape.
    pub fn new(codes: &[i8], scales: &[f32], n_out: usize, n_in: usize) -> Result<Self> {
        check_lengths(codes.len(), scales.len(), n_out, n_in);
        check_depth(n_in)?;
        let mut panels = SparsePanels::new(n_in.div_ceil(4));
        let mut panel = vec![0; panel_bytes(n_in)];
        for first in (0..n_out).step_by(PANEL) {
            panel.fill(0);
            pack_panel(codes, n_out, n_in, first, &mut panel);
            panels.push(&panel);
        }
        panels.shrink();
        Ok(Self { n_out, n_in, panels, sums: row_sums(codes, n_out, n_in), scales: scales.to_vec() })
    }
}

impl SparseInt8 {
    /// Calls `f` with all codes of a panel, including zeros, in memory of this thread.
    fn with_panel(&self, level: SimdLevel, index: usize, f: impl FnOnce(&[i8])) {
        let (mut codes, n) = (PANEL_CODES.take(), panel_bytes(self.n_in));
        codes.make_room(n.max(codes.bytes().len()));
        simd::expand_panel(level, &self.panels, index, &mut codes.codes_mut()[..n]);
        f(&codes.codes()[..n]);
        PANEL_CODES.set(codes);
    }
}

impl Int8Weights for SparseInt8 {
    fn n_out(&self) -> usize {
        self.n_out
    }

    fn n_in(&self) -> usize {
        self.n_in
    }

    fn n_bytes(&self) -> usize {
        self.panels.n_bytes() + 4 * self.sums.len() + 4 * self.scales.len()
    }
}

#[expect(private_interfaces, reason = "the trait is sealed")]
impl sealed::Panels for SparseInt8 {
    fn columns(&self, index: usize, bias: Option<&[f32]>, columns: &mut PanelColumns) {
        columns.set(&self.sums, &self.scales, bias, index * PANEL);
    }

    fn multiply(&self, kernel: &mut Kernel, index: usize, is_last: bool, columns: &PanelColumns, mut out: OutputBlock) {
        if kernel.multiply_sparse_panel(&self.panels, index, columns, &mut out) {
            return;
        }
        let next = if is_last { &[] } else { self.panels.values(index + 1) };
        self.with_panel(kernel.path(), index, |panel| kernel.multiply_panel(panel, next, columns, out));
    }

    fn multiply_floats(
        &self,
        level: SimdLevel,
        rows: &FloatRows,
        index: usize,
        columns: &PanelColumns,
        out: OutputBlock,
    ) {
        self.with_panel(level, index, |panel| simd::multiply_float_panel(level, rows, panel, columns, out));
    }

    fn unpack(&self, index: usize, codes: &mut [i8]) {
        self.panels.expand(index, codes);
    }

    fn scale(&self, row: usize) -> f32 {
        self.scales[row]
    }
}

impl std::fmt::Debug for SparseInt8 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SparseInt8 [{}, {}]", self.n_out, self.n_in)
    }
}

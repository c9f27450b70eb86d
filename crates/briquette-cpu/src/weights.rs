//! Access to int8 weights for linear layers and convolutions, dense or sparse.

use crate::float_rows::FloatRows;
use crate::panel_layout::panel_bytes;
use crate::simd::{Kernel, OutputBlock, PANEL, PanelColumns};
use briquette_core::simd::SimdLevel;

/// int8 weights `[n_out, n_in]` in panels of 32 outputs.
///
/// Implemented by [`PackedInt8`](crate::PackedInt8) and [`SparseInt8`](crate::SparseInt8).
pub trait Int8Weights: sealed::Panels {
    /// Returns the number of outputs.
    fn n_out(&self) -> usize;
    /// Returns the number of inputs.
    fn n_in(&self) -> usize;
    /// Returns the size in memory in bytes.
    fn n_bytes(&self) -> usize;

    /// Dequantizes the weights of one output.
    ///
    /// # Panics
    /// If `row` is not an output, or `out` does not have the length `n_in`.
    fn read_row(&self, row: usize, out: &mut [f32]) {
        let mut panel = vec![0; panel_bytes(self.n_in())];
        self.unpack(row / PANEL, &mut panel);
        row_of_panel(&panel, row % PANEL, self.scale(row), out);
    }

    /// Returns the weights as f32, `[n_out, n_in]`.
    fn to_floats(&self) -> Vec<f32> {
        let (codes, n_in) = (to_rows(self), self.n_in().max(1));
        let value = |(i, code): (usize, &i8)| f32::from(*code) * self.scale(i / n_in);
        codes.iter().enumerate().map(value).collect()
    }
}

/// Dequantizes output `lane` of a panel.
pub(crate) fn row_of_panel(panel: &[i8], lane: usize, scale: f32, out: &mut [f32]) {
    assert_eq!(panel.len(), panel_bytes(out.len()), "inputs of an output");
    for (out, group) in out.chunks_mut(4).zip(panel.as_chunks::<{ 4 * PANEL }>().0) {
        out.iter_mut().zip(&group[4 * lane..]).for_each(|(out, code)| *out = f32::from(*code) * scale);
    }
}

/// Returns all codes as rows of outputs, including zeros.
pub(crate) fn to_rows<W: Int8Weights + ?Sized>(weights: &W) -> Vec<i8> {
    let (n_out, n_in) = (weights.n_out(), weights.n_in());
    let (mut rows, mut panel) = (vec![0; n_out * n_in], vec![0; panel_bytes(n_in)]);
    for (row, codes) in rows.chunks_exact_mut(n_in.max(1)).enumerate() {
        let (index, lane) = (row / PANEL, row % PANEL);
        if lane == 0 {
            weights.unpack(index, &mut panel);
        }
        for (group, codes) in codes.chunks_mut(4).enumerate() {
            codes.copy_from_slice(&panel[(group * PANEL + lane) * 4..][..codes.len()]);
        }
    }
    rows
}

/// Returns all codes as rows of outputs, and the scale of each row.
pub fn codes_of<W: Int8Weights + ?Sized>(weights: &W) -> (Vec<i8>, Vec<f32>) {
    (to_rows(weights), (0..weights.n_out()).map(|row| weights.scale(row)).collect())
}

pub(crate) mod sealed {
    use super::*;

    pub trait Panels: Sync {
        /// Sets the sums, scales and bias for the outputs of panel `index`.
        #[expect(private_interfaces, reason = "the trait is sealed")]
        fn columns(&self, index: usize, bias: Option<&[f32]>, columns: &mut PanelColumns);

        /// Multiplies the kernel's rows by panel `index`; `is_last` tells that the next panel will not follow.
        #[expect(private_interfaces, reason = "the trait is sealed")]
        fn multiply(&self, kernel: &mut Kernel, index: usize, is_last: bool, columns: &PanelColumns, out: OutputBlock);

        /// Multiplies rows of floats by panel `index`.
        #[expect(private_interfaces, reason = "the trait is sealed")]
        fn multiply_floats(
            &self,
            level: SimdLevel,
            rows: &FloatRows,
            index: usize,
            columns: &PanelColumns,
            out: OutputBlock,
        );

        /// Writes all codes of panel `index`, including zeros.
        fn unpack(&self, index: usize, codes: &mut [i8]);

        /// Returns the scale of an output.
        fn scale(&self, row: usize) -> f32;
    }
}

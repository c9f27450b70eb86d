//! int8 weights in the layout of the kernels.

use crate::float_rows::FloatRows;
use crate::panel_layout::{MIN_CODES, check_depth, check_lengths, pack_panel, panel_bytes, row_sums};
use crate::simd::{self, CodeRounding, Kernel, OutputBlock, PANEL, PanelColumns, PatchRows, RoundedRows};
use crate::weights::{Int8Weights, row_of_panel, sealed};
use briquette_core::Result;
use briquette_core::aligned_bytes::AlignedBytes;
use briquette_core::simd::SimdLevel;
use rayon::prelude::*;

/// int8 weights `[n_out, n_in]` with one scale for each output.
///
/// Panels have 32 outputs, with inputs in groups of 4: `[n_out / 32][n_in / 4][32][4]`, padded with zeros. Uses
/// one byte per weight and 8 per output.
#[derive(Clone)]
pub struct PackedInt8 {
    n_out: usize,
    n_in: usize,
    codes: AlignedBytes,
    sums: Vec<i32>,
    scales: Vec<f32>,
}

impl PackedInt8 {
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
        let n_bytes = panel_bytes(n_in);
        let mut packed = AlignedBytes::zeroed(n_out.div_ceil(PANEL) * n_bytes);
        if n_bytes > 0 {
            let panels = packed.codes_mut().par_chunks_exact_mut(n_bytes).with_min_len(MIN_CODES / n_bytes + 1);
            panels.enumerate().for_each(|(i, panel)| pack_panel(codes, n_out, n_in, i * PANEL, panel));
        }
        Ok(Self { n_out, n_in, codes: packed, sums: row_sums(codes, n_out, n_in), scales: scales.to_vec() })
    }

    /// Packs rows part by part, so that the rows are never in memory all together.
    ///
    /// `read` fills in the rows of a part, given the index of its first row. A part has `n_at_once` rows, a
    /// multiple of 32, or fewer at the end. Each thread calls `init` and reads its parts one after another.
    ///
    /// # Errors
    /// - Refused: there are more than [`MAX_DEPTH`](crate::MAX_DEPTH) inputs.
    /// - Errors of `read`.
    pub fn of_parts<S>(
        scales: &[f32],
        [n_out, n_in]: [usize; 2],
        n_at_once: usize,
        init: impl Fn() -> S + Sync + Send,
        read: impl Fn(&mut S, usize, &mut [i8]) -> Result<()> + Sync + Send,
    ) -> Result<Self> {
        check_lengths(n_out * n_in, scales.len(), n_out, n_in);
        assert!(n_at_once > 0 && n_at_once.is_multiple_of(PANEL), "{n_at_once} rows in panels of {PANEL}");
        check_depth(n_in)?;
        let (mut codes, mut sums) = (AlignedBytes::zeroed(n_out.div_ceil(PANEL) * panel_bytes(n_in)), vec![0; n_out]);
        let per_panel = panel_bytes(n_in).max(1);
        let panels = codes.codes_mut().par_chunks_mut(n_at_once / PANEL * per_panel);
        let parts = panels.zip(sums.par_chunks_mut(n_at_once)).enumerate();
        parts.try_for_each_init(
            || (init(), Vec::new()),
            |(state, rows), (part, (panels, sums))| {
                rows.resize(sums.len() * n_in, 0);
                read(state, part * n_at_once, rows)?;
                for (index, panel) in panels.chunks_exact_mut(per_panel).enumerate() {
                    pack_panel(rows, sums.len(), n_in, index * PANEL, panel);
                }
                sums.copy_from_slice(&row_sums(rows, sums.len(), n_in));
                Ok(())
            },
        )?;
        Ok(Self { n_out, n_in, codes, sums, scales: scales.to_vec() })
    }

    /// Returns the code of output `row` and input `col`.
    pub fn code(&self, row: usize, col: usize) -> i8 {
        let at = (col / 4 * PANEL + row % PANEL) * 4 + col % 4;
        self.panel(row / PANEL)[at]
    }

    /// Multiplies patches by panel `index`, and rounds the outputs to codes; `columns` is memory for the panel's numbers.
    ///
    /// # Panics
    /// See [`simd::multiply_to_codes`].
    pub(crate) fn multiply_to_codes(
        &self,
        level: SimdLevel,
        rows: &PatchRows,
        index: usize,
        (columns, rounding): (&mut PanelColumns, &CodeRounding),
        out: &mut RoundedRows,
    ) {
        columns.set(&self.sums, &self.scales, None, index * PANEL);
        let is_last = (index + 1) * PANEL >= self.n_out;
        let next = if is_last { &[] } else { self.panel(index + 1) };
        simd::multiply_to_codes(level, rows, [self.panel(index), next], (columns, rounding), out);
    }

    fn panel(&self, index: usize) -> &[i8] {
        let n_bytes = panel_bytes(self.n_in);
        &self.codes.codes()[index * n_bytes..(index + 1) * n_bytes]
    }
}

impl Int8Weights for PackedInt8 {
    fn n_out(&self) -> usize {
        self.n_out
    }

    fn n_in(&self) -> usize {
        self.n_in
    }

    fn read_row(&self, row: usize, out: &mut [f32]) {
        row_of_panel(self.panel(row / PANEL), row % PANEL, self.scales[row], out);
    }

    fn n_bytes(&self) -> usize {
        self.codes.bytes().len() + 4 * self.sums.len() + 4 * self.scales.len()
    }
}

#[expect(private_interfaces, reason = "the trait is sealed")]
impl sealed::Panels for PackedInt8 {
    fn columns(&self, index: usize, bias: Option<&[f32]>, columns: &mut PanelColumns) {
        columns.set(&self.sums, &self.scales, bias, index * PANEL);
    }

    fn multiply(&self, kernel: &mut Kernel, index: usize, is_last: bool, columns: &PanelColumns, out: OutputBlock) {
        let next = if is_last { &[] } else { self.panel(index + 1) };
        kernel.multiply_panel(self.panel(index), next, columns, out);
    }

    fn multiply_floats(
        &self,
        level: SimdLevel,
        rows: &FloatRows,
        index: usize,
        columns: &PanelColumns,
        out: OutputBlock,
    ) {
        simd::multiply_float_panel(level, rows, self.panel(index), columns, out);
    }

    fn unpack(&self, index: usize, codes: &mut [i8]) {
        codes.copy_from_slice(self.panel(index));
    }

    fn scale(&self, row: usize) -> f32 {
        self.scales[row]
    }
}

impl std::fmt::Debug for PackedInt8 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedInt8 [{}, {}]", self.n_out, self.n_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_DEPTH;

    #[test]
    fn packed_codes_are_read_back_and_take_one_byte() {
        for (n_out, n_in) in [(1, 1), (31, 5), (32, 64), (33, 67), (70, 4)] {
            let codes: Vec<i8> = (0..n_out * n_in).map(|i| (i * 37 % 255) as u8 as i8).collect();
            let packed = PackedInt8::new(&codes, &vec![1.0; n_out], n_out, n_in).unwrap();
            for (i, &code) in codes.iter().enumerate() {
                assert_eq!(packed.code(i / n_in, i % n_in), code);
            }
        }
        let packed = PackedInt8::new(&vec![1; 768 * 768], &[1.0; 768], 768, 768).unwrap();
        assert_eq!(packed.n_bytes(), 768 * 768 + 8 * 768);
    }

    #[test]
    fn packing_by_parts_equals_packing_at_once() {
        for (n_out, n_in) in [(0, 3), (5, 0), (31, 5), (100, 7), (129, 64)] {
            let codes: Vec<i8> = (0..n_out * n_in).map(|i| (i * 37 % 255) as u8 as i8).collect();
            let whole = PackedInt8::new(&codes, &vec![1.0; n_out], n_out, n_in).unwrap();
            let read = |(): &mut (), first: usize, rows: &mut [i8]| {
                rows.copy_from_slice(&codes[first * n_in..][..rows.len()]);
                Ok(())
            };
            let parts = PackedInt8::of_parts(&vec![1.0; n_out], [n_out, n_in], 64, || (), read).unwrap();
            assert_eq!((parts.codes.bytes(), &parts.sums), (whole.codes.bytes(), &whole.sums), "[{n_out}, {n_in}]");
        }
    }

    #[test]
    fn more_inputs_than_int32_sums_hold_are_refused() {
        let error = PackedInt8::new(&vec![0; MAX_DEPTH + 1], &[1.0], 1, MAX_DEPTH + 1).unwrap_err();
        assert_eq!(error.to_string(), "found 65537 inputs, expected at most 65536: int32 sums cannot hold more");
    }
}

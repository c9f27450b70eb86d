//! Lookup of rows in an int8 table.

use crate::code_rows::CodeRows;
use briquette_core::{Affine, simd};

/// A table of `[n_rows, n_cols]` codes with one scale for each row.
#[derive(Clone)]
pub struct Int8Embedding {
    codes: CodeRows,
    scales: Vec<f32>,
}

impl Int8Embedding {
    /// Returns a table of the values `codes[r, c] * scales[r]`.
    pub const fn new(codes: CodeRows, scales: Vec<f32>) -> Self {
        Self { codes, scales }
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.scales.len()
    }

    /// Returns the number of columns.
    pub const fn n_cols(&self) -> usize {
        self.codes.n_cols()
    }

    /// Returns whether zeros are omitted.
    pub const fn is_sparse(&self) -> bool {
        self.codes.is_sparse()
    }

    /// Returns all rows as f32.
    pub fn to_floats(&self) -> Vec<f32> {
        let mut floats = vec![0.0; self.n_rows() * self.n_cols()];
        int8_embedding(&(0..self.n_rows()).collect::<Vec<_>>(), self, &mut floats);
        floats
    }

    /// Returns all codes row by row, and the scale of each row.
    pub fn codes(&self) -> (Vec<i8>, Vec<f32>) {
        let (mut codes, mut scratch) = (Vec::with_capacity(self.n_rows() * self.n_cols()), Vec::new());
        (0..self.n_rows()).for_each(|row| codes.extend_from_slice(self.codes.row(row, &mut scratch)));
        (codes, self.scales.clone())
    }

    /// Returns the size in memory in bytes.
    pub fn n_bytes(&self) -> usize {
        self.codes.n_bytes() + 4 * self.scales.len()
    }
}

impl std::fmt::Debug for Int8Embedding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Int8Embedding [{}, {}]", self.n_rows(), self.n_cols())
    }
}

/// Looks up rows: `out[t, c] = codes[ids[t], c] * scales[ids[t]]`.
///
/// Expands only the rows in `ids`.
///
/// # Panics
/// If an id is not a row of the table, or `out` is not `[ids.len(), n_cols]`.
pub fn int8_embedding(ids: &[usize], table: &Int8Embedding, out: &mut [f32]) {
    let n_cols = table.n_cols();
    assert_eq!(out.len(), ids.len() * n_cols, "{} outputs for [{}, {n_cols}]", out.len(), ids.len());
    if n_cols == 0 {
        return;
    }
    let mut scratch = Vec::new();
    for (&id, out) in ids.iter().zip(out.chunks_exact_mut(n_cols)) {
        assert!(id < table.n_rows(), "id {id} in a table of {} rows", table.n_rows());
        simd::dequantize(table.codes.row(id, &mut scratch), Affine::symmetric(table.scales[id]), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_looked_up_dense_and_sparse() {
        let codes = [1, 0, -3, 0, 0, 127];
        for rows in [CodeRows::dense(codes.to_vec(), 2, 3), CodeRows::bitmask(&codes, 2, 3)] {
            let table = Int8Embedding::new(rows, vec![0.5, 2.0]);
            let mut out = [9.0; 9];
            int8_embedding(&[1, 0, 1], &table, &mut out);
            assert_eq!(out, [0.0, 0.0, 254.0, 0.5, 0.0, -1.5, 0.0, 0.0, 254.0]);
            int8_embedding(&[], &table, &mut []);
        }
    }

    #[test]
    #[should_panic(expected = "id 2 in a table of 2 rows")]
    fn out_of_range_ids_panic_with_the_id() {
        int8_embedding(&[2], &Int8Embedding::new(CodeRows::dense(vec![1, 2], 2, 1), vec![1.0; 2]), &mut [0.0]);
    }
}

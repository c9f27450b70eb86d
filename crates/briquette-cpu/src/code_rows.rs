//! Rows of int8 codes for access to single rows.

use briquette_core::simd::{compress8, expand8};

/// Row-major int8 codes `[n_rows, n_cols]`, dense or as a bitmask with the nonzero codes.
#[derive(Clone)]
pub struct CodeRows {
    n_cols: usize,
    kept: RowStorage,
}

#[derive(Clone)]
enum RowStorage {
    Dense(Vec<i8>),
    /// A mask in whole bytes for each row; the values of row `r` start at `offsets[r]`.
    Bitmask {
        bits: Vec<u8>,
        values: Vec<u8>,
        offsets: Vec<usize>,
    },
}

impl CodeRows {
    /// Stores every code in a byte.
    ///
    /// # Panics
    /// If the number of codes is not `n_rows * n_cols`.
    pub fn dense(codes: Vec<i8>, n_rows: usize, n_cols: usize) -> Self {
        assert_eq!(codes.len(), n_rows * n_cols, "{} codes for [{n_rows}, {n_cols}]", codes.len());
        Self { n_cols, kept: RowStorage::Dense(codes) }
    }

    /// Stores one bit for each code and one byte for each nonzero code.
    ///
    /// # Panics
    /// If the number of codes is not `n_rows * n_cols`.
    pub fn bitmask(codes: &[i8], n_rows: usize, n_cols: usize) -> Self {
        assert_eq!(codes.len(), n_rows * n_cols, "{} codes for [{n_rows}, {n_cols}]", codes.len());
        let (mut bits, mut values, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..n_rows {
            let row = &codes[row * n_cols..(row + 1) * n_cols];
            offsets.push(values.len());
            let first = bits.len();
            bits.extend(
                row.chunks(8)
                    .map(|codes| codes.iter().rev().fold(0, |bits: u8, &code| bits << 1 | u8::from(code != 0))),
            );
            compress8(bytemuck::cast_slice(row), &bits[first..], &mut values);
        }
        bits.shrink_to_fit();
        values.shrink_to_fit();
        offsets.shrink_to_fit();
        Self { n_cols, kept: RowStorage::Bitmask { bits, values, offsets } }
    }

    /// Returns the number of columns.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns whether zeros are omitted.
    pub const fn is_sparse(&self) -> bool {
        matches!(self.kept, RowStorage::Bitmask { .. })
    }

    /// Returns the size in memory in bytes.
    pub fn n_bytes(&self) -> usize {
        match &self.kept {
            RowStorage::Dense(codes) => codes.len(),
            RowStorage::Bitmask { bits, values, offsets } => bits.len() + values.len() + size_of_val(&offsets[..]),
        }
    }

    /// Returns the codes of a row. Sparse rows are expanded into `scratch`.
    pub fn row<'a>(&'a self, row: usize, scratch: &'a mut Vec<i8>) -> &'a [i8] {
        match &self.kept {
            RowStorage::Dense(codes) => &codes[row * self.n_cols..(row + 1) * self.n_cols],
            RowStorage::Bitmask { bits, values, offsets } => {
                scratch.resize(self.n_cols, 0);
                let n = self.n_cols.div_ceil(8);
                expand8(&values[offsets[row]..], &bits[row * n..(row + 1) * n], bytemuck::cast_slice_mut(scratch));
                scratch
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_rows_expand_to_the_dense_ones() {
        for n_cols in [0, 1, 7, 8, 9, 64, 65, 200] {
            let codes: Vec<i8> = (0..5 * n_cols).map(|i| if i % 3 == 0 { (i % 251) as u8 as i8 } else { 0 }).collect();
            let (dense, sparse) = (CodeRows::dense(codes.clone(), 5, n_cols), CodeRows::bitmask(&codes, 5, n_cols));
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for row in 0..5 {
                assert_eq!(dense.row(row, &mut a), sparse.row(row, &mut b));
            }
            assert!(n_cols < 64 || sparse.n_bytes() < dense.n_bytes());
        }
    }
}

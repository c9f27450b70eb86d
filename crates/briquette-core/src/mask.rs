//! Masks of kept weights, one bit each.

use crate::bits;

/// One bit per weight, set = kept; rows are padded to whole bytes, lowest bit first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    n_rows: usize,
    n_cols: usize,
    bits: Vec<u8>,
}

impl Mask {
    /// Returns the size of a row of `n_cols` bits in bytes.
    pub const fn row_bytes(n_cols: usize) -> usize {
        n_cols.div_ceil(8)
    }

    /// Returns a mask from its stored bits.
    ///
    /// # Panics
    /// If there are not `n_rows * ceil(n_cols / 8)` bytes.
    pub fn from_bits(n_rows: usize, n_cols: usize, bits: Vec<u8>) -> Self {
        assert_eq!(bits.len(), n_rows * Self::row_bytes(n_cols), "whole rows of bits");
        Self { n_rows, n_cols, bits }
    }

    /// Returns a mask that keeps `(row, col)` if `keep(row, col)` is true.
    pub fn from_fn(n_rows: usize, n_cols: usize, mut keep: impl FnMut(usize, usize) -> bool) -> Self {
        let mut bits = vec![0; n_rows * Self::row_bytes(n_cols)];
        if n_cols > 0 {
            for (row, bytes) in bits.chunks_mut(Self::row_bytes(n_cols)).enumerate() {
                for col in (0..n_cols).filter(|&col| keep(row, col)) {
                    bytes[col / 8] |= 1 << (col % 8);
                }
            }
        }
        Self { n_rows, n_cols, bits }
    }

    /// Returns the number of rows and columns.
    pub fn dim(&self) -> (usize, usize) {
        (self.n_rows, self.n_cols)
    }

    /// Returns the bits of all rows.
    pub fn as_bits(&self) -> &[u8] {
        &self.bits
    }

    /// Returns the bits of one row.
    pub fn row(&self, row: usize) -> &[u8] {
        let width = Self::row_bytes(self.n_cols);
        &self.bits[row * width..(row + 1) * width]
    }

    /// Returns whether a weight is kept.
    pub fn keeps(&self, row: usize, col: usize) -> bool {
        bits::get(self.row(row), col)
    }

    /// Returns the number of kept weights.
    pub fn n_kept(&self) -> usize {
        bits::count_ones(&self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_keep_their_bits() {
        for n_cols in [0, 1, 7, 8, 9, 33] {
            let mask = Mask::from_fn(3, n_cols, |row, col| (row + col) % 3 == 0);
            let expected = (0..3).flat_map(|row| (0..n_cols).map(move |col| (row + col) % 3 == 0));
            let found = (0..3).flat_map(|row| (0..n_cols).map(move |col| (row, col)));
            assert!(found.map(|(row, col)| mask.keeps(row, col)).eq(expected.clone()));
            assert_eq!(mask.n_kept(), expected.filter(|&keep| keep).count());
            assert_eq!(Mask::from_bits(3, n_cols, mask.as_bits().to_vec()), mask);
        }
    }
}

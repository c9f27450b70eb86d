//! Packing of codes into the layouts of the kernels.

use crate::bitmask::{BLOCK_INPUTS, BLOCK_ROWS};

/// Sparse codes: one bit per code, and one byte per nonzero code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bitmask {
    /// 32 codes per word, the first in the lowest bit.
    pub bits: Vec<u32>,
    /// Nonzero codes, four per word, followed by a padding word.
    pub values: Vec<u32>,
    /// The number of values before each block or row.
    pub bases: Vec<u32>,
}

/// Returns the words per row of `n_cols` int8 codes, rounded up to whole steps of 32.
pub const fn row_words(n_cols: usize) -> usize {
    n_cols.div_ceil(32) * 8
}

/// Packs rows of codes, four per word, with zeros after the last column.
pub fn rows(codes: &[i8], n_rows: usize, n_cols: usize) -> Vec<u32> {
    let n = row_words(n_cols);
    let mut words = vec![0_u32; n_rows * n];
    if n_cols > 0 {
        for (row, words) in codes.chunks_exact(n_cols).zip(words.chunks_exact_mut(n)) {
            bytemuck::cast_slice_mut::<u32, i8>(words)[..n_cols].copy_from_slice(row);
        }
    }
    words
}

/// Packs rows of 4-bit codes, eight per word, each plus 8.
///
/// If the columns are not a multiple of eight, the last word ends with zeros.
pub fn rows_of_int4(codes: &[i8], n_cols: usize) -> Vec<u32> {
    let word = |codes: &[i8]| codes.iter().rev().fold(0, |word: u32, code| word << 4 | (code + 8) as u32);
    let each = codes.chunks(n_cols.max(1));
    each.flat_map(|row| row.chunks(8).map(word)).collect()
}

/// Packs codes into blocks of 16 rows and 64 inputs, in the layout of [`bitmask`](crate::bitmask).
pub fn blocks(codes: &[i8], n_rows: usize, n_cols: usize) -> Bitmask {
    let mut packer = BitmaskPacker::default();
    for first_row in (0..n_rows).step_by(BLOCK_ROWS) {
        for first_col in (0..n_cols).step_by(BLOCK_INPUTS) {
            packer.begin();
            for row in first_row..first_row + BLOCK_ROWS {
                for half in 0..2 {
                    let from = (first_col + 32 * half).min(n_cols);
                    let to = (from + 32).min(n_cols);
                    packer.push(if row < n_rows { &codes[row * n_cols + from..row * n_cols + to] } else { &[] });
                }
            }
        }
    }
    packer.finish()
}

/// Packs rows of a lookup table, each in whole words of bits.
pub fn row_bitmasks(codes: &[i8], n_cols: usize) -> Bitmask {
    let mut packer = BitmaskPacker::default();
    for row in codes.chunks(n_cols.max(1)) {
        packer.begin();
        row.chunks(32).for_each(|codes| packer.push(codes));
    }
    packer.finish()
}

#[derive(Default)]
struct BitmaskPacker {
    bits: Vec<u32>,
    values: Vec<u8>,
    bases: Vec<u32>,
}

impl BitmaskPacker {
    fn begin(&mut self) {
        self.bases.push(self.values.len() as u32);
    }

    /// Appends a word of at most 32 codes.
    fn push(&mut self, codes: &[i8]) {
        self.bits.push(codes.iter().rev().fold(0, |bits: u32, &code| bits << 1 | u32::from(code != 0)));
        self.values.extend(codes.iter().filter(|&&code| code != 0).map(|&code| code as u8));
    }

    fn finish(mut self) -> Bitmask {
        self.values.resize(self.values.len().next_multiple_of(4) + 4, 0);
        Bitmask { bits: self.bits, values: bytemuck::pod_collect_to_vec(&self.values), bases: self.bases }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_end_with_zeros() {
        assert_eq!(rows(&[1, -1, 2, 3, 4, 5], 2, 3)[..2], [0x0002_ff01, 0]);
        assert_eq!(rows(&[1, -1, 2, 3, 4, 5], 2, 3)[8], 0x0005_0403);
        assert_eq!(rows_of_int4(&[-8, 7, 0, 0, 0, 0, 0, 1], 8), [0x9888_88f0]);
    }

    #[test]
    fn bitmasks_store_nonzero_codes() {
        let mut codes = vec![0_i8; 2 * 70];
        (codes[0], codes[69], codes[70]) = (5, -1, 7);
        let packed = blocks(&codes, 2, 70);
        assert_eq!((packed.bits.len(), &packed.bases[..]), (64, &[0, 2][..]));
        assert_eq!((packed.bits[0], packed.bits[2], packed.bits[32]), (1, 1, 1 << 5));
        assert_eq!(packed.values, [0x00ff_0705, 0]);
        let packed = row_bitmasks(&codes, 70);
        assert_eq!((packed.bits.len(), &packed.bases[..]), (6, &[0, 2][..]));
        assert_eq!(packed.values, [0x0007_ff05, 0]);
    }
}

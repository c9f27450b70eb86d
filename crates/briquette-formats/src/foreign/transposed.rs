//! Matrices that are stored column after column, and 4-bit numbers in pairs, the first in the low bits.

use briquette_core::Result;
use std::ops::Range;

/// Reads bytes of a part in the file.
type Fetch<'a> = dyn Fn(Range<usize>) -> Result<Vec<u8>> + 'a;

/// A matrix whose elements are stored column after column.
pub(super) struct Transposed {
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
}

impl Transposed {
    /// Appends rows of elements of `width` bytes, which are bytes `range` of the matrix row after row.
    pub(super) fn read_bytes(&self, fetch: &Fetch, width: usize, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let row_bytes = (self.n_cols * width).max(1);
        let rows = range.start / row_bytes..range.end / row_bytes;
        let before = out.len();
        out.resize(before + rows.len() * row_bytes, 0);
        for column in 0..self.n_cols {
            let first = column * self.n_rows + rows.start;
            let elements = fetch(first * width..(first + rows.len()) * width)?;
            for (row, element) in out[before..].chunks_exact_mut(row_bytes).zip(elements.chunks_exact(width)) {
                row[column * width..][..width].copy_from_slice(element);
            }
        }
        Ok(())
    }

    /// Appends rows of 4-bit numbers in pairs, each row padded to whole bytes.
    pub(super) fn read_pairs(&self, fetch: &Fetch, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let row_bytes = self.n_cols.div_ceil(2).max(1);
        let rows = range.start / row_bytes..range.end / row_bytes;
        let before = out.len();
        out.resize(before + rows.len() * row_bytes, 0);
        for column in 0..self.n_cols {
            let first = column * self.n_rows + rows.start;
            let pairs = fetch(first / 2..(first + rows.len()).div_ceil(2))?;
            for (index, row) in out[before..].chunks_exact_mut(row_bytes).enumerate() {
                row[column / 2] |= number(&pairs, first % 2 + index) << (column % 2 * 4);
            }
        }
        Ok(())
    }
}

/// The order of 4-bit zero points: see [`ForeignLayout::ZeroPairs`](super::ForeignLayout::ZeroPairs).
pub(super) struct ZeroPairs {
    pub(super) n_groups: usize,
    pub(super) pitch: usize,
    pub(super) is_turned: bool,
    pub(super) is_signed: bool,
}

impl ZeroPairs {
    /// Appends the zero points `range`, counted row after row, each as a signed byte.
    pub(super) fn read(&self, fetch: &Fetch, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let n = self.n_groups;
        let rows = range.start / n..range.end.div_ceil(n);
        let mut zeros = vec![0; rows.len() * n];
        if self.is_turned {
            for group in 0..n {
                let first = group * self.pitch + rows.start;
                let pairs = fetch(first / 2..(first + rows.len()).div_ceil(2))?;
                (0..rows.len()).for_each(|row| zeros[row * n + group] = number(&pairs, first % 2 + row));
            }
        } else {
            let first = rows.start * self.pitch;
            let pairs = fetch(first / 2..((rows.end - 1) * self.pitch + n).div_ceil(2))?;
            let place = |at: usize| first % 2 + at / n * self.pitch + at % n;
            zeros.iter_mut().enumerate().for_each(|(at, zero)| *zero = number(&pairs, place(at)));
        }
        let flip = if self.is_signed { 8 } else { 0 };
        let own = &zeros[range.start - rows.start * n..][..range.len()];
        out.extend(own.iter().map(|zero| (zero ^ flip).wrapping_sub(8)));
        Ok(())
    }
}

/// Returns one of the 4-bit numbers in pairs.
fn number(pairs: &[u8], index: usize) -> u8 {
    pairs[index / 2] >> (index % 2 * 4) & 15
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs 4-bit numbers.
    fn pairs(numbers: &[u8]) -> Vec<u8> {
        numbers.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |high| high << 4)).collect()
    }

    #[test]
    fn a_matrix_in_columns_is_read_by_rows() {
        let columns = [1, 4, 7, 2, 5, 8];
        let fetch = |range: Range<usize>| Ok(columns[range].to_vec());
        let mut out = vec![9];
        Transposed { n_rows: 3, n_cols: 2 }.read_bytes(&fetch, 1, 0..6, &mut out).unwrap();
        assert_eq!(out, [9, 1, 2, 4, 5, 7, 8]);
        let mut out = Vec::new();
        Transposed { n_rows: 3, n_cols: 2 }.read_bytes(&fetch, 1, 2..4, &mut out).unwrap();
        assert_eq!(out, [4, 5]);
        let wide = |range: Range<usize>| Ok((0..12).collect::<Vec<u8>>()[range].to_vec());
        let mut out = Vec::new();
        Transposed { n_rows: 3, n_cols: 2 }.read_bytes(&wide, 2, 4..12, &mut out).unwrap();
        assert_eq!(out, [2, 3, 8, 9, 4, 5, 10, 11]);
    }

    #[test]
    fn pairs_in_columns_are_read_by_rows() {
        for [n_rows, n_cols] in [[3, 4], [4, 2], [5, 3], [1, 1]] {
            let value = |row: usize, col: usize| ((row * 5 + col * 3) % 16) as u8;
            let columns: Vec<u8> = (0..n_rows * n_cols).map(|i| value(i % n_rows, i / n_rows)).collect();
            let file = pairs(&columns);
            let rows: Vec<u8> = (0..n_rows)
                .flat_map(|row| pairs(&(0..n_cols).map(|col| value(row, col)).collect::<Vec<_>>()))
                .collect();
            let fetch = |range: Range<usize>| Ok(file[range].to_vec());
            let (matrix, row_bytes) = (Transposed { n_rows, n_cols }, n_cols.div_ceil(2));
            for range in [0..rows.len(), row_bytes..rows.len(), (n_rows - 1) * row_bytes..rows.len()] {
                let mut out = Vec::new();
                matrix.read_pairs(&fetch, range.clone(), &mut out).unwrap();
                assert_eq!(out, rows[range.start..]);
            }
        }
    }

    #[test]
    fn zero_points_are_read_in_each_order() {
        let (n_rows, n_groups) = (5, 3);
        let value = |row: usize, group: usize| ((row * 7 + group * 2) % 16) as u8;
        let expected: Vec<u8> = (0..15).map(|i| value(i / 3, i % 3).wrapping_sub(8)).collect();
        for is_signed in [false, true] {
            let stored = |row, group| value(row, group) ^ if is_signed { 8 } else { 0 };
            let by_row: Vec<u8> = (0..15).map(|i| stored(i / 3, i % 3)).collect();
            let padded: Vec<u8> = (0..20).map(|i| if i % 4 == 3 { 0 } else { stored(i / 4, i % 4) }).collect();
            let by_group: Vec<u8> = (0..15).map(|i| stored(i % n_rows, i / n_rows)).collect();
            for (numbers, pitch, is_turned) in [(by_row, 3, false), (padded, 4, false), (by_group, n_rows, true)] {
                let file = pairs(&numbers);
                let fetch = |range: Range<usize>| Ok(file[range].to_vec());
                for range in [0..15, 3..15, 4..8, 14..15, 0..0] {
                    let mut out = Vec::new();
                    ZeroPairs { n_groups, pitch, is_turned, is_signed }.read(&fetch, range.clone(), &mut out).unwrap();
                    assert_eq!(out, expected[range]);
                }
            }
        }
    }
}

//! Converts parts in the layouts of other programs while they are read.

mod blocks;
mod transposed;

use crate::InputFile;
use briquette_core::{Error, Result};
use std::ops::Range;

pub use blocks::{BlockLayout, BlockOrder, weave};
use transposed::{Transposed, ZeroPairs};

/// The layout of a part in the files of another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignLayout {
    /// Rows of codes `q + 2^(b-1)`, low bit first, each padded to whole 32-bit words.
    Words {
        /// Bytes of a row in Briquette's layout.
        row_bytes: usize,
        /// Bytes of a row in the file.
        pitch: usize,
        /// Mask that converts a byte by XOR: `0x80` for signed codes.
        flip: u8,
    },
    /// Rows of 4-bit codes, each as a signed byte.
    SignedBytes {
        /// Codes in a row.
        n_cols: usize,
    },
    /// Zero points packed into 32-bit words along the rows of each column of groups.
    ZeroColumns {
        /// Groups per row.
        n_groups: usize,
        /// Bits of a zero point: a divisor of 32, less than 32.
        n_bits: usize,
    },
    /// Codes or scales of a matrix, column after column.
    Transposed {
        /// Rows of the matrix.
        n_rows: usize,
        /// Elements in a row.
        n_cols: usize,
        /// Bits of an element: 4, packed in pairs with the first in the low bits, or whole bytes.
        n_bits: u8,
        /// Mask that converts each byte of a row by XOR: `0x88` for 4-bit codes with a sign.
        flip: u8,
    },
    /// 4-bit zero points, packed in pairs with the first in the low bits.
    ZeroPairs {
        /// Groups per row.
        n_groups: usize,
        /// The distance in zero points from a row to the next; from a group to the next if `is_turned`.
        pitch: usize,
        /// Whether zero points of one group follow each other, instead of those of one row.
        is_turned: bool,
        /// Whether zero points have a sign. Others are above their values by 8.
        is_signed: bool,
    },
    /// BF16 in the file, F32 in Briquette's layout.
    Bf16,
    /// Interleaved with other parts by [`weave`].
    BlockLayout(BlockLayout),
}

impl ForeignLayout {
    /// Returns the layout of rows of `n_cols` codes packed into words.
    pub fn words(n_bits: u8, n_cols: usize) -> Self {
        let flip = if n_bits == 8 { 0x80 } else { 0 };
        let n_bits = n_cols * usize::from(n_bits);
        Self::Words { row_bytes: n_bits.div_ceil(8), pitch: n_bits.div_ceil(32) * 4, flip }
    }

    /// Converts whole rows, which start at byte `offset` of the part, to the bytes in the file and their
    /// offset.
    ///
    /// Returns `None` for a layout that is only read, and for a layout that is written together with other
    /// parts.
    pub fn write(self, offset: u64, ours: &[u8]) -> Option<(u64, Vec<u8>)> {
        let (row_bytes, pitch, flip) = match self {
            Self::Words { row_bytes, pitch, flip } => (row_bytes.max(1), pitch, flip),
            Self::SignedBytes { n_cols } => {
                let row_bytes = n_cols.div_ceil(2).max(1);
                let out = ours.chunks_exact(row_bytes).flat_map(|row| widen_nibbles(row, n_cols)).collect();
                return Some((offset / row_bytes as u64 * n_cols as u64, out));
            }
            _ => return None,
        };
        let mut out = Vec::with_capacity(ours.len() / row_bytes * pitch);
        for row in ours.chunks_exact(row_bytes) {
            out.extend(row.iter().map(|byte| byte ^ flip));
            out.resize(out.len().next_multiple_of(pitch), 0);
        }
        Some((offset / row_bytes as u64 * pitch as u64, out))
    }

    /// Reads bytes `range` of the part in Briquette's layout, from a file where the part starts at `offset`.
    ///
    /// # Errors
    /// See [`InputFile::read_at`].
    pub(crate) fn read(self, file: &InputFile, offset: u64, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let fetch = |range: Range<usize>| {
            let mut bytes = vec![0; range.len()];
            file.read_at(offset + range.start as u64, &mut bytes).map(|()| bytes)
        };
        match self {
            Self::Words { row_bytes, pitch, flip } => {
                let row_bytes = row_bytes.max(1);
                let words = fetch(range.start / row_bytes * pitch..range.end / row_bytes * pitch)?;
                for row in words.chunks_exact(pitch.max(1)) {
                    out.extend(row.iter().take(row_bytes).map(|byte| byte ^ flip));
                }
            }
            Self::SignedBytes { n_cols } => {
                let row_bytes = n_cols.div_ceil(2).max(1);
                let codes = fetch(range.start / row_bytes * n_cols..range.end / row_bytes * n_cols)?;
                codes.chunks_exact(n_cols.max(1)).try_for_each(|row| narrow_to_nibbles(row, out))?;
            }
            Self::ZeroColumns { n_groups, n_bits } => {
                let first_word = range.start / n_groups * n_bits / 32;
                let end_word = (range.end.div_ceil(n_groups) * n_bits).div_ceil(32);
                let bytes = fetch(first_word * n_groups * 4..end_word * n_groups * 4)?;
                let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
                out.extend(range.map(|i| {
                    let (bit, group) = (i / n_groups * n_bits, i % n_groups);
                    zero_of(words[(bit / 32 - first_word) * n_groups + group] >> (bit % 32), n_bits)
                }));
            }
            Self::Transposed { n_rows, n_cols, n_bits, flip } => {
                let before = out.len();
                let codes = Transposed { n_rows, n_cols };
                match n_bits {
                    4 => codes.read_pairs(&fetch, range, out)?,
                    _ => codes.read_bytes(&fetch, usize::from(n_bits / 8), range, out)?,
                }
                out[before..].iter_mut().for_each(|byte| *byte ^= flip);
            }
            Self::ZeroPairs { n_groups, pitch, is_turned, is_signed } => {
                ZeroPairs { n_groups, pitch, is_turned, is_signed }.read(&fetch, range, out)?;
            }
            Self::BlockLayout(blocks) => {
                let n_bytes = blocks.n_bytes().max(1);
                let (first, end) = (range.start / n_bytes, range.end.div_ceil(n_bytes));
                let bytes = fetch(first * blocks.block_bytes()..end * blocks.block_bytes())?;
                let before = out.len();
                blocks.take(&bytes, out);
                out.drain(before..before + range.start - first * n_bytes);
                out.truncate(before + range.len());
            }
            Self::Bf16 => {
                let halves = fetch(range.start / 2..range.end / 2)?;
                let widen = |half: &[u8; 2]| half::bf16::from_le_bytes(*half).to_f32().to_le_bytes();
                out.extend(halves.as_chunks::<2>().0.iter().flat_map(widen));
            }
        }
        Ok(())
    }
}

/// Returns the codes of a row of nibbles `code + 8`, low half first, as signed bytes.
fn widen_nibbles(row: &[u8], n_cols: usize) -> impl Iterator<Item = u8> {
    let codes = row.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    codes.take(n_cols).map(|code| code.wrapping_sub(8))
}

/// Appends a row of signed codes as nibbles `code + 8`, low half first.
///
/// # Errors
/// Input: a code does not have 4 bits.
fn narrow_to_nibbles(row: &[u8], out: &mut Vec<u8>) -> Result<()> {
    if let Some(&code) = row.iter().find(|code| code.wrapping_add(8) > 15) {
        let code = code as i8;
        return Err(Error::input(format!("found the code {code}, expected -8 to 7; the checkpoint is damaged")));
    }
    let nibble = |code: Option<&u8>| code.map_or(0, |code| code.wrapping_add(8));
    out.extend(row.chunks(2).map(|pair| nibble(pair.first()) | nibble(pair.get(1)) << 4));
    Ok(())
}

/// Returns the lowest bits of a word minus half their range, as a signed byte.
fn zero_of(word: u32, n_bits: usize) -> u8 {
    let unsigned = word & ((1 << n_bits) - 1);
    unsigned.wrapping_sub(1 << (n_bits - 1)).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(layout: ForeignLayout, bytes: &[u8], range: Range<usize>) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part");
        std::fs::write(&path, [b"xyz", bytes].concat()).unwrap();
        let mut out = Vec::new();
        layout.read(&InputFile::open(&path).unwrap(), 3, range, &mut out).unwrap();
        out
    }

    #[test]
    fn the_padding_of_each_row_is_dropped() {
        let rows = [1, 2, 3, 0, 5, 6, 7, 0];
        assert_eq!(read(ForeignLayout::Words { row_bytes: 3, pitch: 4, flip: 0 }, &rows, 0..6), [1, 2, 3, 5, 6, 7]);
        assert_eq!(read(ForeignLayout::Words { row_bytes: 3, pitch: 4, flip: 0x80 }, &rows, 3..6), [0x85, 0x86, 0x87]);
    }

    #[test]
    fn written_rows_read_back() {
        for (n_bits, n_cols) in [(8, 10), (8, 1), (8, 8), (4, 8), (4, 10), (4, 1)] {
            let layout = ForeignLayout::words(n_bits, n_cols);
            let ours: Vec<u8> = (0..3 * (n_cols * usize::from(n_bits)).div_ceil(8)).map(|i| (i * 37) as u8).collect();
            let (offset, words) = layout.write(0, &ours).unwrap();
            assert_eq!((offset, words.len() % 12), (0, 0));
            assert_eq!(read(layout, &words, 0..ours.len()), ours);
            let last = ours.len() / 3 * 2;
            let (offset, rest) = layout.write(last as u64, &ours[last..]).unwrap();
            assert_eq!(rest, words[offset as usize..]);
        }
    }

    #[test]
    fn four_bit_codes_are_written_as_signed_bytes_and_read_back() {
        for n_cols in [1, 2, 7, 8] {
            let layout = ForeignLayout::SignedBytes { n_cols };
            let codes: Vec<i8> = (0..3 * n_cols).map(|i| (i * 7 % 16) as i8 - 8).collect();
            let row = |codes: &[i8]| -> Vec<u8> {
                let nibble = |code: i8| (code + 8) as u8;
                codes.chunks(2).map(|pair| nibble(pair[0]) | pair.get(1).map_or(0, |&code| nibble(code) << 4)).collect()
            };
            let ours: Vec<u8> = codes.chunks(n_cols).flat_map(row).collect();
            let bytes: Vec<u8> = codes.iter().map(|&code| code as u8).collect();
            assert_eq!(layout.write(0, &ours), Some((0, bytes.clone())));
            assert_eq!(read(layout, &bytes, 0..ours.len()), ours);
            let last = ours.len() / 3 * 2;
            assert_eq!(
                layout.write(last as u64, &ours[last..]),
                Some((2 * n_cols as u64, bytes[2 * n_cols..].to_vec()))
            );
            assert_eq!(read(layout, &bytes, last..ours.len()), ours[last..]);
        }
        let error = narrow_to_nibbles(&[0, 8], &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "found the code 8, expected -8 to 7; the checkpoint is damaged");
    }

    #[test]
    fn zero_points_are_read_from_columns() {
        // Ten rows of two groups: row r of group g has the code (r + g) % 16, with eight rows per word.
        let code = |row: usize, group: usize| (row + group) % 16;
        let word = |first: usize, group: usize| {
            (first..(first + 8).min(10)).map(|row| (code(row, group) as u32) << (4 * (row - first))).sum::<u32>()
        };
        let words = [word(0, 0), word(0, 1), word(8, 0), word(8, 1)];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let expected: Vec<u8> = (0..20).map(|i| (code(i / 2, i % 2) as i8 - 8) as u8).collect();
        let layout = ForeignLayout::ZeroColumns { n_groups: 2, n_bits: 4 };
        assert_eq!(read(layout, &bytes, 0..20), expected);
        assert_eq!(read(layout, &bytes, 18..20), expected[18..]);
        assert_eq!(read(layout, &bytes, 6..18), expected[6..18]);
    }

    #[test]
    fn any_range_of_a_part_is_read_from_blocks() {
        let ours: Vec<u8> = (0..30).collect();
        let blocks = BlockLayout::new(8, 1, 6).unwrap();
        let woven = weave(&[(blocks, &ours)]).unwrap();
        for range in [0..30, 6..12, 12..30, 3..5, 5..19, 30..30, 0..0] {
            assert_eq!(read(ForeignLayout::BlockLayout(blocks), &woven, range.clone()), ours[range]);
        }
    }

    #[test]
    fn layouts_of_parts_are_small() {
        // There may be one for each part of millions of tensors.
        assert!(size_of::<Option<ForeignLayout>>() <= 24);
    }

    #[test]
    fn bf16_is_widened() {
        let halves: Vec<u8> = [1.5_f32, -2.0].iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
        assert_eq!(read(ForeignLayout::Bf16, &halves, 4..8), (-2.0_f32).to_le_bytes());
    }
}

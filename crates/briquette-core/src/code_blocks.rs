//! The blocks of rows in which codes are entropy-coded.

use crate::{Rows, bits};
use std::ops::Range;

/// The longest row that can be entropy-coded, because a block consists of whole rows.
pub const MAX_BLOCK_COLS: usize = 1 << 24;

/// The entropy-coded blocks of a tensor, each with the rows of [several](Self::OF_ROW_BLOCKS) blocks of
/// [`Rows::blocks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeBlocks {
    rows: Rows,
    rows_per_block: usize,
}

impl CodeBlocks {
    /// Blocks of [`Rows::blocks`] in one entropy-coded block.
    pub const OF_ROW_BLOCKS: usize = 4;

    /// Returns the blocks of a tensor of this size.
    pub fn new(n_rows: usize, n_cols: usize) -> Self {
        let rows = Rows::plain(n_rows, n_cols);
        Self { rows, rows_per_block: Self::OF_ROW_BLOCKS * rows.rows_per_block() }
    }

    /// Returns the smallest number of rows that is a multiple of a block and of 32.
    pub fn rows_by_32(rows: &Rows) -> usize {
        let n = Self::OF_ROW_BLOCKS * rows.rows_per_block();
        n << 5_u32.saturating_sub(n.trailing_zeros())
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.rows.n_rows.div_ceil(self.rows_per_block)
    }

    /// Returns whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the rows of a block.
    pub fn rows(&self, block: usize) -> Range<usize> {
        let start = (block * self.rows_per_block).min(self.rows.n_rows);
        start..(start + self.rows_per_block).min(self.rows.n_rows)
    }

    /// Returns the blocks that contain these rows.
    pub fn of_rows(&self, rows: &Range<usize>) -> Range<usize> {
        rows.start / self.rows_per_block..rows.end.div_ceil(self.rows_per_block)
    }

    /// Returns the number of codes in a block.
    pub fn n_codes(&self, block: usize) -> usize {
        self.rows(block).len() * self.rows.n_cols
    }

    /// Returns the size of a block with `n_bits` per code in bytes, which is its largest size.
    pub fn packed_bytes(&self, block: usize, n_bits: u8) -> usize {
        bits::packed_bytes(self.n_codes(block), n_bits)
    }
}

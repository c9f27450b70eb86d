//! Collects codes into entropy-coded blocks.

use briquette_core::Rows;
use briquette_core::encoded::{CodeBlocks, Coding, Storage};
use briquette_core::entropy::{write_block, write_trellis_block};
use std::ops::Range;

/// The blocks of a task's pieces. A block is coded as soon as all of its codes are known.
pub(super) struct BlocksOut {
    blocks: CodeBlocks,
    n_bits: u8,
    /// The length of rows, if their codes may be on a trellis.
    trellis_cols: Option<usize>,
    /// The number of the next block.
    number: usize,
    /// The last coded block.
    pub(super) coded: Vec<u8>,
}

impl BlocksOut {
    /// Creates the blocks of a task whose first piece has these rows; `None` without entropy coding.
    pub(super) fn of(coding: Coding, rows: Rows, first: &Range<usize>) -> Option<Self> {
        let Storage::Entropy { has_trellis, .. } = coding.storage else { return None };
        let trellis_cols = has_trellis.then_some(rows.n_cols);
        let blocks = CodeBlocks::new(rows.n_rows, rows.n_cols);
        let number = blocks.of_rows(first).start;
        Some(Self { blocks, n_bits: coding.codes?.bits, trellis_cols, number, coded: Vec::new() })
    }

    /// Encodes the next block if all its codes are there, and removes them. Returns their number.
    pub(super) fn code(&mut self, codes: &mut Vec<u8>) -> Option<usize> {
        let n_codes = self.blocks.n_codes(self.number);
        if codes.is_empty() || codes.len() < n_codes {
            return None;
        }
        self.coded.clear();
        let block = bytemuck::cast_slice(&codes[..n_codes]);
        match self.trellis_cols {
            Some(n_cols) => write_trellis_block(block, n_cols, &mut self.coded),
            None => write_block(block, self.n_bits, &mut self.coded),
        }
        codes.drain(..n_codes);
        self.number += 1;
        Some(n_codes)
    }
}

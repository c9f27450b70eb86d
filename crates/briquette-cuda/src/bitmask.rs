//! Sparse weights: one bit per code, and one byte per nonzero code.
//!
//! They are stored in blocks of 16 rows and 64 inputs, in the order of the steps of a product. A block has 32
//! words of bits, two for each row, and its bytes start at `bases[block]`.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

/// Rows in a block.
pub const BLOCK_ROWS: usize = 16;
/// Inputs in a block.
pub const BLOCK_INPUTS: usize = 64;
/// Blocks that a cube expands, one per warp.
pub const BLOCKS: usize = 8;

/// Expands weights `[n_rows, row_words]`, including zeros: one warp per block, `row_blocks` blocks in a row.
#[cube(launch_unchecked)]
pub fn expand(
    bits: &[u32],
    values: &[u32],
    bases: &[u32],
    codes: &mut [u32],
    n_rows: u32,
    row_words: u32,
    row_blocks: u32,
    n_blocks: u32,
) {
    let lane = UNIT_POS as usize % 32;
    let block = CUBE_POS_X as usize * BLOCKS + UNIT_POS as usize / 32;
    // Warps after the last block expand it again, because a sum over a warp needs all of its threads.
    let at = min(block, n_blocks as usize - 1);
    let mask = bits[at * 32 + lane];
    sync_plane();
    let mut offset = bases[at] + plane_exclusive_sum(mask.count_ones());
    let row = at / row_blocks as usize * BLOCK_ROWS + lane / 2;
    let first = at % row_blocks as usize * (BLOCK_INPUTS / 4) + lane % 2 * 8;
    let is_inside = block < n_blocks as usize && row < n_rows as usize;
    #[unroll]
    for word in 0..8usize {
        let nibble = (mask >> comptime!(word as u32 * 4)) & 15u32;
        let spread = spread_nibble(nibble, bytes_from(values, offset));
        offset += nibble.count_ones();
        if is_inside && first + word < row_words as usize {
            codes[row * row_words as usize + first + word] = spread;
        }
    }
}

/// Returns four bytes starting at any offset.
#[cube]
pub(crate) fn bytes_from(values: &[u32], offset: u32) -> u32 {
    let word = (offset / 4u32) as usize;
    let shift = offset % 4u32 * 8u32;
    // A shift by 32 bits is undefined, so the upper half is shifted twice.
    (values[word] >> shift) | ((values[word + 1] << 1u32) << (31u32 - shift))
}

/// Moves the low bytes, in order, to the positions of ones in the nibble; zero elsewhere.
#[cube]
pub(crate) fn spread_nibble(nibble: u32, bytes: u32) -> u32 {
    let mut rest = bytes;
    let mut spread = 0u32;
    #[unroll]
    for i in 0..4usize {
        if (nibble >> comptime!(i as u32)) & 1u32 == 1u32 {
            spread |= (rest & 0xffu32) << comptime!(i as u32 * 8);
            rest >>= 8u32;
        }
    }
    spread
}

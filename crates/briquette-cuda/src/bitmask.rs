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

/// Expands weights `[n_rows, row_vectors]`, including zeros, in vectors of 16 codes: one warp per block, `row_blocks` blocks
/// in a row.
#[cube(launch_unchecked)]
pub fn expand(
    bits: &[u32],
    values: &[u32],
    bases: &[u32],
    codes: &mut [Vector<u32, Const<4>>],
    n_rows: u32,
    row_vectors: u32,
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
    let first = at % row_blocks as usize * (BLOCK_INPUTS / 16) + lane % 2 * 2;
    let is_inside = block < n_blocks as usize && row < n_rows as usize;
    #[unroll]
    for half in 0..2usize {
        let of_half = (mask >> comptime!(half as u32 * 16)) & 0xffffu32;
        let expanded = sixteen_codes(of_half, values, offset);
        offset += of_half.count_ones();
        if is_inside && first + half < row_vectors as usize {
            codes[row * row_vectors as usize + first + half] = expanded;
        }
    }
}

/// Returns 16 codes: the bytes from `offset` on at the ones of `mask`, and zeros.
#[cube]
pub(crate) fn sixteen_codes(mask: u32, values: &[u32], offset: u32) -> Vector<u32, Const<4>> {
    let mut codes = Vector::<u32, Const<4>>::cast_from(0u32);
    let mut offset = offset;
    #[unroll]
    for word in 0..4usize {
        let nibble = (mask >> comptime!(word as u32 * 4)) & 15u32;
        codes.insert(word, spread_nibble(nibble, bytes_from(values, offset)));
        offset += nibble.count_ones();
    }
    codes
}

/// Returns four bytes starting at any offset.
#[cube]
fn bytes_from(values: &[u32], offset: u32) -> u32 {
    let word = (offset / 4u32) as usize;
    let shift = offset % 4u32 * 8u32;
    // A shift by 32 bits is undefined, so the upper half is shifted twice.
    (values[word] >> shift) | ((values[word + 1] << 1u32) << (31u32 - shift))
}

/// Moves the low bytes, in order, to the positions of ones in the nibble; zero elsewhere.
#[cube]
fn spread_nibble(nibble: u32, bytes: u32) -> u32 {
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

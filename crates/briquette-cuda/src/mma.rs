//! int8 products with matrix instructions, `mma.sync m16n8k32`: NVIDIA devices of compute capability 8.0 and
//! later.
//!
//! A cube computes a tile of outputs in steps of 64 inputs. The next step is read into registers while the
//! previous one, in shared memory, is multiplied.

use crate::bitmask::{BLOCK_ROWS, sixteen_codes};
use crate::epilogue::{EpilogueFlags, OutputLayout, place, scaled, write};
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Units per warp.
const WARP: usize = 32;
/// Vectors of 16 codes per step.
const STEP: usize = 4;
/// Words per row in shared memory: those of a step, and four that shift rows to different banks.
const STRIDE: usize = STEP * 4 + 4;

/// The distribution of a cube's outputs among warps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MmaTile {
    /// Warps along rows and columns.
    pub warps: [usize; 2],
    /// Fragments per warp, of 16 rows and of 8 columns.
    pub fragments: [usize; 2],
}

impl MmaTile {
    /// 128 by 128 outputs for many rows.
    pub const LARGE: Self = Self { warps: [2, 2], fragments: [4, 8] };
    /// 64 by 64 outputs.
    pub const MEDIUM: Self = Self { warps: [2, 2], fragments: [2, 4] };
    /// 16 by 64 outputs for a few rows.
    pub const SMALL: Self = Self { warps: [1, 4], fragments: [1, 2] };

    /// Returns the rows and columns of a cube.
    pub const fn extents(self) -> [usize; 2] {
        [self.warps[0] * self.fragments[0] * 16, self.warps[1] * self.fragments[1] * 8]
    }

    /// Returns the warps of a cube.
    pub const fn n_warps(self) -> usize {
        self.warps[0] * self.warps[1]
    }

    /// Returns the vectors of a step that each unit reads for this number of rows.
    const fn reads(self, n_rows: usize) -> usize {
        (n_rows * STEP).div_ceil(self.n_warps() * WARP)
    }
}

/// Multiplies rows of codes by rows of weights up to `n_cols`.
///
/// A row has `row_vectors` vectors of 16 codes. Cube `(column tile, row tile)` of `[warp, unit]`. Weights are
/// dense in `b`, or in the blocks of [`bitmask`](crate::bitmask).
#[cube(launch_unchecked)]
pub fn product_mma<F: Float>(
    a: &[Vector<u32, Const<4>>],
    b: &[Vector<u32, Const<4>>],
    bits: &[u32],
    values: &[u32],
    bases: &[u32],
    row_scales: &[f32],
    row_zeros: &[i32],
    col_sums: &[i32],
    col_scales: &[f32],
    scale: &[f32],
    shift: &[f32],
    y: &mut [F],
    n_rows: u32,
    n_cols: u32,
    row_vectors: u32,
    layout: OutputLayout,
    #[comptime] tile: MmaTile,
    #[comptime] sparse: bool,
    #[comptime] epilogue: EpilogueFlags,
    #[define(F)] _dtype: ElemType,
) {
    let [tile_rows, tile_cols] = comptime!(tile.extents());
    let first_row = CUBE_POS_Y as usize * tile_rows;
    let first_col = layout.first_col as usize + CUBE_POS_X as usize * tile_cols;
    let (n_rows, n_cols, row_vectors) = (n_rows as usize, n_cols as usize, row_vectors as usize);

    let mut shared_a = Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(2 * tile_rows * STRIDE / 4));
    let mut shared_b = Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(2 * tile_cols * STRIDE / 4));
    let mut next_a = Array::<Vector<u32, Const<4>>>::new(comptime!(tile.reads(tile_rows)));
    let mut next_b = Array::<Vector<u32, Const<4>>>::new(comptime!(tile.reads(tile_cols)));
    let mut sums = Array::<Vector<i32, Const<4>>>::new(comptime!(tile.fragments[0] * tile.fragments[1]));
    #[unroll]
    for i in 0..comptime!(tile.fragments[0] * tile.fragments[1]) {
        sums[i] = Vector::cast_from(0i32);
    }

    let mut stage = 0usize;
    let mut vector = 0usize;
    read(a, &mut next_a, first_row, n_rows, vector, row_vectors, tile_rows, tile);
    keep(&mut shared_a, &next_a, stage, tile_rows, tile);
    if comptime!(sparse) {
        spread(bits, values, bases, &mut shared_b, first_col, n_cols, vector, row_vectors, stage, tile);
    } else {
        read(b, &mut next_b, first_col, n_cols, vector, row_vectors, tile_cols, tile);
        keep(&mut shared_b, &next_b, stage, tile_cols, tile);
    }
    while vector < row_vectors {
        // After this barrier no warp reads the other stage, so it can be overwritten.
        sync_cube();
        vector += STEP;
        let goes_on = vector < row_vectors;
        if goes_on {
            read(a, &mut next_a, first_row, n_rows, vector, row_vectors, tile_rows, tile);
            if comptime!(sparse) {
                spread(bits, values, bases, &mut shared_b, first_col, n_cols, vector, row_vectors, 1 - stage, tile);
            } else {
                read(b, &mut next_b, first_col, n_cols, vector, row_vectors, tile_cols, tile);
            }
        }
        multiply(&shared_a, &shared_b, &mut sums, stage * tile_rows, stage * tile_cols, tile);
        stage = 1usize - stage;
        if goes_on {
            keep(&mut shared_a, &next_a, stage, tile_rows, tile);
            if comptime!(!sparse) {
                keep(&mut shared_b, &next_b, stage, tile_cols, tile);
            }
        }
    }
    finish_tile::<F>(
        &sums, first_row, first_col, n_rows, n_cols, row_scales, row_zeros, col_sums, col_scales, scale, shift, y,
        &layout, tile, epilogue,
    );
}

/// Expands a step of sparse weights into shared memory, one block per warp, starting at row `first`.
#[cube]
fn spread(
    bits: &[u32],
    values: &[u32],
    bases: &[u32],
    shared: &mut Shared<[Vector<u32, Const<4>>]>,
    first: usize,
    n_rows: usize,
    vector: usize,
    row_vectors: usize,
    stage: usize,
    #[comptime] tile: MmaTile,
) {
    let tile_rows = comptime!(tile.extents()[1]);
    let (lane, warp) = (UNIT_POS as usize % WARP, UNIT_POS as usize / WARP);
    let row_blocks = row_vectors.div_ceil(STEP);
    let last = n_rows.div_ceil(BLOCK_ROWS) - 1;
    #[unroll]
    for i in 0..comptime!(tile_rows / BLOCK_ROWS / tile.n_warps()) {
        let block_row = warp + comptime!(i * tile.n_warps());
        let block = min(first / BLOCK_ROWS + block_row, last) * row_blocks + vector / STEP;
        let mask = bits[block * 32 + lane];
        sync_plane();
        let mut offset = bases[block] + plane_exclusive_sum(mask.count_ones());
        let at = (stage * tile_rows + block_row * BLOCK_ROWS + lane / 2) * (STRIDE / 4) + lane % 2 * 2;
        #[unroll]
        for half in 0..2usize {
            let of_half = (mask >> comptime!(half as u32 * 16)) & 0xffffu32;
            shared[at + half] = sixteen_codes(of_half, values, offset);
            offset += of_half.count_ones();
        }
    }
}

/// Reads a step of `tile_rows` rows starting at `first`. Beyond the last row, the last row repeats; beyond the
/// last input are zeros.
#[cube]
fn read(
    rows: &[Vector<u32, Const<4>>],
    next: &mut Array<Vector<u32, Const<4>>>,
    first: usize,
    n_rows: usize,
    vector: usize,
    row_vectors: usize,
    #[comptime] tile_rows: usize,
    #[comptime] tile: MmaTile,
) {
    #[unroll]
    for i in 0..comptime!(tile.reads(tile_rows)) {
        let at = UNIT_POS as usize + comptime!(i * tile.n_warps() * WARP);
        let row = min(first + at / STEP, n_rows - 1);
        let col = vector + at % STEP;
        let mut value = Vector::<u32, Const<4>>::cast_from(0u32);
        if col < row_vectors {
            value = rows[row * row_vectors + col];
        }
        next[i] = value;
    }
}

/// Stores a step from registers into a stage of shared memory.
#[cube]
fn keep(
    shared: &mut Shared<[Vector<u32, Const<4>>]>,
    next: &Array<Vector<u32, Const<4>>>,
    stage: usize,
    #[comptime] tile_rows: usize,
    #[comptime] tile: MmaTile,
) {
    #[unroll]
    for i in 0..comptime!(tile.reads(tile_rows)) {
        let at = UNIT_POS as usize + comptime!(i * tile.n_warps() * WARP);
        if comptime!((tile_rows * STEP).is_multiple_of(tile.n_warps() * WARP)) {
            shared[(stage * tile_rows + at / STEP) * (STRIDE / 4) + at % STEP] = next[i];
        } else {
            if at < comptime!(tile_rows * STEP) {
                shared[(stage * tile_rows + at / STEP) * (STRIDE / 4) + at % STEP] = next[i];
            }
        }
    }
}

/// Adds the products of a step in shared memory.
#[cube]
fn multiply(
    shared_a: &Shared<[Vector<u32, Const<4>>]>,
    shared_b: &Shared<[Vector<u32, Const<4>>]>,
    sums: &mut Array<Vector<i32, Const<4>>>,
    first_a: usize,
    first_b: usize,
    #[comptime] tile: MmaTile,
) {
    let words_a = shared_a.with_vector_size::<Const<1>>();
    let words_b = shared_b.with_vector_size::<Const<1>>();
    let unit = UNIT_POS as usize % WARP;
    let warp = UNIT_POS as usize / WARP;
    let (group, lane) = (unit / 4, unit % 4);
    let row = first_a + warp / comptime!(tile.warps[1]) * comptime!(tile.fragments[0] * 16) + group;
    let col = first_b + warp % comptime!(tile.warps[1]) * comptime!(tile.fragments[1] * 8) + group;
    let mut a = Array::<u32>::new(comptime!(tile.fragments[0] * 4));
    let mut b = Array::<u32>::new(comptime!(tile.fragments[1] * 2));
    #[unroll]
    for k in 0..comptime!(STEP / 2) {
        #[unroll]
        for i in 0..tile.fragments[0] {
            let at = (row + comptime!(i * 16)) * STRIDE + comptime!(k * 8) + lane;
            a[comptime!(i * 4)] = u32::cast_from(words_a[at]);
            a[comptime!(i * 4 + 1)] = u32::cast_from(words_a[at + comptime!(8 * STRIDE)]);
            a[comptime!(i * 4 + 2)] = u32::cast_from(words_a[at + 4]);
            a[comptime!(i * 4 + 3)] = u32::cast_from(words_a[at + comptime!(8 * STRIDE + 4)]);
        }
        #[unroll]
        for j in 0..tile.fragments[1] {
            let at = (col + comptime!(j * 8)) * STRIDE + comptime!(k * 8) + lane;
            b[comptime!(j * 2)] = u32::cast_from(words_b[at]);
            b[comptime!(j * 2 + 1)] = u32::cast_from(words_b[at + 4]);
        }
        #[unroll]
        for i in 0..tile.fragments[0] {
            #[unroll]
            for j in 0..tile.fragments[1] {
                let at = comptime!(i * tile.fragments[1] + j);
                sums[at] = multiply_fragment(
                    a[comptime!(i * 4)],
                    a[comptime!(i * 4 + 1)],
                    a[comptime!(i * 4 + 2)],
                    a[comptime!(i * 4 + 3)],
                    b[comptime!(j * 2)],
                    b[comptime!(j * 2 + 1)],
                    sums[at],
                );
            }
        }
    }
}

/// Executes `mma.sync.aligned.m16n8k32` with all units of a warp: see "Matrix Fragments for mma.m16n8k32" of
/// the PTX ISA.
#[cube]
fn multiply_fragment(
    a0: u32,
    a1: u32,
    a2: u32,
    a3: u32,
    b0: u32,
    b1: u32,
    sums: Vector<i32, Const<4>>,
) -> Vector<i32, Const<4>> {
    let out: Vector<i32, Const<4>>;
    gpu_asm!(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {d}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {c};",
        d = out(_) out, a0 = in(_) a0, a1 = in(_) a1, a2 = in(_) a2, a3 = in(_) a3, b0 = in(_) b0, b1 = in(_) b1,
        c = in(_) sums, options(nomem),
    );
    out
}

/// Writes the existing outputs of a tile.
#[cube]
fn finish_tile<F: Float>(
    sums: &Array<Vector<i32, Const<4>>>,
    first_row: usize,
    first_col: usize,
    n_rows: usize,
    n_cols: usize,
    row_scales: &[f32],
    row_zeros: &[i32],
    col_sums: &[i32],
    col_scales: &[f32],
    scale: &[f32],
    shift: &[f32],
    y: &mut [F],
    layout: &OutputLayout,
    #[comptime] tile: MmaTile,
    #[comptime] epilogue: EpilogueFlags,
) {
    let unit = UNIT_POS as usize % WARP;
    let warp = UNIT_POS as usize / WARP;
    let row = first_row + warp / comptime!(tile.warps[1]) * comptime!(tile.fragments[0] * 16) + unit / 4;
    let col = first_col + warp % comptime!(tile.warps[1]) * comptime!(tile.fragments[1] * 8) + unit % 4 * 2;
    #[unroll]
    for i in 0..comptime!(tile.fragments[0] * 2) {
        let row = row + comptime!(i * 8);
        if row < n_rows {
            let (image, first) = place(layout, row);
            let (row_scale, zero) = (row_scales[image], row_zeros[image]);
            #[unroll]
            for j in 0..comptime!(tile.fragments[1] * 2) {
                let col = col + comptime!(j / 2 * 8 + j % 2);
                if col < n_cols {
                    let fragment = sums[comptime!(i / 2 * tile.fragments[1] + j / 2)];
                    let sum = fragment.extract(comptime!(i % 2 * 2 + j % 2));
                    let value = scaled(sum, zero, row_scale, col_sums[col], col_scales[col]);
                    write::<F>(value, col, first, scale, shift, y, layout, epilogue);
                }
            }
        }
    }
}

//! int8 products with the matrix instructions of Hopper, `wgmma.mma_async m64n128k32`: NVIDIA devices of compute capability 9.0.
//!
//! A cube of four warpgroups computes 128 by 256 outputs in steps of 128 inputs. Asynchronous copies fill four stages of
//! shared memory, in the layout "K-major, 128-byte swizzle" of the PTX ISA: the 16 bytes at `column` of a row lie at
//! `column xor row % 8`.

use crate::epilogue::{EpilogueFlags, OutputLayout, place, scaled, write};
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::barrier::copy_async_checked;
use cubecl_core::prelude::*;

/// Rows of a cube.
pub const ROWS: usize = 128;
/// Columns of a cube.
pub const COLS: usize = 256;
/// Units of a cube: two by two warpgroups of 64 by 128 outputs.
pub const UNITS: usize = 512;
/// Vectors of 16 codes per step and row.
const STEP: usize = 8;
/// Stages of shared memory.
const STAGES: usize = 4;
/// Alignment of the swizzled layout in bytes: eight rows.
const ATOM: usize = 1024;
/// The constant bits of a matrix descriptor: 128-byte swizzle, 1024 bytes between groups of eight rows.
const DESCRIPTOR: u64 = 1 << 62 | (ATOM as u64 >> 4) << 32 | 1 << 16;

/// Multiplies rows of codes by rows of dense weights up to `n_cols`; see [`product_mma`](crate::mma::product_mma()).
#[cube(launch_unchecked)]
pub fn product_wgmma<F: Float>(
    a: &[Vector<u32, Const<4>>],
    b: &[Vector<u32, Const<4>>],
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
    #[comptime] epilogue: EpilogueFlags,
    #[define(F)] _dtype: ElemType,
) {
    let first_row = CUBE_POS_Y as usize * ROWS;
    let first_col = layout.first_col as usize + CUBE_POS_X as usize * COLS;
    let (n_rows, n_cols, row_vectors) = (n_rows as usize, n_cols as usize, row_vectors as usize);
    let mut shared_a = Shared::<[Vector<u32, Const<4>>]>::new_aligned_slice(comptime!(STAGES * ROWS * STEP), ATOM);
    let mut shared_b = Shared::<[Vector<u32, Const<4>>]>::new_aligned_slice(comptime!(STAGES * COLS * STEP), ATOM);
    let group = UNIT_POS as usize / 128;
    let (group_row, group_col) = (group / 2, group % 2);
    let start_a = descriptor(&shared_a[..]) + u64::cast_from(group_row * 64 * STEP);
    let start_b = descriptor(&shared_b[..]) + u64::cast_from(group_col * 128 * STEP);

    let n_steps = row_vectors.div_ceil(STEP);
    #[unroll]
    for stage in 0..comptime!(STAGES - 1) {
        fetch(a, &mut shared_a, first_row, n_rows, stage * STEP, row_vectors, stage, ROWS);
        fetch(b, &mut shared_b, first_col, n_cols, stage * STEP, row_vectors, stage, COLS);
        gpu_asm!("cp.async.commit_group;");
    }
    let mut sums = Array::<Vector<i32, Const<64>>>::new(1usize);
    sums[0] = Vector::cast_from(0i32);
    let mut step = 0usize;
    while step < n_steps {
        // The oldest copies have arrived; after the barrier they are visible to the matrix unit, and no warp reads the
        // stage of the last step.
        gpu_asm!("cp.async.wait_group 2;");
        gpu_asm!("fence.proxy.async.shared::cta;");
        sync_cube();
        let next = step + comptime!(STAGES - 1);
        let stage = next % STAGES;
        fetch(a, &mut shared_a, first_row, n_rows, next * STEP, row_vectors, stage, ROWS);
        fetch(b, &mut shared_b, first_col, n_cols, next * STEP, row_vectors, stage, COLS);
        gpu_asm!("cp.async.commit_group;");
        let stage = step % STAGES;
        let at_a = start_a + u64::cast_from(stage * comptime!(ROWS * STEP));
        let at_b = start_b + u64::cast_from(stage * comptime!(COLS * STEP));
        sums[0] = multiply(at_a, at_b, sums[0]);
        step += 1usize;
    }
    let unit = UNIT_POS as usize % 128;
    let row = first_row + group_row * 64 + unit / 32 * 16 + unit % 32 / 4;
    let col = first_col + group_col * 128 + unit % 4 * 2;
    finish::<F>(
        sums[0], row, col, n_rows, n_cols, row_scales, row_zeros, col_sums, col_scales, scale, shift, y, &layout,
        epilogue,
    );
}

/// Starts copies of a step of `tile_rows` rows into a stage. Beyond the last row, the last row repeats; beyond the last
/// input are zeros.
#[cube]
fn fetch(
    rows: &[Vector<u32, Const<4>>],
    shared: &mut Shared<[Vector<u32, Const<4>>]>,
    first: usize,
    n_rows: usize,
    vector: usize,
    row_vectors: usize,
    stage: usize,
    #[comptime] tile_rows: usize,
) {
    #[unroll]
    for i in 0..comptime!(tile_rows * STEP / UNITS) {
        let at = UNIT_POS as usize + comptime!(i * UNITS);
        let (row, col) = (at / STEP, at % STEP);
        let from = min(first + row, n_rows - 1) * row_vectors + min(vector + col, row_vectors - 1);
        let n = u32::cast_from(vector + col < row_vectors);
        let to = stage * comptime!(tile_rows * STEP) + row * STEP + (col ^ (row % 8));
        copy_async_checked(&rows[from..from + n as usize], &mut shared[to..to + 1], 4u32);
    }
}

/// Returns the descriptor of a matrix at the start of shared memory. Adding n moves it by 16 n bytes.
#[cube]
fn descriptor(shared: &[Vector<u32, Const<4>>]) -> u64 {
    let start: u64;
    gpu_asm!(
        "{{ .reg .u64 at; cvta.to.shared.u64 at, {shared}; and.b64 at, at, 262143; shr.u64 {start}, at, 4; }}",
        start = out(_) start, shared = in(_) shared.as_ptr(), options(nomem),
    );
    start | DESCRIPTOR
}

/// Returns `sums` plus the product of a step: 64 by 128 outputs of a warpgroup, 128 inputs.
#[cube]
fn multiply(a: u64, b: u64, sums: Vector<i32, Const<64>>) -> Vector<i32, Const<64>> {
    let moves = comptime!(moves());
    let out: Vector<i32, Const<64>>;
    gpu_asm!(
        "{{ .reg .pred adds; .reg .b64 a1, a2, a3, b1, b2, b3; setp.eq.u32 adds, 0, 0; /* {sums} */ {moves} ",
        "add.u64 a1, {a}, 2; add.u64 a2, {a}, 4; add.u64 a3, {a}, 6; ",
        "add.u64 b1, {b}, 2; add.u64 b2, {b}, 4; add.u64 b3, {b}, 6; wgmma.fence.sync.aligned; ",
        "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {out}, {a}, {b}, adds; ",
        "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {out}, a1, b1, adds; ",
        "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {out}, a2, b2, adds; ",
        "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {out}, a3, b3, adds; ",
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }}",
        out = out(_) out, sums = in(_) sums, a = in(_) a, b = in(_) b,
    );
    out
}

/// Returns the instructions that copy the sums to the registers of the output, which `wgmma` reads and writes.
fn moves() -> String {
    (0..64).map(|at| format!("mov.b32 %{at}, %{}; ", at + 64)).collect()
}

/// Writes the existing outputs of a warpgroup, whose unit has rows `row` and `row + 8`, and pairs of columns from `col` on.
#[cube]
fn finish<F: Float>(
    sums: Vector<i32, Const<64>>,
    row: usize,
    col: usize,
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
    #[comptime] epilogue: EpilogueFlags,
) {
    #[unroll]
    for half in 0..2usize {
        let row = row + comptime!(half * 8);
        if row < n_rows {
            let (image, first) = place(layout, row);
            let (row_scale, zero) = (row_scales[image], row_zeros[image]);
            #[unroll]
            for at in 0..32usize {
                let col = col + comptime!(at / 2 * 8 + at % 2);
                if col < n_cols {
                    let sum = sums.extract(comptime!(at / 2 * 4 + half * 2 + at % 2));
                    let value = scaled(sum, zero, row_scale, col_sums[col], col_scales[col]);
                    write::<F>(value, col, first, scale, shift, y, layout, epilogue);
                }
            }
        }
    }
}

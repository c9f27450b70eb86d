//! Attention of many queries with matrix instructions for TF32, `mma.sync m16n8k8`: NVIDIA devices of compute capability 8.0 and later.
//!
//! Scores and weights of 16 queries by 32 keys are in the registers of a warp. The layout of scores is that of weights as the
//! first factor of the second product, if its keys are reordered: the unit that has columns `2 m` and `2 m + 1` of a block of
//! eight multiplies them as rows `m` and `m + 4`.

use crate::attention::{AttentionForm, AttentionLayout, n_rows, query_at, seen_keys};
use crate::softmax::masked;
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Warps of a cube.
pub const WARPS: usize = 4;
/// Queries of a warp.
const ROWS: usize = 16;
/// Queries of a cube.
pub const CUBE_ROWS: usize = WARPS * ROWS;
/// Keys of a step.
const KEYS: usize = 32;
/// Units per warp.
const WARP: usize = 32;
/// Columns of a fragment.
const COLS: usize = 8;
/// The score of keys after the last one.
const NONE: f32 = -3e38;
/// The largest score before the first key.
const LEAST: f32 = -1e30;

/// Computes `y = softmax(scale · q kᵀ) v` like [`attend_few`](crate::attention::attend_few()) for any number of queries, with
/// products in TF32. The number of vectors in a head is even. Cube `(image and head of keys, queries)`.
#[cube(launch_unchecked)]
pub fn attend_mma<F: Float>(
    q: &[F],
    k: &[Vector<F, Const<4>>],
    v: &[Vector<F, Const<4>>],
    hidden: &[F],
    y: &mut [Vector<F, Const<2>>],
    shape: AttentionLayout,
    scale: f32,
    cap: f32,
    #[comptime] form: AttentionForm,
    #[define(F)] _dtype: ElemType,
) {
    let (warp, unit) = (UNIT_POS as usize / WARP, UNIT_POS as usize % WARP);
    let (group, member) = (unit / 4, unit % 4);
    let vectors = comptime!(form.vectors);
    let n_cols = comptime!(vectors / 2);
    // Four words after each row put the rows that a warp reads together in different banks.
    let stride = comptime!(vectors + 1);
    let mut keys = Shared::<[Vector<f32, Const<4>>]>::new_slice(comptime!(KEYS * stride));
    let mut values = Shared::<[Vector<f32, Const<4>>]>::new_slice(comptime!(KEYS * stride));

    let (image, head) =
        (CUBE_POS_X as usize / shape.kept_heads as usize, CUBE_POS_X as usize % shape.kept_heads as usize);
    let (first_row, n_rows) = (CUBE_POS_Y as usize * CUBE_ROWS, n_rows(&shape));
    let last_row = min(first_row + CUBE_ROWS, n_rows) - 1;
    let (begin, end) = seen_keys(&shape, first_row, last_row, form);
    let kept = image * shape.image_stride as usize + head * shape.head_stride as usize;
    let n_keys = shape.n_keys as usize;
    let own = first_row + warp * ROWS + group;
    let rows = (min(own, n_rows - 1), min(own + 8, n_rows - 1));
    let starts = (query_at(&shape, image, head, rows.0, vectors), query_at(&shape, image, head, rows.1, vectors));
    let queries = read_queries::<F>(q, starts.0 * 4 + member, starts.1 * 4 + member, n_cols);
    let mut largest = Array::<f32>::new(2usize);
    let mut sums = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        largest[half] = LEAST;
        sums[half] = 0.0f32;
    }
    let mut outputs = zeros(n_cols);
    let mut start = begin;
    while start < end {
        sync_cube();
        let mut at = UNIT_POS as usize;
        while at < comptime!(KEYS * vectors) {
            let (key, col) = (at / vectors, at % vectors);
            let from = kept + min(start + key, n_keys - 1) * shape.token_stride as usize + col;
            keys[key * stride + col] = rounded(Vector::cast_from(k[from]));
            values[key * stride + col] = rounded(Vector::cast_from(v[from]));
            at += comptime!(WARPS * WARP);
        }
        sync_cube();
        let mut scores = zeros(comptime!(KEYS / COLS));
        add_scores(&mut scores, &queries, &keys, n_cols);
        mask::<F>(&mut scores, hidden, &shape, image, rows.0, rows.1, start + member * 2, scale, cap, form);
        weigh(&mut scores, &mut largest, &mut sums, &mut outputs, n_cols);
        add_values(&mut outputs, &scores, &values, n_cols);
        start += KEYS;
    }
    #[unroll]
    for half in 0..2usize {
        let sum = over_members_sum(sums[half]);
        if own + comptime!(half * 8) < n_rows {
            let first = select(comptime!(half == 0), starts.0, starts.1) * 2 + member;
            #[unroll]
            for col in 0..n_cols {
                let mut pair = Vector::<f32, Const<2>>::cast_from(0.0f32);
                pair.insert(0usize, outputs[col].extract(comptime!(half * 2)) / sum);
                pair.insert(1usize, outputs[col].extract(comptime!(half * 2 + 1)) / sum);
                y[first + comptime!(col * 4)] = Vector::cast_from(pair);
            }
        }
    }
}

/// Returns the fragments of a unit's two rows of queries, which start at these values.
#[cube]
fn read_queries<F: Float>(q: &[F], start: usize, other: usize, #[comptime] n_cols: usize) -> Array<u32> {
    let mut queries = Array::<u32>::new(comptime!(n_cols * 4));
    #[unroll]
    for col in 0..n_cols {
        #[unroll]
        for half in 0..2usize {
            let at = comptime!(col * COLS + half * 4);
            queries[comptime!(col * 4 + half * 2)] = tf32(f32::cast_from(q[start + at]));
            queries[comptime!(col * 4 + half * 2 + 1)] = tf32(f32::cast_from(q[other + at]));
        }
    }
    queries
}

#[cube]
fn zeros(#[comptime] n: usize) -> Array<Vector<f32, Const<4>>> {
    let mut zeros = Array::<Vector<f32, Const<4>>>::new(n);
    #[unroll]
    for at in 0..n {
        zeros[at] = Vector::cast_from(0.0f32);
    }
    zeros
}

/// Returns the bits of a number rounded to TF32. The instruction ignores the last 13 bits.
#[cube]
fn tf32(x: f32) -> u32 {
    u32::reinterpret(x) + 0x1000u32
}

/// Rounds numbers to TF32, with unspecified bits after its last.
#[cube]
fn rounded(x: Vector<f32, Const<4>>) -> Vector<f32, Const<4>> {
    let mut rounded = x;
    #[unroll]
    for at in 0..4usize {
        rounded.insert(at, f32::reinterpret(tf32(x.extract(at))));
    }
    rounded
}

/// Adds the products of a warp's queries and 32 keys.
#[cube]
fn add_scores(
    scores: &mut Array<Vector<f32, Const<4>>>,
    queries: &Array<u32>,
    keys: &Shared<[Vector<f32, Const<4>>]>,
    #[comptime] n_cols: usize,
) {
    let words = keys.with_vector_size::<Const<1>>();
    let (group, member) = (UNIT_POS as usize % WARP / 4, UNIT_POS as usize % 4);
    #[unroll]
    for block in 0..comptime!(KEYS / COLS) {
        let row = (comptime!(block * COLS) + group) * comptime!(n_cols * COLS + 4) + member;
        #[unroll]
        for col in 0..n_cols {
            let at = row + comptime!(col * COLS);
            scores[block] = multiply_fragment(
                queries[comptime!(col * 4)],
                queries[comptime!(col * 4 + 1)],
                queries[comptime!(col * 4 + 2)],
                queries[comptime!(col * 4 + 3)],
                u32::reinterpret(f32::cast_from(words[at])),
                u32::reinterpret(f32::cast_from(words[at + 4])),
                scores[block],
            );
        }
    }
}

/// Scales the scores of two rows, and hides keys; the unit's first key is `key`.
#[cube]
fn mask<F: Float>(
    scores: &mut Array<Vector<f32, Const<4>>>,
    hidden: &[F],
    shape: &AttentionLayout,
    image: usize,
    row: usize,
    other_row: usize,
    key: usize,
    scale: f32,
    cap: f32,
    #[comptime] form: AttentionForm,
) {
    let n_keys = shape.n_keys as usize;
    let query = shape.first + row as u32 % shape.length;
    let other = shape.first + other_row as u32 % shape.length;
    #[unroll]
    for block in 0..comptime!(KEYS / COLS) {
        let mut of_block = scores[block];
        #[unroll]
        for at in 0..4usize {
            let key = key + comptime!(block * COLS + at % 2);
            let query = select(comptime!(at < 2), query, other);
            let known = min(key, n_keys - 1);
            let score = masked::<F>(
                of_block.extract(at),
                hidden,
                image * n_keys,
                known,
                query,
                shape.window,
                scale,
                cap,
                form.steps,
            );
            of_block.insert(at, select(key < n_keys, score, NONE));
        }
        scores[block] = of_block;
    }
}

/// Replaces the scores of 32 keys by their weights, and adds them to the running softmax of two rows.
#[cube]
fn weigh(
    scores: &mut Array<Vector<f32, Const<4>>>,
    largest: &mut Array<f32>,
    sums: &mut Array<f32>,
    outputs: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] n_cols: usize,
) {
    #[unroll]
    for half in 0..2usize {
        let before = largest[half];
        let mut now = before;
        #[unroll]
        for block in 0..comptime!(KEYS / COLS) {
            now = max(now, scores[block].extract(comptime!(half * 2)));
            now = max(now, scores[block].extract(comptime!(half * 2 + 1)));
        }
        now = max(now, plane_shuffle_xor(now, 1));
        now = max(now, plane_shuffle_xor(now, 2));
        let factor = (before - now).exp();
        let mut sum = sums[half] * factor;
        #[unroll]
        for block in 0..comptime!(KEYS / COLS) {
            let mut of_block = scores[block];
            #[unroll]
            for at in 0..2usize {
                let at = comptime!(half * 2 + at);
                let weight = (of_block.extract(at) - now).exp();
                sum += weight;
                of_block.insert(at, weight);
            }
            scores[block] = of_block;
        }
        largest[half] = now;
        sums[half] = sum;
        #[unroll]
        for col in 0..n_cols {
            let mut of_col = outputs[col];
            #[unroll]
            for at in 0..2usize {
                let at = comptime!(half * 2 + at);
                let output = of_col.extract(at);
                of_col.insert(at, output * factor);
            }
            outputs[col] = of_col;
        }
    }
}

/// Adds the products of weights and 32 values.
#[cube]
fn add_values(
    outputs: &mut Array<Vector<f32, Const<4>>>,
    weights: &Array<Vector<f32, Const<4>>>,
    values: &Shared<[Vector<f32, Const<4>>]>,
    #[comptime] n_cols: usize,
) {
    let words = values.with_vector_size::<Const<1>>();
    let (group, member) = (UNIT_POS as usize % WARP / 4, UNIT_POS as usize % 4);
    let stride = comptime!(n_cols * COLS + 4);
    #[unroll]
    for block in 0..comptime!(KEYS / COLS) {
        let of_block = weights[block];
        let row = (comptime!(block * COLS) + member * 2) * stride + group;
        #[unroll]
        for col in 0..n_cols {
            let at = row + comptime!(col * COLS);
            outputs[col] = multiply_fragment(
                tf32(of_block.extract(0usize)),
                tf32(of_block.extract(2usize)),
                tf32(of_block.extract(1usize)),
                tf32(of_block.extract(3usize)),
                u32::reinterpret(f32::cast_from(words[at])),
                u32::reinterpret(f32::cast_from(words[at + stride])),
                outputs[col],
            );
        }
    }
}

/// Returns the sum over the four units that have the same rows.
#[cube]
fn over_members_sum(x: f32) -> f32 {
    let pairs = x + plane_shuffle_xor(x, 1);
    pairs + plane_shuffle_xor(pairs, 2)
}

/// Executes `mma.sync.aligned.m16n8k8` with all units of a warp: see "Matrix Fragments for mma.m16n8k8" of the PTX ISA.
#[cube]
fn multiply_fragment(
    a0: u32,
    a1: u32,
    a2: u32,
    a3: u32,
    b0: u32,
    b1: u32,
    sums: Vector<f32, Const<4>>,
) -> Vector<f32, Const<4>> {
    let out: Vector<f32, Const<4>>;
    gpu_asm!(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {d}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {c};",
        d = out(_) out, a0 = in(_) a0, a1 = in(_) a1, a2 = in(_) a2, a3 = in(_) a3, b0 = in(_) b0, b1 = in(_) b1,
        c = in(_) sums, options(nomem),
    );
    out
}

//! Attention of a few queries to keys and values, whose scores are never in memory.
//!
//! Each warp keeps the largest score, the sum of weights and the weighted values of its queries, and adds 32 keys at a time, one
//! for each of its units. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.

use crate::softmax::{ScoreSteps, masked};
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Warps of a cube.
pub const WARPS: usize = 8;
/// The most vectors of four values in a head.
pub const MOST_VECTORS: usize = WARP;
/// Units per warp, and keys that a warp adds together.
const WARP: usize = 32;
/// The score of keys after the last one, far below that of hidden keys.
const NONE: f32 = -3e38;
/// The largest score before the first key: that of a hidden key.
const LEAST: f32 = -1e30;

/// Heads, and positions of keys and values; strides are in vectors of four.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct AttentionLayout {
    /// Heads of queries.
    pub heads: u32,
    /// Heads of keys and values.
    pub kept_heads: u32,
    /// Queries of a head.
    pub length: u32,
    /// The position of the first query among the keys.
    pub first: u32,
    /// Number of keys.
    pub n_keys: u32,
    /// Stride between images.
    pub image_stride: u32,
    /// Stride between heads.
    pub head_stride: u32,
    /// Stride between tokens.
    pub token_stride: u32,
    /// See [`ScoreSteps::has_window`].
    pub window: u32,
}

/// Constants of a compiled kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionForm {
    /// Scales and masks of scores.
    pub steps: ScoreSteps,
    /// Vectors of four values in a head, at most [`MOST_VECTORS`].
    pub vectors: usize,
    /// Queries of a warp.
    pub rows: usize,
}

/// The running softmax of a warp's queries.
#[derive(CubeType)]
struct Running {
    largest: Array<f32>,
    /// The sum of each unit's weights.
    sums: Array<f32>,
    /// Sums over the keys of a unit's group, of the vector that it has in a head.
    outputs: Array<Vector<f32, Const<4>>>,
}

/// Computes `y = softmax(scale · q kᵀ) v` for queries and outputs `[images, length, heads, 4 · vectors]`, with sums in f32.
///
/// Queries of all heads that read the same keys are rows together, at most [`AttentionForm::rows`]. Warps read different keys,
/// and their results are joined. `hidden` `[images, n_keys]` is 1 for keys that no query sees, and 0 for others. Cube `image and
/// head of keys`.
#[cube(launch_unchecked)]
pub fn attend_few<F: Float>(
    q: &[Vector<F, Const<4>>],
    k: &[Vector<F, Const<4>>],
    v: &[Vector<F, Const<4>>],
    hidden: &[F],
    y: &mut [Vector<F, Const<4>>],
    shape: AttentionLayout,
    scale: f32,
    cap: f32,
    #[comptime] form: AttentionForm,
    #[define(F)] _dtype: ElemType,
) {
    let (warp, lane) = (UNIT_POS as usize / WARP, UNIT_POS as usize % WARP);
    let [vectors, rows] = comptime!([form.vectors, form.rows]);
    let mut queries = Shared::<[Vector<f32, Const<4>>]>::new_slice(comptime!(rows * vectors));
    let mut outputs = Shared::<[Vector<f32, Const<4>>]>::new_slice(comptime!(WARPS * rows * vectors));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(WARPS * rows * WARP));
    let mut largest = Shared::<[f32]>::new_slice(comptime!(WARPS * rows));
    let mut sums = Shared::<[f32]>::new_slice(comptime!(WARPS * rows));

    let (image, head) =
        (CUBE_POS_X as usize / shape.kept_heads as usize, CUBE_POS_X as usize % shape.kept_heads as usize);
    let n_rows = n_rows(&shape);
    read_queries::<F>(q, &mut queries, &shape, image, head, form);
    sync_cube();
    let (begin, end) = seen_keys(&shape, 0usize, n_rows - 1, form);
    let kept = image * shape.image_stride as usize + head * shape.head_stride as usize;
    let (token_stride, n_keys) = (shape.token_stride as usize, shape.n_keys as usize);
    let own = warp * rows;

    let mut running = running(rows);
    let mut start = begin + warp * WARP;
    while start < end {
        let mut scores = zeros(rows);
        let key = kept + min(start + lane, n_keys - 1) * token_stride;
        for col in 0..vectors {
            add_products(&mut scores, Vector::cast_from(k[key + col]), &queries, col, form);
        }
        mask::<F>(&mut scores, hidden, &shape, image, start + lane, scale, cap, form);
        weigh(&scores, &mut running, &mut weights, own, rows);
        let (group, col) = (lane / vectors, lane % vectors);
        if group < comptime!(WARP / vectors) {
            let mut key = group;
            while key < WARP {
                let value = v[kept + min(start + key, n_keys - 1) * token_stride + col];
                add_value(&mut running, Vector::cast_from(value), &weights, own * WARP + key, rows);
                key += comptime!(WARP / vectors);
            }
        }
        start += comptime!(WARPS * WARP);
    }
    join_groups(&running, &mut outputs, own, form);
    #[unroll]
    for row in 0..rows {
        let sum = plane_sum(running.sums[row]);
        if lane == 0 {
            largest[own + row] = running.largest[row];
            sums[own + row] = sum;
        }
    }
    sync_cube();
    write_joined::<F>(&largest, &sums, &outputs, y, &shape, image, head, form);
}

/// Writes the outputs of all rows, joined from the running softmax of every warp.
#[cube]
fn write_joined<F: Float>(
    largest: &Shared<[f32]>,
    sums: &Shared<[f32]>,
    outputs: &Shared<[Vector<f32, Const<4>>]>,
    y: &mut [Vector<F, Const<4>>],
    shape: &AttentionLayout,
    image: usize,
    head: usize,
    #[comptime] form: AttentionForm,
) {
    let [vectors, rows] = comptime!([form.vectors, form.rows]);
    let n_rows = n_rows(shape);
    let mut at = UNIT_POS as usize;
    while at < n_rows * vectors {
        let (row, col) = (at / vectors, at % vectors);
        let mut of_all = LEAST.runtime();
        #[unroll]
        for warp in 0..WARPS {
            of_all = max(of_all, largest[warp * rows + row]);
        }
        let mut sum = 0.0f32;
        let mut output = Vector::<f32, Const<4>>::cast_from(0.0f32);
        #[unroll]
        for warp in 0..WARPS {
            let factor = (largest[warp * rows + row] - of_all).exp();
            sum += sums[warp * rows + row] * factor;
            output += outputs[(warp * rows + row) * vectors + col] * Vector::cast_from(factor);
        }
        y[query_at(shape, image, head, row, vectors) + col] =
            Vector::cast_from(output * Vector::cast_from(1.0f32 / sum));
        at += comptime!(WARPS * WARP);
    }
}

/// Returns the number of queries that read a head of keys.
#[cube]
pub(crate) fn n_rows(shape: &AttentionLayout) -> usize {
    (shape.heads / shape.kept_heads * shape.length) as usize
}

/// Returns the first vector of a query, by its row among those that read `head` of the keys.
#[cube]
pub(crate) fn query_at(
    shape: &AttentionLayout,
    image: usize,
    head: usize,
    row: usize,
    #[comptime] vectors: usize,
) -> usize {
    let (length, heads) = (shape.length as usize, shape.heads as usize);
    let of_query = head * (heads / shape.kept_heads as usize) + row / length;
    ((image * length + row % length) * heads + of_query) * vectors
}

/// Copies rows to shared memory. After the last row, it repeats.
#[cube]
fn read_queries<F: Float>(
    q: &[Vector<F, Const<4>>],
    queries: &mut Shared<[Vector<f32, Const<4>>]>,
    shape: &AttentionLayout,
    image: usize,
    head: usize,
    #[comptime] form: AttentionForm,
) {
    let (n_rows, vectors) = (n_rows(shape), comptime!(form.vectors));
    let mut at = UNIT_POS as usize;
    while at < comptime!(form.rows * form.vectors) {
        let row = min(at / vectors, n_rows - 1);
        queries[at] = Vector::cast_from(q[query_at(shape, image, head, row, vectors) + at % vectors]);
        at += comptime!(WARPS * WARP);
    }
}

/// Returns the range of keys that some of these rows see.
#[cube]
pub(crate) fn seen_keys(
    shape: &AttentionLayout,
    first_row: usize,
    last_row: usize,
    #[comptime] form: AttentionForm,
) -> (usize, usize) {
    let (length, first, window) = (shape.length as usize, shape.first as usize, shape.window as usize);
    let is_one_head = first_row / length == last_row / length;
    let earliest = first + select(is_one_head, first_row % length, 0usize);
    let latest = first + select(is_one_head, last_row % length, length - 1);
    let mut begin = 0usize;
    let mut end = shape.n_keys as usize;
    if comptime!(form.steps.has_window) {
        begin = max(earliest + 1, window) - window;
    }
    if comptime!(form.steps.is_causal) {
        end = min(end, latest + 1);
    } else if comptime!(form.steps.has_window) {
        end = min(end, latest + window);
    }
    (begin, end)
}

#[cube]
fn running(#[comptime] rows: usize) -> Running {
    let mut largest = Array::<f32>::new(rows);
    let mut outputs = Array::<Vector<f32, Const<4>>>::new(rows);
    #[unroll]
    for row in 0..rows {
        largest[row] = LEAST;
        outputs[row] = Vector::cast_from(0.0f32);
    }
    Running { largest, sums: zeros(rows), outputs }
}

#[cube]
fn zeros(#[comptime] n: usize) -> Array<f32> {
    let mut zeros = Array::<f32>::new(n);
    #[unroll]
    for at in 0..n {
        zeros[at] = 0.0f32;
    }
    zeros
}

/// Adds the products of a unit's key with the same vector of each query; that of the first query is at `first`.
#[cube]
fn add_products(
    scores: &mut Array<f32>,
    key: Vector<f32, Const<4>>,
    queries: &Shared<[Vector<f32, Const<4>>]>,
    first: usize,
    #[comptime] form: AttentionForm,
) {
    #[unroll]
    for row in 0..form.rows {
        let query = queries[first + comptime!(row * form.vectors)];
        #[unroll]
        for at in 0..4usize {
            scores[row] += key.extract(at) * query.extract(at);
        }
    }
}

/// Scales the scores of key `key`, and hides them from rows that do not see the key.
#[cube]
fn mask<F: Float>(
    scores: &mut Array<f32>,
    hidden: &[F],
    shape: &AttentionLayout,
    image: usize,
    key: usize,
    scale: f32,
    cap: f32,
    #[comptime] form: AttentionForm,
) {
    let n_keys = shape.n_keys as usize;
    let known = min(key, n_keys - 1);
    #[unroll]
    for row in 0..form.rows {
        let query = shape.first + row as u32 % shape.length;
        let score =
            masked::<F>(scores[row], hidden, image * n_keys, known, query, shape.window, scale, cap, form.steps);
        scores[row] = select(key < n_keys, score, NONE);
    }
}

/// Adds the scores of 32 keys to the running softmax of a warp's rows, and writes their weights.
#[cube]
fn weigh(scores: &Array<f32>, running: &mut Running, weights: &mut Shared<[f32]>, own: usize, #[comptime] rows: usize) {
    let lane = UNIT_POS as usize % WARP;
    sync_plane();
    #[unroll]
    for row in 0..rows {
        let before = running.largest[row];
        let largest = max(before, plane_max(scores[row]));
        let factor = (before - largest).exp();
        let weight = (scores[row] - largest).exp();
        running.largest[row] = largest;
        running.sums[row] = running.sums[row] * factor + weight;
        running.outputs[row] *= Vector::cast_from(factor);
        weights[(own + row) * WARP + lane] = weight;
    }
    sync_plane();
}

/// Adds the vector of a value to each row's outputs; the weight of the first row is at `first`.
#[cube]
fn add_value(
    running: &mut Running,
    value: Vector<f32, Const<4>>,
    weights: &Shared<[f32]>,
    first: usize,
    #[comptime] rows: usize,
) {
    #[unroll]
    for row in 0..rows {
        running.outputs[row] += value * Vector::cast_from(weights[first + comptime!(row * WARP)]);
    }
}

/// Writes the sums of a warp's groups of units as rows from `own` on.
#[cube]
fn join_groups(
    running: &Running,
    outputs: &mut Shared<[Vector<f32, Const<4>>]>,
    own: usize,
    #[comptime] form: AttentionForm,
) {
    let [vectors, rows] = comptime!([form.vectors, form.rows]);
    let lane = UNIT_POS as usize % WARP;
    let (group, col) = (lane / vectors, lane % vectors);
    #[unroll]
    for turn in 0..comptime!(WARP / vectors) {
        sync_plane();
        if group == turn {
            #[unroll]
            for row in 0..rows {
                let at = (own + row) * vectors + col;
                if comptime!(turn == 0) {
                    outputs[at] = running.outputs[row];
                } else {
                    outputs[at] += running.outputs[row];
                }
            }
        }
    }
    sync_plane();
}

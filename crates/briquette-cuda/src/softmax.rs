//! Softmax of attention scores, with their scale and masks.

use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Rows of a cube, one per warp.
pub const ROWS: usize = 4;
/// Units per warp.
const WARP: usize = 32;
/// The score of a hidden key. It is finite, so that a row of hidden keys has no NaN.
const HIDDEN: f32 = -1e30;

/// The steps before softmax.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScoreSteps {
    /// Whether `hidden` names keys that no query sees.
    pub hides: bool,
    /// Whether a query sees only itself and earlier keys.
    pub is_causal: bool,
    /// Whether a query sees only itself and the `window - 1` keys before it; if not causal, as many after it too.
    pub has_window: bool,
    /// Whether scores are limited to `cap · tanh(score / cap)`.
    pub has_cap: bool,
}

/// Computes `y = softmax(scores * scale)` for each row of `n_cols` keys, in f32.
///
/// Row `r` is the query at position `first + r % length` of image `r / image_rows`. `hidden` `[images, n_cols]` is 1 for keys
/// that no query sees, and 0 for others.
#[cube(launch_unchecked)]
pub fn softmax_rows<F: Float>(
    scores: &[F],
    hidden: &[F],
    y: &mut [F],
    n_rows: u32,
    n_cols: u32,
    image_rows: u32,
    length: u32,
    first: u32,
    window: u32,
    scale: f32,
    cap: f32,
    #[comptime] steps: ScoreSteps,
    #[define(F)] _dtype: ElemType,
) {
    let lane = UNIT_POS as usize % WARP;
    let (n_rows, n_cols) = (n_rows as usize, n_cols as usize);
    let row = CUBE_POS_X as usize * ROWS + UNIT_POS as usize / WARP;
    // Warps after the last row read it again, because a sum over a warp needs all of its threads.
    let at = min(row, n_rows - 1);
    let (start, of_image) = (at * n_cols, at / image_rows as usize * n_cols);
    let query = first + at as u32 % length;
    let mut largest = HIDDEN.runtime();
    let mut col = lane;
    while col < n_cols {
        let score =
            masked::<F>(f32::cast_from(scores[start + col]), hidden, of_image, col, query, window, scale, cap, steps);
        largest = max(largest, score);
        col += WARP;
    }
    sync_plane();
    let largest = plane_max(largest);
    let mut sum = 0.0f32;
    let mut col = lane;
    while col < n_cols {
        let score =
            masked::<F>(f32::cast_from(scores[start + col]), hidden, of_image, col, query, window, scale, cap, steps);
        sum += (score - largest).exp();
        col += WARP;
    }
    sync_plane();
    let inverse = 1.0f32 / plane_sum(sum);
    if row < n_rows {
        let mut col = lane;
        while col < n_cols {
            let score = masked::<F>(
                f32::cast_from(scores[start + col]),
                hidden,
                of_image,
                col,
                query,
                window,
                scale,
                cap,
                steps,
            );
            y[start + col] = F::cast_from((score - largest).exp() * inverse);
            col += WARP;
        }
    }
}

/// Returns a score after [`ScoreSteps`]; `hidden` of the image starts at `of_image`.
#[cube]
pub fn masked<F: Float>(
    score: f32,
    hidden: &[F],
    of_image: usize,
    key: usize,
    query: u32,
    window: u32,
    scale: f32,
    cap: f32,
    #[comptime] steps: ScoreSteps,
) -> f32 {
    let mut score = score * scale;
    if comptime!(steps.has_cap) {
        score = (score / cap).tanh() * cap;
    }
    if comptime!(steps.hides) {
        score = select(f32::cast_from(hidden[of_image + key]) > 0.5f32, HIDDEN, score);
    }
    if comptime!(steps.is_causal) {
        score = select(key as u32 > query, HIDDEN, score);
    }
    if comptime!(steps.has_window) {
        score = select(key as u32 + window <= query, HIDDEN, score);
        if comptime!(!steps.is_causal) {
            score = select(key as u32 >= query + window, HIDDEN, score);
        }
    }
    score
}

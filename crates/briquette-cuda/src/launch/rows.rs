//! Launches of kernels for rows of floats between products: norms, softmax and rotary positions.

use super::{Floats, arg};
use crate::gpu::{DeviceBuffer, Gpu, cubes, groups, u32_of};
use crate::norm::{self, NormSteps};
use crate::rotary;
use crate::softmax::{self, ScoreSteps};
use cubecl_core::prelude::CubeDim;

/// The weights of a norm, f32.
#[derive(Debug, Clone)]
pub struct NormWeights {
    /// Factors of the columns.
    pub gamma: DeviceBuffer,
    /// Summands of the columns, if any.
    pub beta: Option<DeviceBuffer>,
    /// Whether the mean is subtracted.
    pub centers: bool,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Computes the norm of each row of `x + shortcut`; see [`norm_rows`](norm::norm_rows()).
///
/// # Panics
/// If the columns are not a multiple of four, or shapes disagree.
pub fn normed(gpu: &Gpu, x: &Floats, shortcut: Option<&Floats>, weights: &NormWeights) -> Floats {
    let y = Floats::empty(gpu, x.dtype, x.n_rows, x.n_cols);
    assert!(x.n_cols.is_multiple_of(4), "{} columns", x.n_cols);
    assert!(weights.gamma.n_bytes() == 4 * x.n_cols, "factors for {} columns", x.n_cols);
    assert!(shortcut.is_none_or(|shortcut| shortcut.n_rows * shortcut.n_cols == x.n_rows * x.n_cols), "the shortcut");
    if x.n_rows * x.n_cols == 0 {
        return y;
    }
    let beta = weights.beta.as_ref();
    assert!(beta.is_none_or(|beta| beta.n_bytes() == 4 * x.n_cols), "summands for {} columns", x.n_cols);
    let steps = NormSteps { adds: shortcut.is_some(), centers: weights.centers, shifts: beta.is_some() };
    // SAFETY: one warp per row; all rows have the same length.
    unsafe {
        norm::norm_rows::launch_unchecked(
            gpu.client(),
            cubes(groups(x.n_rows, norm::ROWS), 1),
            CubeDim::new_2d(32, norm::ROWS as u32),
            x.arg(4),
            shortcut.unwrap_or(x).arg(4),
            arg(&weights.gamma, 16),
            arg(beta.unwrap_or(&weights.gamma), 16),
            y.arg(4),
            u32_of(x.n_rows),
            u32_of(x.n_cols / 4),
            weights.epsilon,
            steps,
            x.dtype,
        );
    }
    y
}

/// The scale and masks of attention scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreMask {
    /// The factor of all scores.
    pub scale: f32,
    /// The limit of scores, if any.
    pub cap: Option<f32>,
    /// Whether a query sees only itself and earlier keys.
    pub is_causal: bool,
    /// A query sees itself and `window - 1` keys before it; if not causal, as many after it too.
    pub window: Option<usize>,
    /// The position of the first query.
    pub first: usize,
    /// Queries of a head.
    pub length: usize,
    /// Rows of an image: queries of all its heads.
    pub image_rows: usize,
}

/// Computes softmax of each row of scores; see [`softmax_rows`](softmax::softmax_rows()).
///
/// # Panics
/// If `hidden` does not have a value for each key of each image.
pub fn softmax_of(gpu: &Gpu, scores: &Floats, hidden: Option<&Floats>, mask: &ScoreMask) -> Floats {
    let y = Floats::empty(gpu, scores.dtype, scores.n_rows, scores.n_cols);
    if scores.n_rows * scores.n_cols == 0 {
        return y;
    }
    let n_hidden = scores.n_rows.div_ceil(mask.image_rows) * scores.n_cols;
    assert!(hidden.is_none_or(|hidden| hidden.n_rows * hidden.n_cols == n_hidden), "a mask of {n_hidden} keys");
    let (has_cap, has_window) = (mask.cap.is_some(), mask.window.is_some());
    let steps = ScoreSteps { hides: hidden.is_some(), is_causal: mask.is_causal, has_window, has_cap };
    // SAFETY: one warp per row; the mask has a row for each image.
    unsafe {
        softmax::softmax_rows::launch_unchecked(
            gpu.client(),
            cubes(groups(scores.n_rows, softmax::ROWS), 1),
            CubeDim::new_2d(32, softmax::ROWS as u32),
            scores.arg(1),
            hidden.unwrap_or(scores).arg(1),
            y.arg(1),
            u32_of(scores.n_rows),
            u32_of(scores.n_cols),
            u32_of(mask.image_rows),
            u32_of(mask.length),
            u32_of(mask.first),
            u32_of(mask.window.unwrap_or(0)),
            mask.scale,
            mask.cap.unwrap_or(1.0),
            steps,
            scores.dtype,
        );
    }
    y
}

/// Rotates the heads of rows; see [`rotate_rows`](rotary::rotate_rows()). The tables are f32 `[positions, half]`.
///
/// # Panics
/// If the heads do not divide a row into pairs, or the tables are not of this width.
pub fn rotated(gpu: &Gpu, x: &Floats, [sin, cos]: [&DeviceBuffer; 2], n_heads: usize) -> Floats {
    let y = Floats::empty(gpu, x.dtype, x.n_rows, x.n_cols);
    if x.n_rows * x.n_cols == 0 {
        return y;
    }
    assert!(x.n_cols.is_multiple_of(2 * n_heads), "{n_heads} heads in {} columns", x.n_cols);
    let half = x.n_cols / n_heads / 2;
    assert!(sin.n_bytes() == cos.n_bytes() && sin.n_bytes().is_multiple_of(4 * half), "tables of {half} angles");
    let n_pairs = x.n_rows * x.n_cols / 2;
    // SAFETY: one unit per pair; tables are read at existing positions.
    unsafe {
        rotary::rotate_rows::launch_unchecked(
            gpu.client(),
            cubes(groups(n_pairs, rotary::UNITS), 1),
            CubeDim::new_1d(rotary::UNITS as u32),
            x.arg(1),
            arg(sin, 4),
            arg(cos, 4),
            y.arg(1),
            u32_of(n_pairs),
            u32_of(x.n_cols / 2),
            u32_of(half),
            u32_of(sin.n_bytes() / 4 / half),
            x.dtype,
        );
    }
    y
}

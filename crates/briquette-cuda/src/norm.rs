//! Layer norm and RMS norm, with the sum before them.

use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Rows of a cube, one per warp.
pub const ROWS: usize = 4;
/// Units per warp.
const WARP: usize = 32;

/// The steps of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NormSteps {
    /// Whether a shortcut is added first.
    pub adds: bool,
    /// Whether the mean is subtracted, as in layer norm.
    pub centers: bool,
    /// Whether `beta` is added.
    pub shifts: bool,
}

/// Computes `y = (x - mean) / sqrt(mean((x - mean)²) + epsilon) * gamma + beta` for each row of `4 * row_vectors` values, with
/// sums in f32. `x` includes the shortcut; the mean is 0 unless [`NormSteps::centers`].
#[cube(launch_unchecked)]
pub fn norm_rows<F: Float>(
    x: &[Vector<F, Const<4>>],
    shortcut: &[Vector<F, Const<4>>],
    gamma: &[Vector<f32, Const<4>>],
    beta: &[Vector<f32, Const<4>>],
    y: &mut [Vector<F, Const<4>>],
    n_rows: u32,
    row_vectors: u32,
    epsilon: f32,
    #[comptime] steps: NormSteps,
    #[define(F)] _dtype: ElemType,
) {
    let lane = UNIT_POS as usize % WARP;
    let (n_rows, row_vectors) = (n_rows as usize, row_vectors as usize);
    let row = CUBE_POS_X as usize * ROWS + UNIT_POS as usize / WARP;
    // Warps after the last row read it again, because a sum over a warp needs all of its threads.
    let start = min(row, n_rows - 1) * row_vectors;
    let n = f32::cast_from(row_vectors) * 4.0f32;
    let mut mean = 0.0f32;
    if comptime!(steps.centers) {
        let mut sum = 0.0f32;
        let mut at = lane;
        while at < row_vectors {
            sum += sum_of(summed::<F>(x, shortcut, start + at, steps));
            at += WARP;
        }
        sync_plane();
        mean = plane_sum(sum) / n;
    }
    let mut squares = 0.0f32;
    let mut at = lane;
    while at < row_vectors {
        let centred = summed::<F>(x, shortcut, start + at, steps) - Vector::cast_from(mean);
        squares += sum_of(centred * centred);
        at += WARP;
    }
    sync_plane();
    let inverse = 1.0f32 / (plane_sum(squares) / n + epsilon).sqrt();
    if row < n_rows {
        let mut at = lane;
        while at < row_vectors {
            let centred = summed::<F>(x, shortcut, start + at, steps) - Vector::cast_from(mean);
            let mut normed = centred * Vector::cast_from(inverse) * gamma[at];
            if comptime!(steps.shifts) {
                normed += beta[at];
            }
            y[start + at] = Vector::cast_from(normed);
            at += WARP;
        }
    }
}

#[cube]
fn summed<F: Float>(
    x: &[Vector<F, Const<4>>],
    shortcut: &[Vector<F, Const<4>>],
    at: usize,
    #[comptime] steps: NormSteps,
) -> Vector<f32, Const<4>> {
    let mut sum = Vector::<f32, Const<4>>::cast_from(x[at]);
    if comptime!(steps.adds) {
        sum += Vector::<f32, Const<4>>::cast_from(shortcut[at]);
    }
    sum
}

#[cube]
fn sum_of(values: Vector<f32, Const<4>>) -> f32 {
    values.extract(0usize) + values.extract(1usize) + (values.extract(2usize) + values.extract(3usize))
}

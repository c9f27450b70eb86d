//! One step size for all groups.

use briquette_core::{Affine, Grid, log_scale, simd};

/// The share of a grid that a group may fill: the rest is headroom for weights that error compensation moves
/// away from 0.
const FILLED: f32 = 15.0 / 16.0;

/// Returns the step size times the smallest power of two for which the grid covers the group.
///
/// `scale = step · 2^k` with the least `k ≥ 0` for which `max |w| ≤ 15/16 · most · scale`, where `most` is the
/// largest code.
///
/// With the same step in all rows, an entropy coder can use the statistics of all rows, and the error is the
/// same everywhere: `step² / 12` per weight. Uniform quantizers with entropy coding are within a quarter of a
/// bit of the theoretical limit (H. Gish, J. Pierce, "Asymptotically efficient quantizing", 1968).
///
/// # Panics
/// If a weight is not finite.
pub fn step(group: &[f32], step: f32, grid: Grid) -> Affine {
    let max = f32::from_bits(simd::max_magnitude(group));
    let most = FILLED * grid.symmetric_steps();
    let mut scale = step;
    while max > most * scale && scale < f32::MAX / 4.0 {
        scale *= 2.0;
    }
    Affine::symmetric(scale)
}

/// Returns the scale of each row for a step size with its own factor in each row.
///
/// The step of a row is `2^((e + s)/8)`, with the step size rounded to `2^(e/8)` and `s` from `eighths`, times the
/// smallest power of two for which the grid covers the row: see [`step()`].
///
/// # Panics
/// If there are fewer `eighths` than rows of `n_cols`, or a weight is not finite.
pub fn row_steps(values: &[f32], n_cols: usize, size: f32, eighths: &[i8], grid: Grid) -> Vec<Affine> {
    let base = log_scale::nearest_eighths(size);
    let rows = values.chunks_exact(n_cols.max(1)).enumerate();
    rows.map(|(row, values)| step(values, log_scale::of_eighths(base + i32::from(eighths[row])), grid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_own_steps_and_large_rows_double_them() {
        let values = [0.1, -0.2, 0.1, -0.2, 60.0, 0.0, 0.0, 0.0];
        let found = row_steps(&values, 2, 0.25, &[0, -8, 8, 3], Grid::INT8);
        let scales: Vec<f32> = found.iter().map(|affine| affine.scale).collect();
        assert_eq!(scales, [0.25, 0.125, 1.0, log_scale::of_eighths(-13)]);
    }
}

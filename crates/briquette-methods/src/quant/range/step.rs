//! One step size for all groups.

use briquette_core::{Affine, Grid, simd};

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

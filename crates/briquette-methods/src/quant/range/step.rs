//! One step for all groups.

use briquette_core::{Affine, Grid, simd};

/// The share of a grid that a group may fill: the rest is for weights that rounding moves away from 0.
const FILLED: f32 = 15.0 / 16.0;

/// The step itself, or the least of its doubles whose grid holds the group: `scale = step · 2^k` with the least `k ≥ 0` for which
/// `max |w| ≤ 15/16 · most · scale`, where `most` is the largest code.
///
/// With the same step in all rows, what many rows have alike is seen by an entropy coder, and the error is the same everywhere: `step² / 12` a
/// weight. This is how uniform quantizers with entropy coding come within a quarter of a bit of what is possible (H. Gish, J. Pierce,
/// "Asymptotically efficient quantizing", 1968).
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

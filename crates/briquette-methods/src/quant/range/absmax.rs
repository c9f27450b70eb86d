//! The largest magnitude, with both signs.

use briquette_core::{Affine, Grid, simd};

/// Returns the grid over `-m..=m` with `m = max |w|`.
///
/// On a symmetric grid `scale = m / (2^(b-1) - 1)`. Source: Jacob et al., "Quantization and Training of Neural
/// Networks for Efficient Integer-Arithmetic-Only Inference", 2017.
///
/// # Panics
/// If a weight is not finite.
pub fn absmax(group: &[f32], grid: Grid) -> Affine {
    let max = f32::from_bits(simd::max_magnitude(group));
    Affine::over(-max, max, grid)
}

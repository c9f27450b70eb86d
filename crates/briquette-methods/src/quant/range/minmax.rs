//! From the smallest weight to the largest.

use briquette_core::{Affine, Grid, simd};

/// Returns the grid over `min(w, 0)..=max(w, 0)`; `scale = (max - min) / (2^b - 1)` on an asymmetric grid.
///
/// On a symmetric grid it equals [`absmax`](super::absmax).
///
/// # Panics
/// If a weight is not finite.
pub fn minmax(group: &[f32], grid: Grid) -> Affine {
    let (min, max) = simd::min_max(group);
    Affine::over(min, max, grid)
}

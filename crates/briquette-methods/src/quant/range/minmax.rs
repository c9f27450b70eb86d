//! From the smallest weight to the largest.

use briquette_core::{Affine, Grid, simd};

/// The range `min(w, 0)..=max(w, 0)`; on an asymmetric grid `scale = (max - min) / (2^b - 1)`.
///
/// On a symmetric grid it is the same as [`absmax`](super::absmax).
///
/// # Panics
/// If a weight is not finite.
pub fn minmax(group: &[f32], grid: Grid) -> Affine {
    let (min, max) = simd::min_max(group);
    Affine::over(min, max, grid)
}

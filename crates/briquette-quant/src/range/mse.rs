//! The range of least squared error.

use super::{minmax, squared_error};
use briquette_core::{Affine, Grid, simd};

/// Shrunken ranges tried: 1, 0.99, …, 0.30 of the whole.
const N_STEPS: u32 = 71;

/// The range `f·min..=f·max`, `f` from 1 down to 0.3 in hundredths, of least `Σ (w - v)²`.
///
/// Of equal errors the widest wins, so the result is never worse than [`minmax`]. Source: Banner et al., "Post
/// training 4-bit quantization of convolutional networks for rapid-deployment", 2019, by search instead of in closed
/// form.
///
/// # Errors
/// The first that `go_on` has.
///
/// # Panics
/// If a weight is not finite.
pub fn mse<E>(group: &[f32], grid: Grid, go_on: &impl Fn() -> Result<(), E>) -> Result<Affine, E> {
    let (min, max) = simd::min_max(group);
    let mut best = minmax(group, grid);
    let mut least = squared_error(group, best, grid, go_on)?;
    for step in 1..N_STEPS {
        let share = 1.0 - step as f32 / 100.0;
        let affine = Affine::over(min * share, max * share, grid);
        let error = squared_error(group, affine, grid, go_on)?;
        if error < least {
            (best, least) = (affine, error);
        }
    }
    Ok(best)
}

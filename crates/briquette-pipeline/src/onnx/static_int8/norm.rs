//! Batch norms that layers absorb.

use briquette_core::{Error, Result};

/// Returns the gain of each channel: `weight / sqrt(variance + eps)`.
///
/// # Errors
/// Refused: a variance is negative.
pub(super) fn gains(weight: &[f32], variance: &[f32], eps: f64) -> Result<Vec<f64>> {
    let gain = |(out, (weight, variance)): (usize, (&f32, &f32))| {
        let width = f64::from(*variance) + eps;
        if width <= 0.0 {
            let message = format!("variance {out} is {variance}, expected 0 or more; repair the model");
            return Err(Error::refused(message));
        }
        Ok(f64::from(*weight) / width.sqrt())
    };
    weight.iter().zip(variance).enumerate().map(gain).collect()
}

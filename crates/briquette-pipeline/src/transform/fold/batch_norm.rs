//! Moves batch norms into the layers before them.
//!
//! `y = (W x + b - mean) · g + bias` with `g = weight / sqrt(variance + eps)`: `W` becomes `g W`. The norm stays, with weight 1,
//! mean 0 and variance `1 - eps`, so that other programs load the file. A layer without a bias leaves it to the norm.

use super::edits::Edits;
use briquette_core::{Error, Result, rows};
use briquette_graph::absorb::NormPlace;
use briquette_writer::context::Workers;

/// Folds each batch norm.
///
/// # Errors
/// - Refused: a value is not finite, or a variance is negative.
/// - Io and Interrupted.
pub(super) fn fold(edits: &mut Edits, places: &[NormPlace], workers: &Workers) -> Result<()> {
    for place in places {
        workers.check_stop()?;
        one(edits, place)?;
    }
    Ok(())
}

fn one(edits: &mut Edits, place: &NormPlace) -> Result<()> {
    let [weight, bias, mean, variance] = place.norm.map(|id| edits.values(id));
    let (weight, bias, mean, variance) = (weight?, bias?, mean?, variance?);
    let own = &edits.graph().weights[place.norm[3].0];
    if let Some(at) = variance.iter().position(|value| f64::from(*value) + place.eps <= 0.0) {
        let message = format!("element {at} is {}, expected a variance of 0 or more", variance[at]);
        return Err(Error::refused(message).at(format_args!("tensor {:?}", own.name)));
    }
    // The variance as it will be stored: factors compensate its rounding.
    let stored = [(1.0 - place.eps).max(0.0) as f32];
    let (mut bytes, mut rounded) = (vec![0; own.dtype.n_bits() / 8], [0.0]);
    rows::from_f32(&stored, own.dtype, &mut bytes);
    rows::to_f32(&bytes, own.dtype, &mut rounded);
    let deviation = (f64::from(rounded[0]) + place.eps).sqrt();
    let n = weight.len();
    let gain = |at: usize| f64::from(weight[at]) / (f64::from(variance[at]) + place.eps).sqrt();
    let factors: Vec<f64> = (0..n).map(|at| gain(at) * deviation).collect();
    let shift = |at: usize| f64::from(bias[at]) - f64::from(mean[at]) * gain(at);
    edits.of_weight(place.weight).multiply(place.axis, &factors);
    let left = match place.bias {
        Some(id) => {
            let edit = edits.of_weight(id);
            edit.multiply(0, &factors);
            edit.added = (0..n).map(|at| shift(at) * deviation).collect();
            vec![0.0; n]
        }
        None => (0..n).map(|at| shift(at) as f32).collect(),
    };
    let [weight, bias, mean, variance] = place.norm;
    edits.set(weight, vec![1.0; n]);
    edits.set(bias, left);
    edits.set(mean, vec![0.0; n]);
    edits.set(variance, vec![rounded[0]; n]);
    Ok(())
}

//! Equalizes the ranges of channels between two layers.

use super::edits::Edits;
use super::places::is_matrix;
use briquette_core::Result;
use briquette_graph::absorb::ScalePlace;
use briquette_methods::quant::channel_scales::equalize;
use briquette_writer::context::Workers;

/// The most passes over all places. A layer between two places changes both.
const N_PASSES: usize = 20;
/// A pass that changes no scale by more than this factor is the last.
const LEAST: f64 = 1.01;

/// Equalizes every place, until a pass changes little.
///
/// # Errors
/// - Refused: a weight is not finite.
/// - Io and Interrupted.
pub(super) fn fold(edits: &mut Edits, places: &[ScalePlace], workers: &Workers) -> Result<()> {
    for _ in 0..N_PASSES {
        let mut most: f64 = 1.0;
        for place in places {
            workers.check_stop()?;
            let scales = equalize(&before(edits, place)?, &after(edits, place)?);
            most = scales.iter().fold(most, |most, scale| most.max(*scale).max(1.0 / scale));
            edits.scale(place, &scales);
        }
        if most < LEAST {
            break;
        }
    }
    Ok(())
}

/// Returns the largest weight of each unit in the layers before.
fn before(edits: &Edits, place: &ScalePlace) -> Result<Vec<f64>> {
    let layers = place.producers.iter().filter(|producer| is_matrix(edits.graph(), producer.weight));
    largest(layers.map(|layer| edits.ranges(layer, place.n_units)), place.n_units)
}

/// Returns the largest weight of each unit in the layers that read the value.
fn after(edits: &Edits, place: &ScalePlace) -> Result<Vec<f64>> {
    largest(place.readers.iter().map(|reader| edits.ranges(&reader.inputs, place.n_units)), place.n_units)
}

/// Returns the larger range of each unit.
pub(super) fn largest(ranges: impl Iterator<Item = Result<Vec<f64>>>, n_units: usize) -> Result<Vec<f64>> {
    ranges.into_iter().try_fold(vec![0.0; n_units], |most, found| {
        Ok(most.iter().zip(found?).map(|(most, range): (&f64, f64)| most.max(range)).collect())
    })
}

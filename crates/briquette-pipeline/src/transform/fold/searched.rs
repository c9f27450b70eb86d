//! Scales that follow from the statistics of inputs: SmoothQuant, AWQ, and the better of the two.

use super::edits::Edits;
use super::inputs::{PlaceInputs, stats};
use crate::report::FoldExponent;
use briquette_core::{Error, Result};
use briquette_formats::input_stats::StatisticsFile;
use briquette_graph::absorb::ScalePlace;
use briquette_methods::quant::channel_scales::{auto, awq, best_smooth, smooth};
use briquette_recipe::FoldMethod;
use briquette_writer::context::Workers;

/// Checks the statistics of every place before any weight is read.
///
/// # Errors
/// Input: the statistics of a place are missing.
pub(super) fn check(edits: &Edits, places: &[ScalePlace], statistics: Option<&StatisticsFile>) -> Result<()> {
    let Some(statistics) = statistics else { return Ok(()) };
    places.iter().try_for_each(|place| stats(edits, place, statistics).map(drop))
}

/// Scales every place, and returns the exponents.
///
/// Each place is searched with the original weights, so the result does not depend on the order.
///
/// # Errors
/// - Input: the statistics of a place are missing.
/// - Refused: a weight is not finite.
/// - Io and Interrupted.
pub(super) fn fold(
    edits: &mut Edits,
    places: &[ScalePlace],
    method: FoldMethod,
    statistics: Option<&StatisticsFile>,
    workers: &Workers,
) -> Result<Vec<FoldExponent>> {
    let statistics = statistics.ok_or_else(|| Error::bug("a fold without its statistics"))?;
    workers.begin("fold", places.len());
    let own = &*edits;
    let found = workers.map(
        places,
        || (),
        |(), place| {
            let found = one(own, place, method, statistics, workers)?;
            workers.advance(1);
            Ok(found)
        },
    )?;
    let mut exponents = Vec::with_capacity(places.len());
    for (place, (exponent, scales)) in places.iter().zip(found) {
        if exponent.exponent.is_some() {
            edits.scale(place, &scales);
        }
        exponents.push(exponent);
    }
    Ok(exponents)
}

/// Returns the exponent and the scales of a place. It has no exponent if it stays unchanged.
fn one(
    edits: &Edits,
    place: &ScalePlace,
    method: FoldMethod,
    statistics: &StatisticsFile,
    workers: &Workers,
) -> Result<(FoldExponent, Vec<f64>)> {
    workers.check_stop()?;
    let inputs = PlaceInputs::of(edits, place, statistics)?;
    let columns = inputs.columns();
    let mut chosen = None;
    let (exponent, scales) = match method {
        FoldMethod::Smooth { alpha: Some(alpha) } => {
            (Some(alpha), smooth(&columns.input_ranges(), &columns.weight_ranges(), alpha))
        }
        FoldMethod::Smooth { alpha: None } => match best_smooth(&columns) {
            Some((alpha, scales)) => (Some(alpha), scales),
            None => (None, Vec::new()),
        },
        FoldMethod::Awq { spec } => {
            let found = awq(&columns, spec, &|| workers.check_stop())?;
            (Some(found.exponent).filter(|exponent| *exponent > 0.0), found.scales)
        }
        FoldMethod::Auto { scheme } => match auto(&columns, scheme, &|| workers.check_stop())? {
            Some(found) => {
                chosen = Some(found.method.to_string());
                (Some(found.exponent), found.scales)
            }
            None => (None, Vec::new()),
        },
        FoldMethod::BatchNorm | FoldMethod::Equalize | FoldMethod::Rotate { .. } => {
            return Err(Error::bug("a fold without statistics"));
        }
    };
    Ok((FoldExponent { name: place.name.clone(), exponent, method: chosen }, scales))
}

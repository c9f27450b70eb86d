//! Refits the layers that read removed units.

use super::groups::ChosenGroup;
use super::inputs::{InputAxis, Needed, Reader, transposed};
use super::scores::DAMPING;
use crate::transform::headed::SmallerModel;
use briquette_core::{OutputAxis, Result, rows};
use briquette_graph::WeightId;
use briquette_graph::coupling::Couplings;
use briquette_graph::shrink::KeptIndices;
use briquette_methods::reconstruct::{Consumer, refit};
use briquette_writer::context::Workers;
use std::collections::BTreeMap;

/// Returns new values of every weight that reads removed units, in the order of the smaller tensor.
///
/// A layer without a solution keeps the old weights of its remaining inputs.
///
/// # Errors
/// - Refused: a weight is not finite.
/// - Io and Interrupted.
pub(super) fn refitted(
    reader: &Reader,
    couplings: &Couplings,
    chosen: &[ChosenGroup],
    smaller: &SmallerModel,
    workers: &Workers,
) -> Result<BTreeMap<WeightId, Vec<f32>>> {
    let mut axes: BTreeMap<WeightId, InputAxis> = BTreeMap::new();
    for chosen in chosen {
        axes.extend(reader.input_axes(couplings, chosen.group)?.into_iter().map(|axis| (axis.weight, axis)));
    }
    let cut: Vec<InputAxis> =
        axes.into_values().filter(|axis| smaller.kept[axis.weight.0][axis.axis].is_some()).collect();
    let n_bytes = |axis: &InputAxis| reader.model.graph.weights[axis.weight.0].n_bytes() as usize;
    workers.begin("refit", cut.iter().map(n_bytes).sum());
    let found = workers.map(
        &cut,
        || (),
        |(), axis| {
            let values = one(reader, axis, &smaller.kept[axis.weight.0], workers)?;
            workers.advance(n_bytes(axis));
            Ok(values.map(|values| (axis.weight, values)))
        },
    )?;
    Ok(found.into_iter().flatten().collect())
}

/// Refits one weight.
fn one(reader: &Reader, axis: &InputAxis, kept: &[KeptIndices], workers: &Workers) -> Result<Option<Vec<f32>>> {
    let (weights, stats) = (reader.rows(axis)?, reader.stats(axis, Needed::Gram)?);
    let Some(gram) = stats.gram.as_deref() else { return Ok(None) };
    let n = reader.n_columns(axis);
    let indices = kept[axis.axis].as_deref().unwrap_or_default();
    let columns: Vec<usize> = indices.iter().flat_map(|&index| index * axis.inner..(index + 1) * axis.inner).collect();
    let layer = Consumer { gram, weights: &weights, n, damping: DAMPING };
    let Some(fitted) = refit(&layer, &columns, &|| workers.check_stop())? else { return Ok(None) };
    let weight = &reader.model.graph.weights[axis.weight.0];
    let outputs = &kept[if weight.layout == OutputAxis::Last { 1 } else { 0 }];
    let fitted = match outputs {
        None => fitted,
        Some(rows) => {
            let row = |&row: &usize| &fitted[row * columns.len()..(row + 1) * columns.len()];
            rows.iter().flat_map(row).copied().collect()
        }
    };
    if !fitted.iter().all(|&value| rows::fits(value, weight.dtype)) {
        return Ok(None);
    }
    let n_rows = fitted.len() / columns.len().max(1);
    Ok(Some(if weight.layout == OutputAxis::Last { transposed(&fitted, n_rows) } else { fitted }))
}

//! Biases that take up the mean of removed inputs.

use super::groups::ChosenGroup;
use super::inputs::{InputAxis, Needed, Reader};
use crate::transform::headed::SmallerModel;
use briquette_core::{Result, rows};
use briquette_graph::coupling::Couplings;
use briquette_graph::{Graph, Operand, WeightId};
use briquette_writer::context::Workers;
use std::collections::BTreeMap;

/// Returns the new bias of each layer that reads removed units and has a bias: `b + Σ_j w_j · mean(x_j)` over the removed inputs `j`.
///
/// # Errors
/// - Refused: a weight is not finite.
/// - Io and Interrupted.
pub(super) fn absorbed(
    reader: &Reader,
    (couplings, chosen): (&Couplings, &[ChosenGroup]),
    smaller: &SmallerModel,
    workers: &Workers,
) -> Result<BTreeMap<WeightId, Vec<f32>>> {
    let mut found = BTreeMap::new();
    for chosen in chosen {
        for axis in reader.input_axes(couplings, chosen.group)? {
            workers.check_stop()?;
            let Some(bias) = bias_of(&reader.model.graph, axis.weight) else { continue };
            if let Some(values) = one(reader, &axis, bias, smaller)? {
                found.insert(bias, values);
            }
        }
    }
    Ok(found)
}

/// Returns the bias of the one layer with a weight.
fn bias_of(graph: &Graph, weight: WeightId) -> Option<WeightId> {
    let mut uses = graph.nodes.iter().filter(|node| node.weights().any(|(_, own)| own == weight));
    let (node, None) = (uses.next()?, uses.next()) else { return None };
    match node.inputs.as_slice() {
        [_, Operand::Weight(own), Operand::Weight(bias), ..] if *own == weight => Some(*bias),
        _ => None,
    }
}

/// Returns the kept values of a bias; `None` if it stays as it is.
fn one(reader: &Reader, axis: &InputAxis, bias: WeightId, smaller: &SmallerModel) -> Result<Option<Vec<f32>>> {
    let Some(kept) = smaller.kept[axis.weight.0][axis.axis].as_deref() else { return Ok(None) };
    let (stats, n) = (reader.stats(axis, Needed::Sums)?, reader.n_columns(axis));
    let (weights, before) = (reader.rows(axis)?, reader.values(bias)?);
    if stats.count == 0 || before.len() * n != weights.len() {
        return Ok(None);
    }
    let mut means: Vec<f64> = stats.sum.iter().map(|sum| sum / stats.count as f64).collect();
    kept.iter().for_each(|index| means[index * axis.inner..(index + 1) * axis.inner].fill(0.0));
    let removed = |row: &[f32]| row.iter().zip(&means).map(|(weight, mean)| f64::from(*weight) * mean).sum::<f64>();
    let after = weights.chunks_exact(n).zip(&before).map(|(row, bias)| (f64::from(*bias) + removed(row)) as f32);
    let after: Vec<f32> = match &smaller.kept[bias.0][0] {
        Some(outputs) => {
            let all: Vec<f32> = after.collect();
            outputs.iter().map(|&output| all[output]).collect()
        }
        None => after.collect(),
    };
    let dtype = reader.model.graph.weights[bias.0].dtype;
    Ok(after.iter().all(|&value| rows::fits(value, dtype)).then_some(after))
}

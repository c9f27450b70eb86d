//! Bias correction: biases, and the means of batch norms, take up the mean error of their layer's new weights.
//!
//! `b' = b - (Ŵ - W)·E[x]`, where `E[x]` are the means of the layer's inputs in the original model: one for each input channel and kernel
//! position, with the zeros of the padding counted. Pruned weights count as new weights too. A layer without a bias changes the mean
//! `μ' = μ + (Ŵ - W)·E[x]` of the batch norm after it. The result follows from the plan and the statistics alone, so a killed run
//! makes the same.

use crate::solve::{layer_of, layers_of_original, rows_of, rows_of_decision};
use briquette_core::{DType, Decision, InputStats, Result, Rows, decision::fake_quantize, rows};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::absorb::{MeanShift, mean_shifts};
use briquette_graph::{Graph, WeightId};
use briquette_methods::reconstruct::mean_error;
use briquette_recipe::Recipe;
use briquette_recipe::plan::topology_of;
use briquette_writer::piece::{PieceReader, pieces_of};
use briquette_writer::replaced::{NewVector, ReplacedVectors};
use briquette_writer::survey::{Survey, survey};
use briquette_writer::{Plan, Stop, TensorPlan, Workers, decide};
use std::collections::BTreeMap;
use std::path::Path;

/// Corrects the biases of the plan's layers that ask for it. Returns `None` if no layer does, or none has a bias.
///
/// `source` has the updated weights of earlier steps. A remark has the number of corrected layers.
///
/// # Errors
/// - Input: the statistics are damaged or of another model.
/// - Refused: a weight is not finite.
/// - Io and Interrupted.
pub(crate) fn correct<'a>(
    recipe: &Recipe,
    plan: &mut Plan,
    (checkpoint, scratch): (&Checkpoint, Option<&Path>),
    source: &'a dyn TensorSource,
    workers: &Workers,
) -> Result<Option<ReplacedVectors<'a>>> {
    let n_asked = plan.tensors.iter().filter(|tensor| is_asked(tensor)).count();
    if n_asked == 0 {
        return Ok(None);
    }
    let layers = layers_of_original(recipe, checkpoint, scratch)?;
    let topology = topology_of(recipe, checkpoint)?;
    let mut surveyed = plan.clone();
    let surveys = survey(&mut surveyed, source, workers)?;
    let shifts = topology.graph().map(|graph| shifts_of(graph, &surveyed, &layers)).unwrap_or_default();
    workers.begin("correct biases", shifts.len());
    let found = workers.map(
        &shifts,
        || (),
        |(), shift| {
            let found = new_vector(&surveyed, &surveys[shift.weight], shift, source, workers.stop())?;
            workers.advance(1);
            Ok(found.map(|values| (shift.vector, values)))
        },
    )?;
    let vectors: BTreeMap<usize, NewVector> = found.into_iter().flatten().collect();
    vectors.keys().for_each(|&index| plan.tensors[index].is_moved = true);
    plan.remarks.push(format!("Bias correction: {} of {n_asked} layers.", vectors.len()));
    Ok((!vectors.is_empty()).then(|| ReplacedVectors::new(source, vectors)))
}

fn is_asked(tensor: &TensorPlan) -> bool {
    tensor.solve.corrects_bias && tensor.quant.is_some() && tensor.tied_to().is_none()
}

/// A layer whose bias is corrected, by indices in the plan.
struct Shift<'a> {
    weight: usize,
    vector: usize,
    is_subtracted: bool,
    stats: &'a InputStats,
}

/// Returns the layers that have a vector to correct and statistics of their inputs.
fn shifts_of<'s>(graph: &Graph, plan: &Plan, layers: &'s BTreeMap<String, InputStats>) -> Vec<Shift<'s>> {
    let names: BTreeMap<&str, usize> = plan.tensors.iter().map(|it| (it.info.name.as_str(), it.index())).collect();
    let place = |id: WeightId| {
        let weight = &graph.weights[id.0];
        let mut all = std::iter::once(&weight.name).chain(&weight.aliases);
        all.find_map(|name| names.get(name.as_str()).copied())
    };
    let shift = |found: MeanShift| {
        let (weight, vector) = (place(found.weight)?, place(found.vector)?);
        let (of_layer, own) = (&plan.tensors[weight], &plan.tensors[vector]);
        let stats = layers.get(layer_of(&of_layer.info.name))?;
        let is_known = stats.count > 0 && of_layer.takes(stats) && !plan.norms.contains_key(&weight);
        let is_plain = own.info.dtype.is_weight() && !own.is_recoded() && own.tied_to().is_none();
        let fits = own.info.n_elements() == of_layer.rows().n_rows;
        let is_corrected = is_asked(of_layer) && is_known && is_plain && fits;
        is_corrected.then_some(Shift { weight, vector, is_subtracted: found.is_subtracted, stats })
    };
    mean_shifts(graph).into_iter().filter_map(shift).collect()
}

/// Returns the new values of a layer's vector; `None` if its type cannot store them.
fn new_vector(
    plan: &Plan,
    survey: &Survey,
    shift: &Shift,
    source: &dyn TensorSource,
    stop: &Stop,
) -> Result<Option<NewVector>> {
    let tensor = &plan.tensors[shift.weight];
    let decision = decide(plan, shift.weight, survey, source, stop)?;
    let errors = mean_errors(tensor, &decision, shift.stats, source, stop)?;
    let vector = &plan.tensors[shift.vector];
    let sign = if shift.is_subtracted { 1.0 } else { -1.0 };
    let before = rows_of(vector, source, stop)?;
    let after = before.iter().zip(errors).map(|(value, error)| (f64::from(*value) + sign * error) as f32);
    let (values, dtype): (Vec<f32>, DType) = (after.collect(), vector.stored_dtype());
    let fits = values.iter().all(|&value| rows::fits(value, dtype));
    // Changed rows may differ from those that were read.
    let n_cols = vector.output_rows.n_cols;
    Ok(fits.then_some(NewVector { values, n_cols }))
}

/// Returns the mean error of each output of a layer. Reads its weights in pieces.
fn mean_errors(
    tensor: &TensorPlan,
    decision: &Decision,
    stats: &InputStats,
    source: &dyn TensorSource,
    stop: &Stop,
) -> Result<Vec<f64>> {
    let Rows { n_rows, n_cols, .. } = tensor.rows();
    let means: Vec<f64> = stats.sum.iter().map(|sum| sum / stats.count as f64).collect();
    let of_group = n_rows / stats.n_groups(n_cols);
    let (mut reader, mut errors) = (PieceReader::default(), Vec::with_capacity(n_rows));
    for range in pieces_of(tensor, source.reads_ranges(tensor.index())) {
        reader.read(source, tensor, &range, stop)?.for_each_strip(|strip, _| {
            let first = strip.first_row;
            let of_strip = first..first + strip.values.len() / n_cols.max(1);
            let new =
                fake_quantize(strip.weights(), of_strip.len(), n_cols, &rows_of_decision(decision, &of_strip, n_cols));
            for (row, (old, new)) in of_strip.zip(strip.values.chunks(n_cols).zip(new.chunks(n_cols))) {
                let start = row / of_group.max(1) * n_cols;
                let means = &means[start..start + n_cols];
                errors.push(mean_error(old, new.iter().map(|value| f64::from(*value)), [means, means]));
            }
            Ok(())
        })?;
    }
    Ok(errors)
}

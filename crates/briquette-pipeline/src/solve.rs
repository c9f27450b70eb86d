//! Error compensation: updates weights to preserve the outputs of their layers, between the plan and the
//! survey.
//!
//! The results are stored in files beside the output, one per block of the network, so that a killed run
//! resumes at its block. The survey and all later steps take the updated weights, masks and scales as given.

#[cfg(feature = "model")]
mod curvature;
mod errors;
#[cfg(feature = "model")]
mod fake_quantized;
mod fit_rows;
mod found;
mod groups;
mod inputs;
mod job;
#[cfg(feature = "model")]
mod layerwise;
mod one;
mod owl;
mod rows;
mod scaled_stats;
#[cfg(feature = "model")]
mod signround;
mod source;
mod unit;
mod update;

use crate::memory::limit_of_host;
use crate::report::SolvedLayer;
use briquette_core::{Error, Result};
use briquette_recipe::Recipe;
use briquette_writer::{Cut, Plan, Pruning, TensorPlan};
#[cfg(feature = "model")]
pub(crate) use fake_quantized::Simulated;
use found::{Found, unit_at};
pub(crate) use inputs::calibrated;
pub(crate) use inputs::layers_of_original;
use job::moving;
pub(crate) use job::{CURVATURE, SolveJob, layer_of};
use one::Solver;
pub(crate) use one::rows_of;
pub(crate) use owl::shares;
pub(crate) use rows::rows_of_decision;
pub(crate) use source::SolvedSource;
use std::collections::BTreeMap;

/// The model with updated weights, and how well they preserve the outputs.
pub(crate) struct Solved<'a> {
    pub(crate) source: SolvedSource<'a>,
    pub(crate) layers: BTreeMap<usize, SolvedLayer>,
}

/// Returns whether any stage updates weights, or the model must run block by block for its stages.
pub(crate) fn is_requested(recipe: &Recipe) -> bool {
    inputs::gathers_inputs(recipe) || recipe.stages.iter().any(briquette_recipe::Stage::updates_weights)
}

/// Updates the tensors that request error compensation, and adds the calibration's input statistics to the
/// plan.
///
/// Returns `None` if nothing is updated and nothing runs.
///
/// # Errors
/// - Input: statistics have no Gram matrices. Input and Io: a tensor cannot be read, or a result cannot be
///   written.
/// - Interrupted: a stop was requested.
pub(crate) fn solve<'a>(job: &'a SolveJob<'a>, plan: &mut Plan) -> Result<Option<Solved<'a>>> {
    let runs = job.recipe.calibration.as_ref().filter(|_| inputs::goes_by_block(job.recipe, job.checkpoint));
    if moving(plan).next().is_none() && runs.is_none() {
        return Ok(None);
    }
    std::fs::create_dir_all(job.scratch)
        .map_err(|error| Error::io("cannot create the directory", job.scratch, error))?;
    let mut found = Found { source: SolvedSource::new(job.scaled), layers: BTreeMap::new() };
    match runs {
        Some(calibration) => inputs::block_by_block(job, calibration, plan, &mut found)?,
        None => from_statistics(job, plan, &mut found)?,
    }
    let updated: Vec<usize> = moving(plan).map(TensorPlan::index).collect();
    for index in updated {
        give(&mut plan.tensors[index], &found.source);
    }
    found.remark(plan);
    Ok(Some(Solved { source: found.source, layers: found.layers }))
}

/// The approximate number of weights per unit when existing statistics are used.
const UNIT: usize = 32 << 20;

fn from_statistics(job: &SolveJob, plan: &mut Plan, found: &mut Found) -> Result<()> {
    if let Some(tensor) = plan.tensors.iter().find(|tensor| tensor.solve.learns) {
        let message =
            "reconstruct \"signround\" needs a model that runs block by block, and this one does not; remove the key";
        return Err(Error::config(message).at(tensor.culprit()));
    }
    let moving: Vec<usize> = moving(plan).map(TensorPlan::index).collect();
    let mut layers = inputs::layers_of_files(job)?;
    let mut solver = Solver::new(job, plan)?;
    let limit = limit_of_host(job.recipe.memory_limit, job.options);
    let (mut units, mut n_weights) = (vec![Vec::new()], 0);
    for &index in &moving {
        let n = plan.tensors[index].info.n_elements();
        if n_weights + n > UNIT && n_weights > 0 {
            units.push(Vec::new());
            n_weights = 0;
        }
        n_weights += n;
        units.iter_mut().next_back().into_iter().for_each(|unit| unit.push(index));
    }
    job.options.progress.begin("solve", 0);
    let mut n_done = 0;
    for (number, tensors) in units.iter().enumerate() {
        let path = job.scratch.join(format!("unit-{number:04}.safetensors"));
        let unit = unit_at(&path, || {
            let n_more = solver.needed_bytes(tensors);
            limit.map_or(Ok(()), |limit| limit.check_before("update weights", n_more))?;
            solver.unit(plan, tensors, &mut layers, &BTreeMap::new())
        })?;
        found.take_in(plan, unit, tensors)?;
        n_done += tensors.len();
        job.options.progress.items(n_done, moving.len());
    }
    Ok(())
}

/// Sets the mask, scales and weights of a tensor in the plan to those of the source.
fn give(tensor: &mut TensorPlan, source: &SolvedSource) {
    let score = tensor.prune.map(|prune| prune.score).unwrap_or_default();
    tensor.prune = source.has_mask(tensor.index()).then_some(Pruning { score, cut: Cut::Given });
    if let Some(quant) = &mut tensor.quant {
        quant.is_given = true;
    }
    (tensor.is_moved, tensor.was_sparse) = (true, false);
}

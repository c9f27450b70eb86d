//! Weights that are moved so that the outputs of their layers stay what they were: what happens between the plan and the survey.
//!
//! What was found is kept in files beside the output, one for each block of the network, so that a run that was killed goes on at the
//! block where it stood. The survey and all that follows see the moved weights, masks and scales as given.

mod errors;
#[cfg(feature = "model")]
mod fake_quantized;
mod found;
mod inputs;
mod job;
mod one;
mod owl;
mod source;
mod unit;

use briquette_core::{Error, Result};
use briquette_recipe::Recipe;
use briquette_report::SolvedLayer;
use briquette_writer::{Cut, Plan, Pruning, TensorPlan};
#[cfg(feature = "model")]
pub(crate) use fake_quantized::Simulated;
use found::{Found, unit_at};
pub(crate) use inputs::calibrated;
pub(crate) use job::SolveJob;
use one::Solver;
#[cfg(feature = "model")]
pub(crate) use one::rows_of;
pub(crate) use owl::shares;
pub(crate) use source::SolvedSource;
use std::collections::BTreeMap;

/// What was found: the model with moved weights in their places, and how well they fit.
pub(crate) struct Solved<'a> {
    pub(crate) source: SolvedSource<'a>,
    pub(crate) layers: BTreeMap<usize, SolvedLayer>,
}

/// Whether any stage of these moves weights, or the model is to run block by block for what they look at.
pub(crate) fn is_asked(recipe: &Recipe) -> bool {
    recipe.calibration.is_some() || recipe.stages.iter().any(briquette_recipe::Stage::updates_weights)
}

/// Updates the weights of all tensors that request it, and gives the plan the inputs that the calibration saw. None where nothing is updated
/// and nothing is run.
///
/// # Errors
/// Input where statistics have no gram matrices; those of reading, running and writing; Interrupted.
pub(crate) fn solve<'a>(job: &'a SolveJob<'a>, plan: &mut Plan) -> Result<Option<Solved<'a>>> {
    let runs = job.recipe.calibration.as_ref().filter(|_| inputs::goes_by_block(job.recipe, job.checkpoint));
    if moving(plan).next().is_none() && runs.is_none() {
        return Ok(None);
    }
    std::fs::create_dir_all(job.scratch)
        .map_err(|error| Error::io("cannot create the directory", job.scratch, error))?;
    let mut found = Found { source: SolvedSource::new(job.checkpoint), layers: BTreeMap::new() };
    match runs {
        Some(calibration) => inputs::block_by_block(job, calibration, plan, &mut found)?,
        None => from_statistics(job, plan, &mut found)?,
    }
    let moved: Vec<usize> = moving(plan).map(TensorPlan::index).collect();
    for index in moved {
        give(&mut plan.tensors[index], &found.source);
    }
    found.remark(plan);
    Ok(Some(Solved { source: found.source, layers: found.layers }))
}

/// The tensors whose weights are to be moved.
fn moving<'p, 'a>(plan: &'p Plan<'a>) -> impl Iterator<Item = &'p TensorPlan<'a>> {
    plan.tensors.iter().filter(|tensor| tensor.solve.moves() && tensor.tied_to().is_none())
}

/// Moves weights by statistics that were gathered before, in units of about this many weights.
const UNIT: usize = 32 << 20;

fn from_statistics(job: &SolveJob, plan: &mut Plan, found: &mut Found) -> Result<()> {
    let moving: Vec<usize> = moving(plan).map(TensorPlan::index).collect();
    let mut layers = inputs::layers_of_files(job)?;
    let mut solver = Solver::new(job, plan)?;
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
        let unit = unit_at(&path, || solver.unit(plan, tensors, &mut layers))?;
        found.take_in(plan, unit, tensors)?;
        n_done += tensors.len();
        job.options.progress.items(n_done, moving.len());
    }
    Ok(())
}

/// Has the plan take mask, scales and weights of a tensor as the source gives them.
fn give(tensor: &mut TensorPlan, source: &SolvedSource) {
    let score = tensor.prune.map(|prune| prune.score).unwrap_or_default();
    tensor.prune = source.has_mask(tensor.index()).then_some(Pruning { score, cut: Cut::Given });
    if let Some(quant) = &mut tensor.quant {
        quant.is_given = true;
    }
    (tensor.is_moved, tensor.was_sparse) = (true, false);
}

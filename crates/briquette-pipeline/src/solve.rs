//! Weights that are moved so that the outputs of their layers stay what they were: what happens between the plan and the survey.
//!
//! What was found is kept in files beside the output, one for each block of the network, so that a run that was killed goes on at the
//! block where it stood. The survey and all that follows see the moved weights, masks and scales as given.

mod errors;
mod inputs;
mod one;
mod shares;
mod simulated;
mod source;
mod unit;

use briquette_core::{Error, InputStats, Result};
use briquette_flow::context::{RunOptions, Workers};
use briquette_flow::{Cut, Plan, Pruning, Stop, TensorPlan};
use briquette_formats::Checkpoint;
use briquette_recipe::Recipe;
use briquette_report::SolvedLayer;
pub(crate) use inputs::calibrated;
use one::Solver;
pub(crate) use shares::shares;
pub(crate) use source::SolvedSource;
use std::collections::BTreeMap;
use std::path::Path;
use unit::Unit;

/// What a run of the methods that move weights works on.
#[derive(Clone, Copy)]
pub(crate) struct SolveJob<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) checkpoint: &'a Checkpoint,
    /// Where finished blocks are kept.
    pub(crate) scratch: &'a Path,
    pub(crate) workers: &'a Workers,
    pub(crate) options: &'a RunOptions,
}

/// What was found: the model with moved weights in their places, and how well they fit.
pub(crate) struct Solved<'a> {
    pub(crate) source: SolvedSource<'a>,
    pub(crate) layers: BTreeMap<usize, SolvedLayer>,
}

/// Whether any stage of these moves weights, or the model is to run block by block for what they look at.
pub(crate) fn is_asked(recipe: &Recipe) -> bool {
    recipe.calibration.is_some() || recipe.stages.iter().any(briquette_recipe::Stage::moves_weights)
}

/// Moves the weights of all tensors of which that is asked, and gives the plan what the calibration saw. None where nothing is moved and
/// nothing is run.
///
/// # Errors
/// Config where a tensor's layer is not there to see inputs; Input where statistics lack one or have no gram matrices; those of reading,
/// running and writing; Interrupted.
pub(crate) fn solve<'a>(job: &'a SolveJob<'a>, plan: &mut Plan) -> Result<Option<Solved<'a>>> {
    let moving: Vec<usize> = moving(plan).map(TensorPlan::index).collect();
    let runs = job.recipe.calibration.as_ref().filter(|_| inputs::goes_by_block(job.recipe, job.checkpoint));
    if moving.is_empty() && runs.is_none() {
        return Ok(None);
    }
    std::fs::create_dir_all(job.scratch)
        .map_err(|error| Error::io("cannot create the directory", job.scratch, error))?;
    let mut found = Found { source: SolvedSource::new(job.checkpoint), layers: BTreeMap::new() };
    match runs {
        Some(calibration) => inputs::block_by_block(job, calibration, plan, &mut found)?,
        None => from_statistics(job, plan, &moving, &mut found)?,
    }
    for &index in &moving {
        give(&mut plan.tensors[index], &found.source);
    }
    found.remark(plan);
    Ok(Some(Solved { source: found.source, layers: found.layers }))
}

/// What was found so far.
pub(crate) struct Found<'a> {
    source: SolvedSource<'a>,
    layers: BTreeMap<usize, SolvedLayer>,
}

/// The tensors whose weights are to be moved.
fn moving<'p, 'a>(plan: &'p Plan<'a>) -> impl Iterator<Item = &'p TensorPlan<'a>> {
    plan.tensors.iter().filter(|tensor| tensor.solve.moves() && tensor.tied_to().is_none())
}

/// The name of the layer that a tensor is the weight of.
fn layer_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Moves weights by statistics that were gathered before, in units of about this many weights.
const UNIT: usize = 32 << 20;

fn from_statistics(job: &SolveJob, plan: &mut Plan, moving: &[usize], found: &mut Found) -> Result<()> {
    let layers = inputs::layers_of_files(job)?;
    let mut solver = Solver::new(job, plan)?;
    let (mut units, mut n_weights) = (vec![Vec::new()], 0);
    for &index in moving {
        let n = plan.tensors[index].info.n_elements();
        if n_weights + n > UNIT && n_weights > 0 {
            units.push(Vec::new());
            n_weights = 0;
        }
        n_weights += n;
        units.last_mut().map(|unit| unit.push(index));
    }
    job.options.progress.begin("solve", 0);
    let mut n_done = 0;
    for (number, tensors) in units.iter().enumerate() {
        let path = job.scratch.join(format!("unit-{number:04}.safetensors"));
        let unit = unit_at(&path, || solver.unit(plan, tensors, &layers))?;
        found.take_in(plan, unit, tensors)?;
        n_done += tensors.len();
        job.options.progress.items(n_done, moving.len());
    }
    Ok(())
}

/// What an earlier run left at a path, where it is whole; else it is made, and kept there.
fn unit_at(path: &Path, make: impl FnOnce() -> Result<Unit>) -> Result<Checkpoint> {
    if path.exists()
        && let Ok(done) = Unit::open(path)
    {
        return Ok(done);
    }
    make()?.write(path)?;
    Unit::open(path)
}

impl<'a> Found<'a> {
    /// Takes in a finished unit: its weights, and what it says of inputs.
    fn take_in(&mut self, plan: &mut Plan, unit: Checkpoint, tensors: &[usize]) -> Result<()> {
        for &index in tensors {
            let tensor = &plan.tensors[index];
            if let Some(view) = unit::view(&unit, &tensor.info.name)? {
                plan.inputs.insert(index, view);
            }
        }
        for &index in tensors {
            if let Some(layer) = unit::figures(&unit, &plan.tensors[index].info.name)? {
                self.layers.insert(index, layer);
            }
        }
        self.source.add(unit, tensors.iter().map(|&index| (index, &plan.tensors[index])))
    }

    /// Says of which layers less is known than it should, and where a method had to do otherwise.
    fn remark(&self, plan: &mut Plan) {
        let of = |is_it: &dyn Fn(&SolvedLayer) -> bool| -> Vec<&str> {
            let found = self.layers.iter().filter(|(_, layer)| is_it(layer));
            found.map(|(&index, _)| layer_of(&plan.tensors[index].info.name)).collect()
        };
        let few = of(&|layer| layer.is_few);
        let damped = of(&|layer| layer.is_damped_more && layer.fell_back.is_none());
        let fell_back = of(&|layer| layer.fell_back.is_some());
        let dead = of(&|layer| layer.n_dead > 0);
        let lines = [
            ("saw fewer than 512 vectors in the calibration, which says little of their inputs", few),
            ("needed more damping, as their Hessians had no Cholesky factor", damped),
            ("had no usable Hessian: their weights were dropped by magnitude and rounded to nearest", fell_back),
            ("have inputs that were 0 throughout the calibration; the weights of those became 0", dead),
        ];
        let said = lines.into_iter().filter(|(_, names)| !names.is_empty());
        let said: Vec<String> = said.map(|(what, names)| format!("{} {what}", listed(&names))).collect();
        plan.remarks.extend(said);
    }
}

/// The first few names, and how many more.
fn listed(names: &[&str]) -> String {
    const N: usize = 3;
    let more = names.len().saturating_sub(N);
    let more = if more > 0 { format!(" and {more} more layers") } else { String::new() };
    format!("{}{more}", names[..names.len().min(N)].join(", "))
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

/// The statistics of a tensor's inputs.
///
/// # Errors
/// Input where there are none of its layer, of another number of inputs, or without a gram matrix where `needs_gram`.
fn stats_of<'s>(
    tensor: &TensorPlan,
    layers: &'s BTreeMap<String, InputStats>,
    needs_gram: bool,
) -> Result<&'s InputStats> {
    let layer = layer_of(&tensor.info.name);
    let Some(stats) = layers.get(layer) else {
        let message = format!("the calibration saw no inputs of {layer:?}; exclude the tensor from the stage");
        return Err(Error::input(message).at(tensor.culprit()));
    };
    let (found, expected) = (stats.n_inputs(), tensor.rows.n_cols);
    if found != expected {
        let message = format!("has statistics of {found} inputs, expected {expected}");
        return Err(Error::input(message).at(tensor.culprit()));
    }
    if needs_gram && stats.gram.is_none() {
        let message = "its statistics have no gram matrix, which moving weights needs; gather them with `--gram`";
        return Err(Error::input(message).at(tensor.culprit()));
    }
    Ok(stats)
}

/// Checks for a request to stop, as work in `briquette-solve` does.
fn go_on(stop: &Stop) -> impl Fn() -> Result<()> + Sync {
    let stop = stop.clone();
    move || stop.check()
}

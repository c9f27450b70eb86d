//! Input statistics of layers, from files or from running the model.

use super::found::Found;
use super::job::SolveJob;
use briquette_core::{InputStats, Result};
use briquette_formats::Checkpoint;
use briquette_formats::input_stats::StatisticsFile;
use briquette_formats::presence;
use briquette_recipe::{CalibrationRun, Recipe, Stage};
use briquette_writer::Plan;
use briquette_writer::context::RunOptions;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// Reads the statistics of all files that stages name, and checks that they belong to this model.
pub(super) fn layers_of_files(job: &SolveJob) -> Result<BTreeMap<String, InputStats>> {
    let mut layers = BTreeMap::new();
    for path in job.recipe.stages.iter().filter(|stage| stage.updates_weights()).filter_map(Stage::statistics) {
        let file = StatisticsFile::read(path)?;
        file.check_model(job.checkpoint).map_err(|error| error.at(path.display()))?;
        layers.extend(file.layers);
    }
    Ok(layers)
}

/// Reads the statistics of all files that stages name, and of the run of the original model.
pub(crate) fn layers_of_original(
    recipe: &Recipe,
    checkpoint: &Checkpoint,
    scratch: Option<&Path>,
) -> Result<BTreeMap<String, InputStats>> {
    let gathered = match scratch.map(|scratch| scratch.join(STATISTICS)) {
        Some(path) if presence::exists(&path)? => Some(path),
        _ => None,
    };
    let named = recipe.stages.iter().filter_map(Stage::statistics).map(Path::to_path_buf);
    let mut layers = BTreeMap::new();
    for path in named.chain(gathered) {
        let file = StatisticsFile::read(&path)?;
        file.check_model(checkpoint).map_err(|error| error.at(path.display()))?;
        layers.extend(file.layers);
    }
    Ok(layers)
}

/// Returns whether a calibration gathers input statistics for stages. Ranges of static activations need none.
pub(super) fn gathers_inputs(recipe: &Recipe) -> bool {
    let asked = &recipe.asked;
    let of_budget = asked.budget.is_some() && !asked.has_static_activations();
    let is_needed = asked.tensors_need_statistics() || of_budget;
    is_needed && recipe.calibration.is_some() && !recipe.stages.is_empty()
}

/// The name of the file with statistics that are gathered before the plan.
const STATISTICS: &str = "statistics.safetensors";

#[cfg(feature = "model")]
pub(crate) use run::{block_by_block, calibrated, goes_by_block};

#[cfg(not(feature = "model"))]
pub(crate) use without::{block_by_block, calibrated, goes_by_block};

#[cfg(not(feature = "model"))]
mod without {
    use super::*;
    use briquette_core::Error;

    pub(crate) fn goes_by_block(_recipe: &Recipe, _checkpoint: &Checkpoint) -> bool {
        false
    }

    /// Returns an error if the recipe calibrates: this build cannot run models.
    pub(crate) fn calibrated<'r>(
        recipe: &'r Recipe,
        _scratch: &Path,
        _options: &RunOptions,
    ) -> Result<Cow<'r, Recipe>> {
        match recipe.calibration {
            None => Ok(Cow::Borrowed(recipe)),
            Some(_) => Err(Error::lacks_feature("model", "run models").at("calibration.data")),
        }
    }

    pub(crate) fn block_by_block(
        _job: &SolveJob,
        _calibration: &CalibrationRun,
        _plan: &mut Plan,
        _found: &mut Found,
    ) -> Result<()> {
        Err(Error::bug("a model runs in a build that cannot run models"))
    }
}

#[cfg(feature = "model")]
mod run {
    use super::super::curvature;
    use super::super::fake_quantized::Simulated;
    use super::super::found::unit_at;
    use super::super::job::{layer_of, moving};
    use super::super::layerwise::LayerwiseSolve;
    use super::super::one::Solver;
    use super::*;
    use crate::arch::arch_of;
    use crate::memory::{limit_of_host, run_model};
    use crate::training::spec_of;
    use briquette_core::Error;
    use briquette_eval::layerwise::{BlockPart, Room};
    use briquette_eval::samples::run_batches;
    use briquette_eval::{Gathering, LayerwiseRunner, Samples};
    use briquette_recipe::plan::settle_unseen;
    use briquette_writer::TensorPlan;

    /// Returns whether the model runs block by block during compression.
    ///
    /// This applies to models whose weights are updated, or whose blocks should receive the outputs of compressed
    /// blocks.
    pub(crate) fn goes_by_block(recipe: &Recipe, checkpoint: &Checkpoint) -> bool {
        let Some(calibration) = &recipe.calibration else { return false };
        let moves = recipe.stages.iter().any(Stage::updates_weights);
        let parts = || {
            let arch = arch_of(calibration.arch.as_deref(), checkpoint)?;
            LayerwiseRunner::parts(checkpoint, arch)
        };
        (moves || calibration.is_sequential) && parts().is_ok()
    }

    /// Returns the recipe with a file of statistics for its stages, after gathering them from the original
    /// model.
    ///
    /// # Errors
    /// - Config: the data is of another kind than the model takes.
    /// - Input: the data or the model is damaged.
    /// - Io: a file cannot be read or written.
    /// - Interrupted: a stop was requested.
    pub(crate) fn calibrated<'r>(recipe: &'r Recipe, scratch: &Path, options: &RunOptions) -> Result<Cow<'r, Recipe>> {
        let calibration = recipe.calibration.as_ref().filter(|_| gathers_inputs(recipe));
        let Some(calibration) = calibration else { return Ok(Cow::Borrowed(recipe)) };
        let checkpoint = crate::open::model(recipe)?;
        let (by_block, path) = (goes_by_block(recipe, &checkpoint), scratch.join(STATISTICS));
        let looks_before =
            |stage: &Stage| stage.shares_by_outliers() || stage.scales_columns() || stage.corrects_biases();
        if by_block && !recipe.stages.iter().any(looks_before) {
            return Ok(Cow::Borrowed(recipe));
        }
        if !presence::exists(&path)? {
            std::fs::create_dir_all(scratch)
                .map_err(|error| Error::io("cannot create the directory", scratch, error))?;
            let needs_gram = calibration.has_gram || recipe.stages.iter().any(Stage::updates_weights);
            gather(calibration, &checkpoint, needs_gram && !by_block, &path, options)?;
        }
        if by_block {
            return Ok(Cow::Borrowed(recipe));
        }
        let mut recipe = recipe.clone();
        for stage in &mut recipe.stages {
            stage.look_at(&path);
        }
        recipe.calibration = None;
        Ok(Cow::Owned(recipe))
    }

    /// Runs the model and writes a file of statistics.
    fn gather(
        calibration: &CalibrationRun,
        checkpoint: &Checkpoint,
        has_gram: bool,
        path: &Path,
        options: &RunOptions,
    ) -> Result<()> {
        let device = briquette_models::device(&options.device)?;
        let arch = arch_of(calibration.arch.as_deref(), checkpoint)?;
        let spec = spec_of(&calibration.data);
        let data = spec.open_within(arch.task(), limit_of_host(calibration.limit, options))?;
        let samples = Samples { n: calibration.n_samples, seed: calibration.seed };
        let directory = path.parent().unwrap_or(Path::new("."));
        let room = Room::within(limit_of_host(calibration.limit, options), directory);
        options.progress.begin("calibrate", 0);
        let mut after = |done, total| {
            options.progress.items(done, total);
            options.stop.check()
        };
        let gathering = Gathering { samples, has_gram, has_gradients: false, room };
        let found = run_model(options, calibration.limit, &device, || {
            briquette_eval::calibrate(checkpoint, arch, &device, (&data, &spec), gathering, &mut after)
        })?;
        let model = Some(briquette_formats::input_stats::fingerprint(checkpoint)?);
        StatisticsFile { model, layers: found.layers, block_influence: found.block_influence }.write(path)
    }

    /// Compresses a model block by block: observes the inputs of a block's layers, decides about its weights,
    /// and passes its outputs to the next block.
    ///
    /// # Errors
    /// See [`super::super::solve`].
    pub(crate) fn block_by_block<'j>(
        job: &'j SolveJob<'j>,
        calibration: &'j CalibrationRun,
        plan: &mut Plan,
        found: &mut Found<'j>,
    ) -> Result<()> {
        let device = briquette_models::device(&job.options.device)?;
        run_model(job.options, calibration.limit, &device, || {
            let arch = arch_of(calibration.arch.as_deref(), job.checkpoint)?;
            let (spec, mut input) = (spec_of(&calibration.data), arch.input(job.checkpoint)?);
            let data = spec.open_within(arch.task(), limit_of_host(calibration.limit, job.options))?;
            let samples = Samples { n: calibration.n_samples, seed: calibration.seed };
            let batches = run_batches(arch, &mut input, &data, &spec, samples)?;
            let layers = LayerwiseRunner::layers_of(job.checkpoint, arch)?;
            let parts = LayerwiseRunner::parts(job.checkpoint, arch)?;
            let is_entry = |tensor: &TensorPlan| parts.part_of(&tensor.info.name) == BlockPart::Entry;
            let is_table = |tensor: &TensorPlan| tensor.needs_given_scales() && is_entry(tensor);
            settle_unseen(plan, |tensor| !layers.contains(layer_of(&tensor.info.name)) && !is_table(tensor));
            let mut solver = Solver::new(job, plan)?;
            let limit = limit_of_host(calibration.limit, job.options);
            let room = Room::within(limit, job.scratch);
            let tables: Vec<usize> = moving(plan).filter(|tensor| is_table(tensor)).map(TensorPlan::index).collect();
            if !tables.is_empty() {
                let unit = unit_at(&job.scratch.join("entry.safetensors"), || {
                    let mut seen = curvature::of_tables(job, arch, &device, plan, &tables, (&data, &spec), room)?;
                    solver.unit(plan, &tables, &mut seen, &BTreeMap::new())
                })?;
                found.take_in(plan, unit, &tables)?;
                solver.learn(plan);
            }
            let is_of_entry = |tensor: &TensorPlan| {
                calibration.is_sequential
                    && is_entry(tensor)
                    && (!tensor.solve.moves() || tables.contains(&tensor.index()))
            };
            let of_entry = plan.tensors.iter().filter(|tensor| tensor.is_changed() && is_of_entry(tensor));
            let n_more = of_entry.map(|tensor| solver.decision_bytes(tensor.index())).max().unwrap_or(0);
            limit.map_or(Ok(()), |limit| limit.check_before("compress the embeddings", n_more))?;
            let begin = || LayerwiseRunner::begin(job.checkpoint, arch, &device, batches.clone(), room, job.checkpoint);
            let learns = plan.tensors.iter().any(|tensor| tensor.solve.learns);
            let original = (calibration.is_corrected || learns).then(begin).transpose()?;
            let entry = Simulated::of(job.checkpoint, plan, (&solver, &found.source), is_of_entry)?;
            let runner = LayerwiseRunner::begin(job.checkpoint, arch, &device, batches, room, &entry)?;
            drop(entry);
            LayerwiseSolve { job, calibration, runner, original, plan, found, solver, limit }.run()
        })
    }
}

//! Compresses a model block by block: observes the inputs of a block's layers, decides about its weights, and passes its
//! outputs to the next block.

use super::fake_quantized::Simulated;
use super::found::{Found, unit_at};
use super::job::{SolveJob, layer_of};
use super::one::Solver;
use briquette_core::memory::MemoryLimit;
use briquette_core::{Error, Result};
use briquette_eval::LayerwiseRunner;
use briquette_eval::layerwise::{BlockPart, PairedInputs};
use briquette_formats::Checkpoint;
use briquette_methods::reconstruct::CrossInputs;
use briquette_nn::Probe;
use briquette_recipe::CalibrationRun;
use briquette_writer::{Plan, TensorPlan};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of a group of linear layers with the same inputs, and its tensors.
type GroupTensors = (usize, Vec<usize>);

/// The number of steps in which the rounding of a block is learned.
pub(super) const N_LEARNING_STEPS: usize = 200;

/// The state of a layerwise compression.
pub(super) struct LayerwiseSolve<'j, 'p, 's> {
    pub(super) job: &'j SolveJob<'j>,
    pub(super) calibration: &'j CalibrationRun,
    pub(super) runner: LayerwiseRunner<'j>,
    /// A run of the original model, if weights are corrected for the errors before them or rounding is learned.
    pub(super) original: Option<LayerwiseRunner<'j>>,
    pub(super) plan: &'s mut Plan<'p>,
    pub(super) found: &'s mut Found<'j>,
    pub(super) solver: Solver<'j, 'p>,
    pub(super) limit: Option<MemoryLimit<'j>>,
}

impl LayerwiseSolve<'_, '_, '_> {
    /// Compresses all blocks, then the head.
    ///
    /// # Errors
    /// See [`super::solve`].
    pub(super) fn run(mut self) -> Result<()> {
        let Self { job, .. } = self;
        job.options.progress.begin("solve", 0);
        // A corrected block runs twice to the end, and up to each of its groups, of which most have four.
        let n_of_block = if self.calibration.is_corrected { 6 } else { 2 };
        let n_steps = if self.plan.tensors.iter().any(|tensor| tensor.solve.learns) { N_LEARNING_STEPS } else { 0 };
        let n_passes = (n_of_block * self.runner.n_batches() + n_steps) * self.runner.n_blocks();
        let mut n_done = 0;
        let mut after = |_, _| {
            n_done += 1;
            job.options.progress.items(n_done.min(n_passes), n_passes);
            job.options.stop.check()
        };
        let probe = Probe::with_gram();
        while let Some(block) = self.runner.next_block() {
            let tensors = self.of_part(BlockPart::Block(block));
            match self.corrected_groups(&tensors)? {
                Some(groups) => groups
                    .iter()
                    .filter(|(_, tensors)| !tensors.is_empty())
                    .try_for_each(|(group, tensors)| self.corrected(block, *group, tensors, &mut after))?,
                None => self.uncorrected(block, &tensors, &probe, &mut after)?,
            }
            if let Some(original) = &mut self.original {
                original.advance(job.checkpoint, &mut after)?;
            }
            self.learn_rounding(block, &tensors, &mut after)?;
            self.advance(block, &mut after)?;
        }
        self.head(&probe)
    }

    /// Compresses a block from the inputs that its original weights have after the compressed blocks.
    fn uncorrected(
        &mut self,
        block: usize,
        tensors: &[usize],
        probe: &Probe,
        after: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        let path = self.job.scratch.join(format!("block-{block:04}.safetensors"));
        let Self { job, runner, solver, plan, limit, .. } = self;
        let n_more = solver.needed_bytes(tensors);
        let unit = unit_at(&path, || {
            let mut seen = runner.observe(job.checkpoint, probe, after)?;
            let what = || format!("update the weights of block {block}");
            limit.map_or(Ok(()), |limit| limit.check_before(&what(), n_more))?;
            solver.unit(plan, tensors, &mut seen.layers, &BTreeMap::new())
        })?;
        self.take_in(block, unit, tensors)
    }

    /// Returns the tensors of each group of linear layers with the same inputs.
    ///
    /// `None` if weights are not corrected, or some of the tensors are in no group, such as convolutions.
    fn corrected_groups(&self, tensors: &[usize]) -> Result<Option<Vec<GroupTensors>>> {
        if !self.calibration.is_corrected {
            return Ok(None);
        }
        let layer = |index: &usize| layer_of(&self.plan.tensors[*index].info.name);
        let of_group = |(group, layers): (usize, Vec<String>)| {
            let is_of_it = |index: &&usize| layers.iter().any(|known| known == layer(index));
            (group, tensors.iter().filter(is_of_it).copied().collect::<Vec<usize>>())
        };
        let groups: Vec<GroupTensors> = self.runner.linear_groups()?.into_iter().enumerate().map(of_group).collect();
        let n_found: usize = groups.iter().map(|(_, tensors)| tensors.len()).sum();
        Ok((n_found == tensors.len()).then_some(groups))
    }

    /// Compresses a group of layers, corrected for all errors before them.
    fn corrected(
        &mut self,
        block: usize,
        group: usize,
        tensors: &[usize],
        after: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        let path = self.job.scratch.join(format!("block-{block:04}-{group:02}.safetensors"));
        let Self { job, runner, original, solver, plan, found, limit, .. } = self;
        let original = original.as_ref().ok_or_else(|| Error::bug("a correction without the original model"))?;
        let n_more = 2 * solver.needed_bytes(tensors);
        let unit = unit_at(&path, || {
            let current = Simulated::of(job.checkpoint, plan, (solver, &found.source), |tensor| {
                runner.part_of(&tensor.info.name) == BlockPart::Block(block)
            })?;
            let PairedInputs { mut layers, cross, added } =
                runner.observe_both(original, [&current, job.checkpoint], group, after)?;
            let what = || format!("update the weights of block {block}");
            limit.map_or(Ok(()), |limit| limit.check_before(&what(), n_more))?;
            let grams: Vec<(String, Arc<Vec<f64>>)> =
                layers.iter().filter_map(|(layer, stats)| Some((layer.clone(), stats.gram.clone()?))).collect();
            let crosses = grams.iter().map(|(layer, gram)| {
                let added = added.get(layer).map(Vec::as_slice);
                (layer.clone(), CrossInputs { gram, cross: &cross, added })
            });
            solver.unit(plan, tensors, &mut layers, &crosses.collect())
        })?;
        self.take_in(block, unit, tensors)
    }

    /// Adds a finished unit of a block.
    pub(super) fn take_in(&mut self, block: usize, unit: Checkpoint, tensors: &[usize]) -> Result<()> {
        self.limit.map_or(Ok(()), |limit| limit.check(&format!("compress block {block}")))?;
        self.found.take_in(self.plan, unit, tensors)?;
        self.solver.learn(self.plan);
        Ok(())
    }

    /// Advances the hidden states to the next block.
    fn advance(&mut self, block: usize, after: &mut dyn FnMut(usize, usize) -> Result<()>) -> Result<()> {
        if !self.calibration.is_sequential {
            return self.runner.advance(self.job.checkpoint, after);
        }
        let Self { runner, plan, solver, found, .. } = self;
        let current = Simulated::of(self.job.checkpoint, plan, (solver, &found.source), |tensor| {
            runner.part_of(&tensor.info.name) == BlockPart::Block(block)
        })?;
        runner.advance(&current, after)
    }

    /// Compresses an untied head, whose inputs are the outputs of the last block.
    fn head(&mut self, probe: &Probe) -> Result<()> {
        let tensors = self.of_part(BlockPart::Exit);
        if tensors.is_empty() {
            return Ok(());
        }
        let Self { job, runner, solver, plan, .. } = self;
        let unit = unit_at(&job.scratch.join("head.safetensors"), || {
            let mut seen = runner.observe_head(job.checkpoint, probe)?;
            solver.unit(plan, &tensors, &mut seen.layers, &BTreeMap::new())
        })?;
        self.found.take_in(self.plan, unit, &tensors)
    }

    /// Returns the tensors of a part whose input statistics are needed.
    fn of_part(&self, part: BlockPart) -> Vec<usize> {
        let layers = self.runner.layers();
        let is_of_it = |tensor: &&TensorPlan| {
            let is_needed = tensor.solve.moves() || briquette_recipe::plan::needs_inputs(tensor);
            let is_shown = layers.contains(layer_of(&tensor.info.name));
            let is_there = self.runner.part_of(&tensor.info.name) == part && tensor.tied_to().is_none();
            is_there && (is_needed || tensor.is_changed() && is_shown)
        };
        self.plan.tensors.iter().filter(is_of_it).map(TensorPlan::index).collect()
    }
}

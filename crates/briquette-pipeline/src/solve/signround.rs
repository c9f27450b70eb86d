//! Learns the rounding of a block's weights from the error of the block's outputs (SignRound).

use super::fake_quantized::Simulated;
use super::found::unit_at;
use super::layerwise::{LayerwiseSolve, N_LEARNING_STEPS};
use super::one::Solver;
use super::source::SolvedSource;
use super::unit::{SolvedUnit, UpdatedTensor};
use crate::report::SolvedLayer;
use briquette_core::{Decision, Error, Mask, QuantParams, Result};
use briquette_eval::layerwise::BlockPart;
use briquette_formats::TensorSource;
use briquette_methods::reconstruct::SignRound;
use briquette_writer::{Plan, TensorPlan};

/// The least number of tokens or images whose outputs give the gradient of a step.
const STEP_POSITIONS: usize = 1024;

/// A tensor whose rounding is learned.
struct LearnedTensor {
    index: usize,
    keep: Option<Mask>,
    rounding: SignRound,
}

impl LayerwiseSolve<'_, '_, '_> {
    /// Learns the rounding of those of a block's tensors that ask for it, from their codes so far.
    ///
    /// The run of the original model has run this block already; its states are the targets.
    pub(super) fn learn_rounding(
        &mut self,
        block: usize,
        tensors: &[usize],
        after: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        let chosen: Vec<usize> =
            tensors.iter().copied().filter(|&index| self.plan.tensors[index].solve.learns).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let path = self.job.scratch.join(format!("block-{block:04}-learned.safetensors"));
        let unit = unit_at(&path, || self.learned(block, &chosen, after))?;
        self.take_in(block, unit, &chosen)
    }

    fn learned(
        &mut self,
        block: usize,
        chosen: &[usize],
        after: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<SolvedUnit> {
        let Self { job, runner, original, solver, plan, found, limit, .. } = self;
        let target = original.as_ref().ok_or_else(|| Error::bug("learned rounding without the original model"))?;
        let n_weights: usize = chosen.iter().map(|&index| plan.tensors[index].rows().n_elements()).sum();
        // Weights, shifts and gradients, rounded weights three times, and the block's network with its activations.
        let n_more = 4 * 8 * n_weights as u64;
        limit.map_or(Ok(()), |limit| limit.check_before(&format!("learn the rounding of block {block}"), n_more))?;
        let tensors = chosen.iter().map(|&index| LearnedTensor::of(plan, index, (solver, &found.source)));
        let mut tensors = tensors.collect::<Result<Vec<_>>>()?;
        let mut simulated = Simulated::of(job.checkpoint, plan, (solver, &found.source), |tensor| {
            runner.part_of(&tensor.info.name) == BlockPart::Block(block)
        })?;
        let (before, parts) = (runner.block_error(&simulated, target)?, runner.mixed_batches(STEP_POSITIONS));
        // The rate falls linearly from 1/200 to 0, so that a shift can reach half a step.
        for step in 0..N_LEARNING_STEPS {
            let gradients = runner.block_gradients(&simulated, target, &parts[step % parts.len()])?;
            let rate = (1.0 - step as f32 / N_LEARNING_STEPS as f32) / N_LEARNING_STEPS as f32;
            for learned in &mut tensors {
                let name = &plan.tensors[learned.index].info.name;
                let gradient =
                    gradients.get(name.as_str()).ok_or_else(|| Error::bug(format!("no gradient of {name:?}")))?;
                job.workers.install(|| learned.rounding.step(gradient, rate));
                simulated.hold(&plan.tensors[learned.index], learned.index, &learned.rounding.values());
            }
            after(step, N_LEARNING_STEPS)?;
        }
        let left = runner.block_error(&simulated, target)? / before;
        // It is not a number if an error is not finite, or if there was none before.
        let is_nearer = left < 1.0;
        if !is_nearer {
            tensors.iter_mut().for_each(|learned| learned.rounding.reset());
        }
        let left = if is_nearer { left } else { 1.0 };
        let mut unit = SolvedUnit::default();
        for learned in tensors {
            let mut figures = found.layers.get(&learned.index).cloned();
            figures.iter_mut().for_each(|figures| figures.block_left = Some(left));
            let tensor = &plan.tensors[learned.index];
            unit.add_updated(&tensor.info.name, tensor.rows().n_cols, learned.into_updated(tensor, figures))?;
        }
        Ok(unit)
    }
}

impl LearnedTensor {
    /// Starts from the codes and scales that a tensor has so far.
    fn of(plan: &Plan, index: usize, (solver, source): (&Solver, &SolvedSource)) -> Result<Self> {
        let tensor = &plan.tensors[index];
        let lost = || Error::bug(format!("no codes of {:?}", tensor.info.name));
        let quant = tensor.quant.ok_or_else(lost)?;
        let (n_rows, n_cols) = (tensor.rows().n_rows, tensor.rows().n_cols);
        let (weights, rounded) = (solver.weights(index)?, source.weights(index)?.ok_or_else(lost)?);
        let affines = source.affines(index, 0..n_rows)?;
        let grids = QuantParams::new(quant.spec.grid, quant.spec.grouping, n_cols, affines);
        let bits = source.keep(index, 0..n_rows)?;
        let keep = (!bits.is_empty()).then(|| Mask::from_bits(n_rows, n_cols, bits));
        // A budget has counted the bytes that its steps take.
        let scales = (quant.spec.scale, !quant.spec.range.is_step());
        let rounding = SignRound::new((&weights, &rounded), n_cols, grids, keep.clone(), scales);
        Ok(Self { index, keep, rounding })
    }

    fn into_updated(self, tensor: &TensorPlan, figures: Option<SolvedLayer>) -> UpdatedTensor {
        let mut updated = UpdatedTensor::default();
        updated.figures = figures;
        let decision = Decision { quant: Some(self.rounding.grids()), mask: self.keep };
        updated.push(tensor.rows().n_cols, &self.rounding.values(), decision);
        updated
    }
}

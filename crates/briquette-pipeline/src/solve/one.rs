//! Error compensation of one tensor: its mask, grids and updated weights.

use super::errors::OutputErrors;
use super::fit_rows::{fit_rows, has_free_scales};
use super::groups::GroupInputs;
use super::job::{SolveJob, check_stop, layer_of, stats_of};
use super::rows::{can_store, check_finite, is_finite, rows_of_decision, rows_of_mask, zeros_of};
use super::scaled_stats::ScaledStats;
use super::unit::{SolvedUnit, UpdatedTensor};
use super::update::{DAMPING, KnownFactor, double, on_trellis, pruned, rounded};
use crate::frequency::ScaledSource;
use crate::report::SolvedLayer;
use briquette_core::encoded::CodeBlocks;
use briquette_core::{
    ColumnScales, Decision, Error, Grouping, InputStats, Mask, QuantParams, Result, decision::fake_quantize,
};
use briquette_formats::TensorSource;
use briquette_methods::prune::{Reconstruction, SparsityPattern};
use briquette_methods::quant::{Fitter, MaskedRows, Rounding, RowInputs};
use briquette_methods::reconstruct::{CrossInputs, FactorOutcome, Fallback, correct, searches_scales};
use briquette_writer::context::Workers;
use briquette_writer::piece::{PieceReader, pieces_of};
use briquette_writer::survey::{Survey, survey};
use briquette_writer::{self as flow, Cut, Plan, Stop, TensorPlan};
use std::collections::BTreeMap;
use std::sync::Arc;

/// With fewer input vectors than this, a layer's statistics are unreliable.
const FEW: u64 = 512;

/// Compresses tensors one by one.
pub(super) struct Solver<'j, 'p> {
    source: &'j ScaledSource<'j>,
    workers: &'j Workers,
    /// The plan without weight updates: masks by score, and everything for the other tensors.
    plain: Plan<'p>,
    surveys: Vec<Survey>,
}

/// The changes of weights before they are pruned and rounded.
struct WeightChanges<'a> {
    /// The inputs that the errors before the layer are corrected for.
    cross: Option<CrossInputs<'a>>,
    /// The scales of columns, which divide the weights.
    columns: Option<ColumnScales>,
}

/// Rows of a tensor, from row `first` on.
#[derive(Clone, Copy)]
struct SomeRows<'a> {
    original: &'a [f32],
    first: usize,
    /// The mask of weights that stay, if it is given.
    given: Option<&'a Mask>,
}

/// Updated rows of a tensor.
struct UpdatedRows {
    values: Vec<f32>,
    decision: Decision,
    /// Whether their codes were chosen on a trellis.
    is_on_trellis: bool,
}

impl<'j, 'p> Solver<'j, 'p> {
    /// Surveys the tensors without weight updates.
    pub(super) fn new(job: &SolveJob<'j>, plan: &Plan<'p>) -> Result<Self> {
        let mut plain = plan.clone();
        for tensor in plain.tensors.iter_mut().filter(|tensor| tensor.solve.moves()) {
            match (tensor.solve.reconstruction, tensor.prune) {
                (None, Some(_)) => tensor.quant = None,
                // Nothing is decided yet; the tensor is still read by its outputs, because its weights will be
                // updated.
                _ => (tensor.prune, tensor.quant, tensor.cast) = (None, None, None),
            }
        }
        let surveys = survey(&mut plain, job.scaled, job.workers)?;
        Ok(Self { source: job.scaled, workers: job.workers, plain, surveys })
    }

    /// Copies input statistics from the plan, for scores and ranges that use them.
    #[cfg(feature = "model")]
    pub(super) fn learn(&mut self, plan: &Plan) {
        self.plain.inputs.clone_from(&plan.inputs);
    }

    /// Returns the memory that the decision about a tensor takes: the largest piece, a scale for each group and a
    /// bit for each weight.
    #[cfg(feature = "model")]
    pub(super) fn decision_bytes(&self, index: usize) -> u64 {
        let (tensor, rows) = (&self.plain.tensors[index], self.plain.tensors[index].rows());
        let pieces = pieces_of(tensor, self.source.reads_ranges(index));
        let n_rows = pieces.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let per_row = tensor.quant.and_then(|quant| quant.spec.grouping.per_row(rows.n_cols)).unwrap_or(0);
        let of_decision = rows.n_rows * (size_of::<briquette_core::Affine>() * per_row + Mask::row_bytes(rows.n_cols));
        (n_rows * rows.n_cols * tensor.width() + of_decision) as u64
    }

    /// Returns the memory that the update of the largest of these tensors takes: a matrix in f64 and its factor in
    /// f32, the weights in a few versions, and with scales of columns another Gram matrix.
    pub(super) fn needed_bytes(&self, tensors: &[usize]) -> u64 {
        const VERSIONS: u64 = 4;
        let of_tensor = |&index: &usize| {
            let rows = self.plain.tensors[index].rows();
            let of_columns = if self.source.has_columns(index) { 8 } else { 0 };
            (8 + 4 + of_columns) * (rows.n_cols as u64).pow(2) + 4 * VERSIONS * rows.n_elements() as u64
        };
        let moving = tensors.iter().filter(|&&index| self.plain.tensors[index].solve.moves());
        moving.map(of_tensor).max().unwrap_or(0)
    }

    /// Updates the tensors that request error compensation, and stores the input statistics of all these
    /// tensors.
    ///
    /// Statistics are removed from `layers` after use. The largest are used last, when no others are in memory. Layers
    /// in `crosses` are first corrected for the errors before them.
    pub(super) fn unit(
        &mut self,
        plan: &Plan,
        tensors: &[usize],
        layers: &mut BTreeMap<String, InputStats>,
        crosses: &BTreeMap<String, CrossInputs>,
    ) -> Result<SolvedUnit> {
        let (mut unit, mut factors) = (SolvedUnit::default(), Vec::<KnownFactor>::new());
        let mut scaled = ScaledStats::default();
        for index in narrow_first(plan, tensors, layers) {
            let tensor = &plan.tensors[index];
            let stats = stats_of(tensor, layers, tensor.solve.moves())?;
            let (name, view) = (&tensor.info.name, stats.view());
            unit.add_inputs(name, &view);
            self.plain.inputs.insert(index, view);
            if tensor.solve.moves() {
                let columns = self.columns_of(tensor)?;
                let stats = columns.as_ref().map_or(stats, |columns| scaled.of(stats, columns));
                factors.retain(|known| stats.gram.as_ref().is_some_and(|gram| Arc::ptr_eq(&known.gram, gram)));
                let changes = WeightChanges { cross: crosses.get(layer_of(name)).copied(), columns };
                let solved = self.workers.install(|| self.tensor(tensor, stats, &changes, &mut factors))?;
                unit.add_updated(name, tensor.rows().n_cols, solved)?;
            }
            layers.remove(layer_of(name));
        }
        Ok(unit)
    }

    /// Returns all weights of a tensor row-major, and the decision without weight updates.
    fn plain(&self, index: usize) -> Result<(Vec<f32>, Decision)> {
        Ok((self.weights(index)?, self.decision(index)?))
    }

    /// Returns all weights of a tensor row-major.
    pub(super) fn weights(&self, index: usize) -> Result<Vec<f32>> {
        rows_of(&self.plain.tensors[index], self.source, self.workers.stop())
    }

    /// Returns the decision about a tensor without weight updates.
    pub(super) fn decision(&self, index: usize) -> Result<Decision> {
        let (tensor, stop) = (&self.plain.tensors[index], self.workers.stop());
        match tensor.prune.is_some() || tensor.quant.is_some() {
            true => flow::decide(&self.plain, index, &self.surveys[index], self.source, stop),
            false => Ok(Decision::default()),
        }
    }

    /// Returns the scales of a tensor's columns, if it gets codes with them.
    fn columns_of(&self, tensor: &TensorPlan) -> Result<Option<ColumnScales>> {
        match tensor.quant.is_some_and(|quant| quant.spec.has_columns) {
            true => self.source.columns(tensor.index()),
            false => Ok(None),
        }
    }

    /// Updates the weights of a tensor, some rows at a time if rows are independent.
    ///
    /// With scales of columns, the result is that of the weights divided by them, whose inputs `stats` describe.
    fn tensor(
        &self,
        tensor: &TensorPlan,
        stats: &InputStats,
        changes: &WeightChanges,
        factors: &mut Vec<KnownFactor>,
    ) -> Result<UpdatedTensor> {
        let (n_rows, n_cols) = (tensor.rows().n_rows, tensor.rows().n_cols);
        let (mut original, plain) = self.plain(tensor.index())?;
        check_finite(tensor, &original)?;
        let zeros = zeros_of(&original, n_cols);
        let given = plain.mask.as_ref().or(zeros.as_ref());
        if let Some(cross) = changes.cross {
            correct(&mut original, n_cols, cross, &check_stop(self.workers.stop()))?;
        }
        changes.columns.iter().for_each(|columns| columns.divide(&mut original));
        let (mut solved, mut outcome, mut errors) =
            (UpdatedTensor::default(), None, OutputErrors::new(stats, [n_rows, n_cols]));
        let mut is_lost = false;
        let is_by_rows = goes_by_rows(tensor) && stats.n_groups(n_cols) == 1;
        let step = if is_by_rows { rows_at_a_time(n_rows, n_cols) } else { n_rows };
        for start in (0..n_rows).step_by(step) {
            let rows = start..(start + step).min(n_rows);
            let given = given.map(|given| rows_of_mask(given, &rows));
            let own = &original[rows.start * n_cols..rows.end * n_cols];
            let part = SomeRows { original: own, first: start, given: given.as_ref() };
            let mut updated = self.rows(tensor, part, stats, (factors, &mut outcome))?;
            if !updated.as_ref().is_some_and(|updated| can_store(tensor, &updated.values)) {
                is_lost = true;
                updated = self.rows(tensor, part, &unseen(stats), (&mut Vec::new(), &mut outcome))?;
            }
            let updated = updated.ok_or_else(|| {
                let message = "its weights are too large to be rounded within f32; exclude the tensor from the stage";
                Error::refused(message).at(tensor.culprit())
            })?;
            let rounded = |row: usize| {
                let mut decision = rows_of_decision(&updated.decision, &(row..row + 1), n_cols);
                if updated.is_on_trellis {
                    // Rounding to the nearest takes as many bits with this step.
                    double(&mut decision);
                }
                fake_quantize(&own[row * n_cols..(row + 1) * n_cols], 1, n_cols, &decision)
            };
            errors.add(rows.start, own, rounded, &updated.values);
            solved.push(n_cols, &updated.values, updated.decision);
        }
        if let Some(outcome) = outcome.as_mut().filter(|_| is_lost) {
            outcome.fallback = Some(Fallback::NotFinite);
        }
        solved.figures = Some(figures_of(tensor, stats, outcome, &errors));
        Ok(solved)
    }

    /// Updates some rows of a tensor. Returns them with their decision; `None` if an updated weight is not
    /// finite.
    fn rows(
        &self,
        tensor: &TensorPlan,
        SomeRows { original, first, given }: SomeRows,
        stats: &InputStats,
        (factors, outcome): (&mut Vec<KnownFactor>, &mut Option<FactorOutcome>),
    ) -> Result<Option<UpdatedRows>> {
        let (n_cols, check_stop) = (tensor.rows().n_cols, check_stop(self.workers.stop()));
        let n_rows = original.len() / n_cols;
        let mut values = original.to_vec();
        let groups = GroupInputs::of(stats, [n_rows, n_cols]);
        let mask = match tensor.solve.reconstruction {
            Some(how) => {
                let weights = (values.as_mut_slice(), n_cols);
                let (mask, found) = pruned(tensor, how, weights, given, &groups, factors, &check_stop)?;
                *outcome = found;
                Some(mask)
            }
            None => given.cloned(),
        };
        if !is_finite(&values) {
            return Ok(None);
        }
        let decision = Decision { quant: None, mask };
        let kept = fake_quantize(&values, n_rows, n_cols, &decision);
        let scales = self.source.scales(tensor.index(), first..first + n_rows);
        let has_given_scales = scales.is_some();
        let quant = match tensor.quant.zip(scales) {
            Some((quant, scales)) => {
                Some(QuantParams::new(quant.spec.grid, quant.spec.grouping, n_cols, scales.to_vec()))
            }
            None => grids_of(tensor, &kept, decision.mask.as_ref(), stats, &check_stop)?,
        };
        let (mut decision, mut is_on_trellis) = (Decision { quant, ..decision }, false);
        match (&decision.quant, tensor.solve.rounding) {
            (Some(quant), Rounding::Gptq) => {
                let searches = !has_given_scales && stats.count >= FEW && searches_scales(quant, n_cols);
                let spec = tensor.quant.map(|quant| quant.spec);
                if let Some(spec) = spec.filter(|spec| spec.has_trellis) {
                    let (is_whole, how) = (tensor.prune.is_none(), (spec.range, &decision));
                    let found = match is_whole {
                        true => on_trellis(&mut values, n_cols, how, &groups, factors, &check_stop)?,
                        false => None,
                    };
                    is_on_trellis = found.is_some();
                    match found {
                        Some(_) => *outcome = found,
                        None if is_whole => values.copy_from_slice(original),
                        None => {}
                    }
                    // A single scale stays, because the other rows of the tensor may have it.
                    if !is_on_trellis && quant.grouping != Grouping::Tensor {
                        double(&mut decision);
                    }
                }
                if !is_on_trellis {
                    *outcome = rounded(&mut values, n_cols, (&mut decision, searches), &groups, factors, &check_stop)?;
                }
                if !is_finite(&values) {
                    return Ok(None);
                }
                let is_known = stats.count >= FEW && outcome.is_some_and(|outcome| outcome.fallback.is_none());
                let spec = tensor.quant.map(|quant| quant.spec).filter(|spec| is_known && has_free_scales(spec));
                if let (Some(spec), Some(quant)) = (spec, &mut decision.quant) {
                    fit_rows(original, &mut values, n_cols, (quant, spec.scale), &groups);
                }
            }
            _ => values = fake_quantize(&values, n_rows, n_cols, &decision),
        }
        Ok(is_finite(&values).then_some(UpdatedRows { values, decision, is_on_trellis }))
    }
}

/// Returns statistics as if no input was observed, so that weights are dropped by magnitude and rounded to
/// nearest.
fn unseen(stats: &InputStats) -> InputStats {
    InputStats { count: 0, sum_squares: vec![0.0; stats.n_inputs()], ..stats.clone() }
}

/// Returns tensors with the fewest inputs first, and tensors with the same inputs next to each other.
fn narrow_first(plan: &Plan, tensors: &[usize], layers: &BTreeMap<String, InputStats>) -> Vec<usize> {
    let gram = |&index: &usize| {
        let stats = layers.get(layer_of(&plan.tensors[index].info.name));
        stats.and_then(|stats| stats.gram.as_ref()).map(Arc::as_ptr)
    };
    let first = |index: &usize| tensors.iter().position(|other| gram(other) == gram(index));
    let mut ordered = tensors.to_vec();
    ordered.sort_by_key(|index| (plan.tensors[*index].rows().n_cols, first(index)));
    ordered
}

/// The number of weights whose rows are updated at a time if rows are independent.
const ROWS_OF: usize = 8 << 20;

/// Returns the number of rows that are updated at a time: whole blocks of codes, because a trellis begins anew in each.
fn rows_at_a_time(n_rows: usize, n_cols: usize) -> usize {
    let of_block = CodeBlocks::new(n_rows, n_cols).rows(0).len().max(1);
    (ROWS_OF / n_cols / of_block).max(1) * of_block
}

/// Returns whether some rows of a tensor can be updated at a time: unless rows share a scale or a drop count.
fn goes_by_rows(tensor: &TensorPlan) -> bool {
    let shares_drop = match tensor.solve.reconstruction {
        // Its inverse would be recomputed for each range of rows.
        Some(Reconstruction::Admm) => true,
        Some(Reconstruction::SparseGpt) => {
            matches!(tensor.prune.map(|prune| prune.cut), Some(Cut::Pattern(SparsityPattern::Unstructured(_))))
        }
        None => false,
    };
    let shares_scale = tensor.quant.is_some_and(|quant| quant.spec.needs_whole());
    !shares_drop && !shares_scale
}

/// Returns all weights of a tensor, row-major.
pub(crate) fn rows_of(tensor: &TensorPlan, source: &dyn TensorSource, stop: &Stop) -> Result<Vec<f32>> {
    let (mut reader, mut values) = (PieceReader::default(), Vec::with_capacity(tensor.rows().n_elements()));
    for rows in pieces_of(tensor, source.reads_ranges(tensor.index())) {
        reader.read(source, tensor, &rows, stop)?.for_each_block(|block| {
            values.extend_from_slice(block.values);
            Ok(())
        })?;
    }
    Ok(values)
}

/// Returns the grids of a tensor's kept weights.
fn grids_of(
    tensor: &TensorPlan,
    kept: &[f32],
    mask: Option<&Mask>,
    stats: &InputStats,
    check_stop: &impl Fn() -> Result<()>,
) -> Result<Option<QuantParams>> {
    let Some(quant) = tensor.quant else { return Ok(None) };
    let (n_cols, spec, view) = (tensor.rows().n_cols, quant.spec, stats.view());
    let mut affines = Vec::new();
    let inputs = Some(RowInputs { view: &view, first_row: 0, n_rows: kept.len() / n_cols });
    let rows = MaskedRows { values: kept, n_cols, keep: mask.map(Mask::as_bits), inputs };
    Fitter::default().fit(&spec, rows, check_stop, &mut affines)?;
    Ok(Some(QuantParams::new(spec.grid, spec.grouping, n_cols, affines)))
}

fn figures_of(
    tensor: &TensorPlan,
    stats: &InputStats,
    outcome: Option<FactorOutcome>,
    errors: &OutputErrors,
) -> SolvedLayer {
    // ADMM has a fixed damping and does not increase it.
    let is_factored =
        tensor.solve.reconstruction != Some(Reconstruction::Admm) || tensor.solve.rounding == Rounding::Gptq;
    let fell_back = outcome.and_then(|outcome| outcome.fallback).map(|fallback| match fallback {
        Fallback::NothingSeen => "no inputs were seen".to_string(),
        Fallback::NotPositive => "the Hessian has no Cholesky factor".to_string(),
        Fallback::NotFinite => "the updated weights are not finite".to_string(),
    });
    SolvedLayer {
        n_vectors: stats.count,
        is_few: stats.count < FEW,
        damping: outcome.map_or(DAMPING, |outcome| outcome.damping),
        is_damped_more: is_factored && outcome.is_some_and(|outcome| outcome.damping > DAMPING),
        n_dead: outcome.map_or(0, |outcome| outcome.n_dead),
        fell_back,
        outputs_unmoved: errors.relative(0),
        outputs: errors.relative(1),
        block_left: None,
    }
}

//! The weights of one tensor: which are dropped, on which grids they lie, and where they are moved to.

use super::unit::Unit;
use super::{SolveJob, go_on, stats_of};
use briquette_core::{Decision, Error, InputStats, Mask, QuantParams, Result, decision::simulate};
use briquette_flow::context::Workers;
use briquette_flow::piece::{PieceReader, pieces_of};
use briquette_flow::survey::{Survey, survey};
use briquette_flow::{self as flow, Cut, Plan, Stop, TensorPlan};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_prune::Reconstruction;
use briquette_quant::{Fitter, KeptRows, Rounding};
use briquette_report::SolvedLayer;
use briquette_solve::{ColumnOrder, FactorSpec, Fallback, InverseFactor, Outcome, Sparsity, gptq, sparsegpt};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is added to the diagonal of a Hessian, as a share of its mean, where that suffices.
pub(super) const DAMPING: f64 = 0.01;

/// Vectors below which a layer's statistics say little.
const FEW: u64 = 512;

/// Decides about tensors one by one.
pub(super) struct Solver<'j, 'p> {
    checkpoint: &'j Checkpoint,
    workers: &'j Workers,
    /// What is decided without moving weights: which are dropped by a score, and all of tensors that stay where they are.
    plain: Plan<'p>,
    surveys: Vec<Survey>,
}

/// A factor of the Hessian of some inputs, for all layers that see them.
struct KnownFactor {
    gram: Arc<Vec<f64>>,
    order: ColumnOrder,
    factor: InverseFactor,
}

impl<'j, 'p> Solver<'j, 'p> {
    /// Surveys what is decided without moving weights.
    pub(super) fn new(job: &SolveJob<'j>, plan: &Plan<'p>) -> Result<Self> {
        let mut plain = plan.clone();
        for tensor in plain.tensors.iter_mut().filter(|tensor| tensor.solve.moves()) {
            match (tensor.solve.reconstruction, tensor.prune) {
                (None, Some(_)) => tensor.quant = None,
                _ => tensor.leave("is moved"),
            }
        }
        let surveys = survey(&mut plain, job.checkpoint, job.workers)?;
        Ok(Self { checkpoint: job.checkpoint, workers: job.workers, plain, surveys })
    }

    /// Learns what the inputs of tensors are, for scores and ranges that look at them.
    pub(super) fn learn(&mut self, plan: &Plan) {
        self.plain.inputs.clone_from(&plan.inputs);
    }

    /// Moves the weights of those of these tensors of which that is asked. Of the others their inputs are kept.
    pub(super) fn unit(
        &mut self,
        plan: &Plan,
        tensors: &[usize],
        layers: &BTreeMap<String, InputStats>,
    ) -> Result<Unit> {
        let (mut unit, mut factors) = (Unit::default(), Vec::new());
        for &index in tensors {
            let tensor = &plan.tensors[index];
            let stats = stats_of(tensor, layers, tensor.solve.moves())?;
            let (name, view) = (&tensor.info.name, stats.view());
            unit.add_inputs(name, &view);
            self.plain.inputs.insert(index, view);
            if tensor.solve.moves() {
                let solved = self.workers.install(|| self.tensor(tensor, stats, &mut factors))?;
                unit.add_moved(name, tensor.rows.n_cols, &solved.values, &solved.decision);
                unit.add_figures(name, &solved.figures)?;
            }
        }
        Ok(unit)
    }

    /// All weights of a tensor as it is decided without moving any, row by row, and the decision.
    pub(super) fn plain(&self, index: usize) -> Result<(Vec<f32>, Decision)> {
        let (tensor, stop) = (&self.plain.tensors[index], self.workers.stop());
        let values = rows_of(tensor, self.checkpoint, stop)?;
        let decision = match tensor.prune.is_some() || tensor.quant.is_some() {
            true => flow::decide(&self.plain, index, &self.surveys[index], self.checkpoint, stop)?,
            false => Decision::default(),
        };
        Ok((values, decision))
    }

    fn tensor(&self, tensor: &TensorPlan, stats: &InputStats, factors: &mut Vec<KnownFactor>) -> Result<SolvedTensor> {
        let (n_cols, go_on) = (tensor.rows.n_cols, go_on(self.workers.stop()));
        let (original, plain) = self.plain(tensor.index())?;
        check_finite(tensor, &original)?;
        let mut values = original.clone();
        let zeros = zeros_of(&values, n_cols);
        let mut outcome = None;
        let mask = match tensor.solve.reconstruction {
            Some(method) => {
                let factor = factor_of(factors, stats, ColumnOrder::Stored, &go_on)?;
                outcome = Some(factor.outcome());
                let sparsity = sparsity_of(tensor)?;
                Some(match method {
                    Reconstruction::SparseGpt => {
                        sparsegpt(&mut values, n_cols, sparsity, zeros.as_ref(), factor, &go_on)?
                    }
                    Reconstruction::Admm => return Err(Error::bug("admm is not linked in")),
                })
            }
            None => plain.mask.or(zeros),
        };
        let decision = Decision { quant: None, mask };
        let kept = simulate(&values, tensor.rows.n_rows, n_cols, &decision);
        let quant = grids_of(tensor, &kept, decision.mask.as_ref(), stats, &go_on)?;
        let decision = Decision { quant, ..decision };
        match (&decision.quant, tensor.solve.rounding) {
            (Some(quant), Rounding::Gptq) => {
                let factor = factor_of(factors, stats, ColumnOrder::ByActivation, &go_on)?;
                outcome = Some(factor.outcome());
                gptq(&mut values, n_cols, quant, decision.mask.as_ref(), factor, &go_on)?;
            }
            _ => values = simulate(&values, tensor.rows.n_rows, n_cols, &decision),
        }
        let unmoved = simulate(&original, tensor.rows.n_rows, n_cols, &decision);
        let figures = figures_of(stats, n_cols, outcome, [&original, &unmoved, &values]);
        Ok(SolvedTensor { values, decision, figures })
    }
}

/// What became of a tensor.
struct SolvedTensor {
    /// Where its weights are now, row by row.
    values: Vec<f32>,
    decision: Decision,
    figures: SolvedLayer,
}

/// All weights of a tensor, row by row.
pub(super) fn rows_of(tensor: &TensorPlan, source: &dyn TensorSource, stop: &Stop) -> Result<Vec<f32>> {
    let (mut reader, mut values) = (PieceReader::default(), Vec::with_capacity(tensor.rows.n_elements()));
    for rows in pieces_of(tensor, source.reads_ranges(tensor.index())) {
        reader.read(source, tensor, &rows, stop)?.for_each_block(|block| {
            values.extend_from_slice(block.values);
            Ok(())
        })?;
    }
    Ok(values)
}

fn check_finite(tensor: &TensorPlan, values: &[f32]) -> Result<()> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let (row, col) = (at / tensor.rows.n_cols, at % tensor.rows.n_cols);
    let message = format!("found {} at row {row}, column {col}; fix the checkpoint, or exclude the tensor", values[at]);
    Err(Error::refused(message).at(tensor.culprit()))
}

/// The mask of a tensor that was pruned before: more than one weight in 64 is 0. Those stay 0.
fn zeros_of(values: &[f32], n_cols: usize) -> Option<Mask> {
    let n_zeros = values.iter().filter(|value| **value == 0.0).count();
    let mask = || Mask::from_fn(values.len() / n_cols, n_cols, |row, col| values[row * n_cols + col] != 0.0);
    (n_zeros * 64 > values.len()).then(mask)
}

fn sparsity_of(tensor: &TensorPlan) -> Result<Sparsity> {
    match tensor.prune.map(|prune| prune.cut) {
        Some(Cut::Count(n_drop)) => Ok(Sparsity::Count(n_drop)),
        Some(Cut::OfEach { size, n_drop }) if size == tensor.rows.n_cols => Ok(Sparsity::CountPerRow(n_drop)),
        Some(Cut::NOfM { n, m }) => Ok(Sparsity::NOfM { n, m }),
        _ => Err(Error::bug("weights are moved around a cut that spans tensors").at(tensor.culprit())),
    }
}

/// The factor of the Hessian of these inputs, made once for all layers in a row that see them.
fn factor_of<'f>(
    known: &'f mut Vec<KnownFactor>,
    stats: &InputStats,
    order: ColumnOrder,
    go_on: &(impl Fn() -> Result<()> + Sync),
) -> Result<&'f InverseFactor> {
    let gram = stats.gram.as_ref().ok_or_else(|| Error::bug("statistics without a gram matrix"))?;
    let is_it = |known: &KnownFactor| Arc::ptr_eq(&known.gram, gram) && known.order == order;
    if !known.iter().any(is_it) {
        known.retain(|known| known.order != order);
        let spec = FactorSpec { damping: DAMPING, order };
        let factor = InverseFactor::new(gram, stats.count, &spec, go_on)?;
        known.push(KnownFactor { gram: gram.clone(), order, factor });
    }
    known.iter().find(|known| is_it(known)).map(|known| &known.factor).ok_or_else(|| Error::bug("a factor was lost"))
}

/// The grids of a tensor's kept weights.
fn grids_of(
    tensor: &TensorPlan,
    kept: &[f32],
    mask: Option<&Mask>,
    stats: &InputStats,
    go_on: &impl Fn() -> Result<()>,
) -> Result<Option<QuantParams>> {
    let Some(quant) = tensor.quant else { return Ok(None) };
    let (n_cols, spec, view) = (tensor.rows.n_cols, quant.spec, stats.view());
    let mut affines = Vec::new();
    let rows = KeptRows { values: kept, n_cols, keep: mask.map(Mask::as_bits), inputs: Some(&view) };
    Fitter::default().fit(&spec, rows, go_on, &mut affines)?;
    Ok(Some(QuantParams::new(spec.grid, spec.grouping, n_cols, affines)))
}

fn figures_of(stats: &InputStats, n_cols: usize, outcome: Option<Outcome>, values: [&[f32]; 3]) -> SolvedLayer {
    let [original, unmoved, moved] = values;
    let relative = |other: &[f32]| relative_output_error(stats, n_cols, original, other);
    let fell_back = outcome.and_then(|outcome| outcome.fallback).map(|fallback| match fallback {
        Fallback::NothingSeen => "no inputs were seen".to_string(),
        Fallback::NotPositive => "its Hessian has no Cholesky factor".to_string(),
    });
    SolvedLayer {
        n_vectors: stats.count,
        is_few: stats.count < FEW,
        damping: outcome.map_or(DAMPING, |outcome| outcome.damping),
        n_dead: outcome.map_or(0, |outcome| outcome.n_dead),
        fell_back,
        outputs_unmoved: relative(unmoved),
        outputs: relative(moved),
    }
}

/// Rows that the errors of outputs are summed over: all, or so many that lie evenly apart.
const MAX_ROWS: usize = 256;

/// `Σ e·G·eᵀ / Σ w·G·wᵀ` over rows, where `G` is the gram matrix of the inputs: the square error of outputs over their square.
fn relative_output_error(stats: &InputStats, n_cols: usize, original: &[f32], other: &[f32]) -> Option<f64> {
    let gram = stats.gram.as_ref()?;
    let n_rows = original.len() / n_cols.max(1);
    let step = n_rows.div_ceil(MAX_ROWS).max(1);
    let rows = || (0..n_rows).step_by(step).map(|row| row * n_cols..(row + 1) * n_cols);
    let form = |row: &[f64]| -> f64 {
        let product = |(at, weights): (usize, &[f64])| row[at] * dot(weights, row);
        gram.chunks_exact(n_cols).enumerate().map(product).sum()
    };
    let both = |cols: std::ops::Range<usize>| {
        let error: Vec<f64> = original[cols.clone()].iter().zip(&other[cols.clone()]).map(apart).collect();
        let whole: Vec<f64> = original[cols].iter().map(|&value| f64::from(value)).collect();
        (form(&error), form(&whole))
    };
    use rayon::prelude::*;
    let sums: Vec<(f64, f64)> = rows().collect::<Vec<_>>().into_par_iter().map(both).collect();
    let (error, whole) = sums.into_iter().fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
    (whole > 0.0).then(|| (error / whole).max(0.0))
}

fn apart((a, b): (&f32, &f32)) -> f64 {
    f64::from(*a) - f64::from(*b)
}

/// A dot product in eight sums, which the processor adds at once.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a, rest_of_a) = a.as_chunks::<8>();
    let (b, rest_of_b) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum::<f64>() + rest_of_a.iter().zip(rest_of_b).map(|(a, b)| a * b).sum::<f64>()
}

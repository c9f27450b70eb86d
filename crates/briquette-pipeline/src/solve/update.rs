//! Pruning and rounding with weight updates, by channel group.

use super::groups::{GroupInputs, joined, pattern_of};
use super::rows::{rows_of_decision, rows_of_mask};
use briquette_core::encoded::ScaleType;
use briquette_core::{Affine, Decision, Error, InputStats, Mask, QuantParams, Result};
use briquette_methods::prune::{Reconstruction, SparsityPattern};
use briquette_methods::reconstruct::{
    ColumnOrder, FactorOutcome, FactorSpec, InverseFactor, admm, gptq, gptq_with_scales, row_factors, sparsegpt,
};
use briquette_writer::{Cut, TensorPlan};
use std::sync::Arc;

/// The initial damping of a Hessian, relative to its mean diagonal.
pub(super) const DAMPING: f64 = 0.01;

/// A factor of the Hessian for all layers with the same inputs.
pub(super) struct KnownFactor {
    pub(super) gram: Arc<Vec<f64>>,
    order: ColumnOrder,
    factor: InverseFactor,
}

/// Prunes weights `[rows, n_cols]` and updates the others, by channel group. Returns the mask.
pub(super) fn pruned(
    tensor: &TensorPlan,
    how: Reconstruction,
    (values, n_cols): (&mut [f32], usize),
    given: Option<&Mask>,
    groups: &[GroupInputs],
    factors: &mut Vec<KnownFactor>,
    check_stop: &(impl Fn() -> Result<()> + Sync),
) -> Result<(Mask, Option<FactorOutcome>)> {
    let (sparsity, n_rows) = (sparsity_of(tensor)?, values.len() / n_cols);
    let (mut bits, mut outcomes) = (Vec::new(), Vec::new());
    for GroupInputs { rows, stats } in groups {
        let (own, pattern) = (&mut values[rows.start * n_cols..rows.end * n_cols], pattern_of(sparsity, rows, n_rows));
        let (mask, outcome) = match how {
            Reconstruction::SparseGpt => {
                let given = given.map(|given| rows_of_mask(given, rows));
                let factor = factor_of(factors, stats, ColumnOrder::Stored, check_stop)?;
                (sparsegpt(own, n_cols, pattern, given.as_ref(), factor, check_stop)?, factor.outcome())
            }
            Reconstruction::Admm => {
                let gram = stats.gram.as_ref().ok_or_else(|| Error::bug("statistics without a Gram matrix"))?;
                admm(own, n_cols, pattern, gram, stats.count, check_stop)?
            }
        };
        bits.extend_from_slice(mask.as_bits());
        outcomes.push(outcome);
    }
    Ok((Mask::from_bits(n_rows, n_cols, bits), joined(&outcomes)))
}

/// How the scales of a tensor change while it is rounded.
#[derive(Clone, Copy)]
pub(super) struct ScaleChanges {
    /// Whether the scales of rows with few weights are searched.
    pub(super) searches: bool,
    /// The type of scales that are fitted to the codes, a factor for each row. Other scales stay.
    pub(super) refits: Option<ScaleType>,
}

/// Rounds weights `[rows, n_cols]` by GPTQ, by channel group.
pub(super) fn rounded(
    values: &mut [f32],
    n_cols: usize,
    (decision, changes): (&mut Decision, ScaleChanges),
    groups: &[GroupInputs],
    factors: &mut Vec<KnownFactor>,
    check_stop: &(impl Fn() -> Result<()> + Sync),
) -> Result<Option<FactorOutcome>> {
    let (mut outcomes, mut scales) = (Vec::new(), Vec::new());
    for GroupInputs { rows, stats } in groups {
        let decided = if groups.len() == 1 { decision.clone() } else { rows_of_decision(decision, rows, n_cols) };
        let quant = decided.quant.as_ref().ok_or_else(|| Error::bug("GPTQ without a grid"))?;
        let factor = factor_of(factors, stats, ColumnOrder::ByActivation, check_stop)?;
        let weights = &mut values[rows.start * n_cols..rows.end * n_cols];
        let gram = stats.gram.as_ref().filter(|_| factor.outcome().fallback.is_none());
        let target = changes.refits.map(|_| weights.to_vec());
        let mut own = match gram.filter(|_| changes.searches) {
            Some(gram) => {
                let inputs = (factor, gram.as_slice());
                gptq_with_scales(weights, n_cols, quant, decided.mask.as_ref(), inputs, check_stop)?
            }
            None => {
                gptq(weights, n_cols, quant, decided.mask.as_ref(), factor, check_stop)?;
                quant.clone()
            }
        };
        if let (Some(target), Some(gram), Some(stored)) = (target, gram, changes.refits) {
            refit_rows(&target, weights, n_cols, &mut own, (gram, stored));
        }
        scales.extend(own.affines);
        outcomes.push(factor.outcome());
    }
    if let Some(quant) = decision.quant.as_mut().filter(|_| changes.searches || changes.refits.is_some()) {
        quant.affines = scales;
    }
    Ok(joined(&outcomes))
}

/// Multiplies the scales of each row by the factor with the least error of outputs. Codes stay.
fn refit_rows(
    target: &[f32],
    values: &mut [f32],
    n_cols: usize,
    quant: &mut QuantParams,
    (gram, stored): (&[f64], ScaleType),
) {
    let factors = row_factors([target, values], n_cols, gram, DAMPING);
    let (grid, size) = (quant.grid, quant.group_size());
    let per_row = n_cols.div_ceil(size);
    let rows = values.chunks_mut(n_cols).zip(quant.affines.chunks_mut(per_row));
    for ((values, affines), factor) in rows.zip(factors) {
        for (values, affine) in values.chunks_mut(size).zip(affines) {
            let before = *affine;
            *affine = stored.round(Affine { scale: (f64::from(before.scale) * factor) as f32, ..before });
            values.iter_mut().for_each(|value| *value = affine.dequantize(before.quantize(*value, grid)));
        }
    }
}

/// Returns the factor of the Hessian of these inputs, computed once for consecutive layers with the same
/// inputs.
fn factor_of<'f>(
    known: &'f mut Vec<KnownFactor>,
    stats: &InputStats,
    order: ColumnOrder,
    check_stop: &(impl Fn() -> Result<()> + Sync),
) -> Result<&'f InverseFactor> {
    let gram = stats.gram.as_ref().ok_or_else(|| Error::bug("statistics without a Gram matrix"))?;
    let is_it = |known: &KnownFactor| Arc::ptr_eq(&known.gram, gram) && known.order == order;
    if !known.iter().any(is_it) {
        let spec = FactorSpec { damping: DAMPING, order };
        let factor = InverseFactor::new(gram, stats.count, &spec, check_stop)?;
        known.push(KnownFactor { gram: gram.clone(), order, factor });
    }
    known.iter().find(|known| is_it(known)).map(|known| &known.factor).ok_or_else(|| Error::bug("a factor was lost"))
}

fn sparsity_of(tensor: &TensorPlan) -> Result<SparsityPattern> {
    match tensor.prune.map(|prune| prune.cut) {
        Some(Cut::Pattern(pattern)) => Ok(pattern),
        _ => Err(Error::bug("weights are updated for a cut that spans tensors").at(tensor.culprit())),
    }
}

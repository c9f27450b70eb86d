//! Pruning and rounding with weight updates, by channel group.

use super::groups::{GroupInputs, joined, pattern_of};
use super::rows::{rows_of_decision, rows_of_mask};
use briquette_core::entropy::trellis::can_have_trellis;
use briquette_core::{Affine, Decision, Error, InputStats, Mask, Result};
use briquette_methods::prune::{Reconstruction, SparsityPattern};
use briquette_methods::quant::ScaleSearch;
use briquette_methods::reconstruct::{
    ColumnOrder, FactorOutcome, FactorSpec, InverseFactor, admm, gptq, gptq_on_trellis, gptq_with_scales, sparsegpt,
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

/// Rounds weights `[rows, n_cols]` by GPTQ, by channel group. The scales of rows with few weights are searched if `searches`.
pub(super) fn rounded(
    values: &mut [f32],
    n_cols: usize,
    (decision, searches): (&mut Decision, bool),
    groups: &[GroupInputs],
    factors: &mut Vec<KnownFactor>,
    check_stop: &(impl Fn() -> Result<()> + Sync),
) -> Result<Option<FactorOutcome>> {
    let (mut outcomes, mut scales) = (Vec::new(), Vec::new());
    for GroupInputs { rows, stats } in groups {
        let own = if groups.len() == 1 { decision.clone() } else { rows_of_decision(decision, rows, n_cols) };
        let quant = own.quant.as_ref().ok_or_else(|| Error::bug("GPTQ without a grid"))?;
        let factor = factor_of(factors, stats, ColumnOrder::ByActivation, check_stop)?;
        let weights = &mut values[rows.start * n_cols..rows.end * n_cols];
        match stats.gram.as_ref().filter(|_| searches && factor.outcome().fallback.is_none()) {
            Some(gram) => {
                let inputs = (factor, gram.as_slice());
                scales.extend(gptq_with_scales(weights, n_cols, quant, own.mask.as_ref(), inputs, check_stop)?.affines);
            }
            None => {
                gptq(weights, n_cols, quant, own.mask.as_ref(), factor, check_stop)?;
                scales.extend_from_slice(&quant.affines);
            }
        }
        outcomes.push(factor.outcome());
    }
    if let Some(quant) = decision.quant.as_mut().filter(|_| searches) {
        quant.affines = scales;
    }
    Ok(joined(&outcomes))
}

/// Rounds weights `[rows, n_cols]` by GPTQ to codes on a trellis. Returns `None` if plain codes have to be used; the weights are then
/// invalid.
///
/// Plain codes are used for channel groups, and if more than a hundredth of the rows needs larger steps. They are also used if no
/// path keeps the zeros of a mask.
pub(super) fn on_trellis(
    values: &mut [f32],
    n_cols: usize,
    (range, decision): (ScaleSearch, &Decision),
    groups: &[GroupInputs],
    factors: &mut Vec<KnownFactor>,
    check_stop: &(impl Fn() -> Result<()> + Sync),
) -> Result<Option<FactorOutcome>> {
    let (Some(quant), [GroupInputs { stats, .. }]) = (&decision.quant, groups) else { return Ok(None) };
    // A row with weights beyond the largest code has a multiple of the step.
    let is_larger = |affine: &&Affine| matches!(range, ScaleSearch::Step(Some(size)) if affine.scale > 1.5 * size);
    let n_larger = quant.affines.iter().filter(is_larger).count();
    if !can_have_trellis(n_cols) || n_larger * 100 > quant.affines.len() {
        return Ok(None);
    }
    let factor = factor_of(factors, stats, ColumnOrder::ByActivation, check_stop)?;
    let has_paths = gptq_on_trellis(values, n_cols, quant, decision.mask.as_ref(), factor, check_stop)?;
    Ok(has_paths.then(|| factor.outcome()))
}

/// Doubles all scales: the step of plain codes that take about as many bits as codes on a trellis.
pub(super) fn double(decision: &mut Decision) {
    let affines = decision.quant.iter_mut().flat_map(|quant| &mut quant.affines);
    affines.for_each(|affine| affine.scale *= 2.0);
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

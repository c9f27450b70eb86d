//! Computes the lengths of weight norms after directions were pruned.

use crate::plan::{Plan, TensorPlan};
use crate::replaced::{NewVector, ReplacedVectors};
use crate::weight_norm::{NormSums, WeightNorm};
use briquette_core::{Error, Result};
use briquette_formats::TensorSource;
use std::collections::BTreeMap;

/// Multiplies the lengths of weight norms by `‖m∘v‖/‖v‖`, from sums over encoded directions, each with the index of its tensor.
///
/// # Errors
/// Refused: a direction became 0, so the layer would divide by 0.
pub(super) fn with_lengths<'a>(
    plan: &Plan,
    source: &'a dyn TensorSource,
    parts: impl Iterator<Item = (usize, NormSums)>,
) -> Result<ReplacedVectors<'a>> {
    let mut sums: BTreeMap<usize, NormSums> = BTreeMap::new();
    parts.for_each(|(index, part)| sums.entry(index).or_default().merge(part));
    let mut lengths = BTreeMap::new();
    for (index, sums) in sums {
        let (tensor, norm) = (&plan.tensors[index], &plan.norms[&index]);
        check_nonzero(tensor, norm, &sums)?;
        if tensor.prune.is_some() {
            let n_cols = plan.tensors[norm.lengths].rows().n_cols;
            lengths.insert(norm.lengths, NewVector { values: rescaled(norm, &sums), n_cols });
        }
    }
    Ok(ReplacedVectors::new(source, lengths))
}

/// Refuses a direction that became 0.
fn check_nonzero(tensor: &TensorPlan, norm: &WeightNorm, sums: &NormSums) -> Result<()> {
    let mut norms = norm.measured.squares.iter().zip(&sums.is_nonzero);
    let Some(place) = norms.position(|(&square, &is_nonzero)| square > 0.0 && !is_nonzero) else { return Ok(()) };
    let message = format!(
        "all weights of norm {place} round to 0, and weight norm divides by it; use more bits or a scale per row, or exclude the tensor"
    );
    Err(Error::refused(message).at(tensor.culprit()))
}

/// Returns `g·‖m∘v‖/‖v‖`, or `g` if `v` is 0.
fn rescaled(norm: &WeightNorm, sums: &NormSums) -> Vec<f32> {
    let squares = norm.measured.squares.iter().zip(&sums.squares);
    let of = |(&length, (&square, &kept)): (&f32, (&f64, &f64))| match square > 0.0 && kept != square {
        true => (f64::from(length) * (kept / square).sqrt()) as f32,
        false => length,
    };
    norm.measured.lengths.iter().zip(squares).map(of).collect()
}

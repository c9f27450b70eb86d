//! Weights and decisions of some rows of a tensor.

use briquette_core::{Decision, Error, Grouping, Mask, QuantParams, Result, rows};
use briquette_writer::TensorPlan;
use std::ops::Range;

/// The number of weights that are converted at a time.
const CHECKED: usize = 1 << 16;

/// Returns whether all values are finite.
pub(super) fn is_finite(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_finite())
}

/// Returns whether updated weights are finite in their storage type.
pub(super) fn can_store(tensor: &TensorPlan, values: &[f32]) -> bool {
    let dtype = tensor.stored_dtype();
    if tensor.quant.is_some() || !dtype.is_weight() {
        return true;
    }
    let (mut bytes, mut stored) = (Vec::new(), Vec::new());
    values.chunks(CHECKED).all(|values| {
        bytes.resize(values.len() * dtype.n_bits() / 8, 0);
        stored.resize(values.len(), 0.0);
        rows::from_f32(values, dtype, &mut bytes);
        rows::to_f32(&bytes, dtype, &mut stored);
        is_finite(&stored)
    })
}

/// Returns the part of a mask for some rows.
pub(super) fn rows_of_mask(mask: &Mask, rows: &Range<usize>) -> Mask {
    let (_, n_cols) = mask.dim();
    let row_bytes = Mask::row_bytes(n_cols);
    Mask::from_bits(rows.len(), n_cols, mask.as_bits()[rows.start * row_bytes..rows.end * row_bytes].to_vec())
}

/// Returns the part of a decision for some rows of `n_cols`.
pub(crate) fn rows_of_decision(decision: &Decision, rows: &Range<usize>, n_cols: usize) -> Decision {
    let part = |quant: &QuantParams| {
        // A single scale belongs to every row.
        let last = if quant.grouping == Grouping::Tensor { rows.start + 1 } else { rows.end };
        let affines = (rows.start..last).flat_map(|row| quant.row(row).to_vec()).collect();
        QuantParams::new(quant.grid, quant.grouping, n_cols, affines).with_columns(quant.columns.clone())
    };
    let mask = decision.mask.as_ref().map(|mask| rows_of_mask(mask, rows));
    Decision { mask, quant: decision.quant.as_ref().map(part) }
}

/// Refuses NaN and infinity.
pub(super) fn check_finite(tensor: &TensorPlan, values: &[f32]) -> Result<()> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let (row, col) = (at / tensor.rows().n_cols, at % tensor.rows().n_cols);
    let message = format!("found {} at row {row}, column {col}; fix the checkpoint, or exclude the tensor", values[at]);
    Err(Error::refused(message).at(tensor.culprit()))
}

/// Returns the mask of a tensor that was pruned before: more than one weight in 64 is 0. These weights stay 0.
pub(super) fn zeros_of(values: &[f32], n_cols: usize) -> Option<Mask> {
    let n_zeros = values.iter().filter(|value| **value == 0.0).count();
    let mask = || Mask::from_fn(values.len() / n_cols, n_cols, |row, col| values[row * n_cols + col] != 0.0);
    (n_zeros * 64 > values.len()).then(mask)
}

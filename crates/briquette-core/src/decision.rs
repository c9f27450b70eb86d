//! The decision of a method for a tensor, and its effect on the weights.

use crate::{Mask, QuantParams, bits, simd};

/// The decision for a tensor: its mask and its quantization parameters, each optional.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    /// Weights to keep; all others become exactly 0.0.
    pub mask: Option<Mask>,
    /// The grid and scales for rounding the kept weights.
    pub quant: Option<QuantParams>,
}

/// Returns the fake-quantized weights: `v = (clamp(round(w·m / scale) + zero) - zero) * scale`, in f32.
///
/// Scales of columns divide the weights first, and multiply the result.
///
/// This is the reference definition of a decision. `weights` is `[n_rows, n_cols]`, row-major. Without a grid,
/// the bits of kept weights are unchanged. A dropped weight is +0.0.
///
/// # Panics
/// If the lengths disagree.
pub fn fake_quantize(weights: &[f32], n_rows: usize, n_cols: usize, decision: &Decision) -> Vec<f32> {
    assert_eq!(weights.len(), n_rows * n_cols, "whole rows of weights");
    let mut values = weights.to_vec();
    if n_cols == 0 {
        return values;
    }
    for (row, values) in values.chunks_mut(n_cols).enumerate() {
        if let Some(mask) = &decision.mask {
            drop_masked(values, mask.row(row));
        }
        let Some(quant) = &decision.quant else { continue };
        quant.columns.iter().for_each(|columns| columns.divide(values));
        fake_quantize_row(values, quant, row);
        quant.columns.iter().for_each(|columns| columns.multiply(values));
    }
    values
}

fn drop_masked(values: &mut [f32], keep: &[u8]) {
    for (col, value) in values.iter_mut().enumerate() {
        if !bits::get(keep, col) {
            *value = 0.0;
        }
    }
}

fn fake_quantize_row(values: &mut [f32], quant: &QuantParams, row: usize) {
    let mut codes = vec![0; quant.group_size()];
    for (group, &affine) in values.chunks_mut(quant.group_size().max(1)).zip(quant.row(row)) {
        simd::quantize(group, affine, quant.grid, &mut codes);
        simd::dequantize(&codes, affine, group);
    }
}

//! Fits the scales of rows to their codes.

use super::groups::GroupInputs;
use super::update::DAMPING;
use briquette_core::encoded::ScaleType;
use briquette_core::{Affine, Grouping, QuantParams};
use briquette_methods::quant::QuantSpec;
use briquette_methods::reconstruct::row_factors;

/// Returns whether each row has scales of its own that can take any value.
pub(super) fn has_free_scales(spec: &QuantSpec) -> bool {
    spec.grouping != Grouping::Tensor && spec.scale != ScaleType::Log8
}

/// Multiplies the scales of each row by the factor with the least output error; see [`row_factors`]. Codes stay.
///
/// `values` are rounded, `original` are the weights before pruning and rounding. New scales are rounded to the type `stored`.
pub(super) fn fit_rows(
    original: &[f32],
    values: &mut [f32],
    n_cols: usize,
    (quant, stored): (&mut QuantParams, ScaleType),
    groups: &[GroupInputs],
) {
    let (grid, size) = (quant.grid, quant.group_size());
    let per_row = n_cols.div_ceil(size);
    for GroupInputs { rows, stats } in groups {
        let Some(gram) = &stats.gram else { continue };
        let cols = rows.start * n_cols..rows.end * n_cols;
        let factors = row_factors([&original[cols.clone()], &values[cols.clone()]], n_cols, gram, DAMPING);
        let affines = &mut quant.affines[rows.start * per_row..rows.end * per_row];
        let own = values[cols].chunks_mut(n_cols).zip(affines.chunks_mut(per_row));
        for ((values, affines), factor) in own.zip(factors) {
            for (values, affine) in values.chunks_mut(size).zip(affines) {
                let before = *affine;
                *affine = stored.round(Affine { scale: (f64::from(before.scale) * factor) as f32, ..before });
                values.iter_mut().for_each(|value| *value = affine.dequantize(before.quantize(*value, grid)));
            }
        }
    }
}

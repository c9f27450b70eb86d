//! The scales of kept weights.

use briquette_core::{Grouping, Mask, QuantParams, bits, simd};
use briquette_quant::{QuantSpec, Range, quantize, range};

/// Scale and zero point for every group, from kept weights only.
///
/// Zeros do not move the ranges from the largest magnitude or to the smallest and largest; the others would be drawn to
/// them, so there the dropped weights are left out.
///
/// # Panics
/// If the group size does not divide the row, or a weight is not finite.
pub(crate) fn fit(values: &[f32], n_cols: usize, mask: Option<&Mask>, spec: &QuantSpec) -> QuantParams {
    let Some(mask) = mask.filter(|_| n_cols > 0) else { return quantize(values, n_cols, spec) };
    if matches!(spec.range, Range::AbsMax | Range::MinMax) {
        let mut kept = vec![0.0; values.len()];
        for (row, (values, kept)) in values.chunks(n_cols).zip(kept.chunks_mut(n_cols)).enumerate() {
            simd::copy_kept(values, mask.row(row), kept);
        }
        return quantize(&kept, n_cols, spec);
    }
    let choose = |group: &[f32]| spec.scale.round(range::choose(spec.range, group, spec.grid));
    let size = n_cols / spec.grouping.per_row(n_cols).expect("the group size divides the row").max(1);
    let kept_of = |row: usize, cols: std::ops::Range<usize>| {
        let keep = mask.row(row);
        cols.filter(move |&col| bits::get(keep, col)).map(move |col| values[row * n_cols + col])
    };
    let n_rows = values.len() / n_cols;
    let affines = match spec.grouping {
        Grouping::Tensor => {
            vec![choose(&(0..n_rows).flat_map(|row| kept_of(row, 0..n_cols)).collect::<Vec<_>>())]
        }
        Grouping::Row | Grouping::Group(_) => {
            let groups = (0..n_rows).flat_map(|row| (0..n_cols).step_by(size).map(move |start| (row, start)));
            groups.map(|(row, start)| choose(&kept_of(row, start..start + size).collect::<Vec<_>>())).collect()
        }
    };
    QuantParams::new(spec.grid, spec.grouping, n_cols, affines)
}

//! Converts between a parameter's own order and rows: the one place of this crate that transposes a `Linear`.

use briquette_core::rows::transpose_bytes;
use briquette_core::{Affine, Grouping, OutputAxis, Rows};

/// Turns elements in a parameter's own order into rows of outputs.
pub(crate) fn to_rows<T: bytemuck::Pod>(own: Vec<T>, rows: &Rows) -> Vec<T> {
    turn(own, rows.axis, rows.n_rows, rows.n_cols)
}

/// Turns rows of outputs into a parameter's own order.
pub(crate) fn to_own<T: bytemuck::Pod>(by_row: Vec<T>, rows: &Rows) -> Vec<T> {
    turn(by_row, rows.axis, rows.n_cols, rows.n_rows)
}

fn turn<T: bytemuck::Pod>(from: Vec<T>, axis: OutputAxis, n_rows: usize, n_cols: usize) -> Vec<T> {
    if axis != OutputAxis::Last {
        return from;
    }
    let mut to = vec![T::zeroed(); from.len()];
    let (source, target) = (bytemuck::cast_slice(&from), bytemuck::cast_slice_mut(&mut to));
    transpose_bytes(source, target, n_rows, n_cols, size_of::<T>());
    to
}

/// Three extents of a parameter over which the scales of groups broadcast, and the extents of the scales.
///
/// `[out, groups, size]` and `[out, groups, 1]`; where outputs come last, `[groups, size, out]` and `[groups, 1, out]`.
pub(crate) fn group_dims(rows: &Rows, grouping: Grouping) -> ([usize; 3], [usize; 3]) {
    let n_groups = grouping.per_row(rows.n_cols).unwrap_or(1).max(1);
    let size = rows.n_cols / n_groups;
    match (grouping, rows.axis) {
        (Grouping::Tensor, _) => ([1, 1, rows.n_elements()], [1, 1, 1]),
        (_, OutputAxis::First | OutputAxis::Stacked) => ([rows.n_rows, n_groups, size], [rows.n_rows, n_groups, 1]),
        (_, OutputAxis::Last) => ([n_groups, size, rows.n_rows], [n_groups, 1, rows.n_rows]),
    }
}

/// Scales and zero points that are given row by row, in the order of [`group_dims`].
pub(crate) fn affines_to_own(affines: &[Affine], rows: &Rows) -> (Vec<f32>, Vec<f32>) {
    let scales = affines.iter().map(|affine| affine.scale).collect();
    let zeros = affines.iter().map(|affine| f32::from(affine.zero)).collect();
    let by_group = scale_rows(affines.len(), rows);
    (to_own(scales, &by_group), to_own(zeros, &by_group))
}

/// The inverse of [`affines_to_own`].
pub(crate) fn affines_to_rows(scales: Vec<f32>, zeros: Vec<f32>, rows: &Rows) -> Vec<Affine> {
    let by_group = scale_rows(scales.len(), rows);
    let pairs = to_rows(scales, &by_group).into_iter().zip(to_rows(zeros, &by_group));
    pairs.map(|(scale, zero)| Affine { scale, zero: zero as i8 }).collect()
}

/// The matrix of scales, `[rows, groups]`; a single scale needs no transposing.
fn scale_rows(n_scales: usize, rows: &Rows) -> Rows {
    if n_scales <= 1 {
        return Rows { n_rows: n_scales, n_cols: 1, axis: OutputAxis::First };
    }
    Rows { n_rows: rows.n_rows, n_cols: n_scales / rows.n_rows.max(1), axis: rows.axis }
}

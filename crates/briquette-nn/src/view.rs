//! Converts between a parameter's own order and rows: the one place of this crate that transposes a `Linear`.

use briquette_core::{Affine, Grouping, OutputAxis, Rows};

/// Turns elements in a parameter's own order into rows of outputs.
pub(crate) fn to_rows<T: bytemuck::Pod>(own: Vec<T>, rows: &Rows) -> Vec<T> {
    turn(own, rows, Rows::turn)
}

/// Turns rows of outputs into a parameter's own order.
pub(crate) fn to_own<T: bytemuck::Pod>(by_row: Vec<T>, rows: &Rows) -> Vec<T> {
    turn(by_row, rows, Rows::turn_back)
}

fn turn<T: bytemuck::Pod>(from: Vec<T>, rows: &Rows, turn: impl Fn(&Rows, &[u8], &mut [u8], usize)) -> Vec<T> {
    if !rows.axis.is_turned() {
        return from;
    }
    let mut to = vec![T::zeroed(); from.len()];
    turn(rows, bytemuck::cast_slice(&from), bytemuck::cast_slice_mut(&mut to), size_of::<T>());
    to
}

/// Three extents of a parameter over which the scales of groups broadcast, and the extents of the scales.
///
/// `[out, groups, size]` and `[out, groups, 1]`; where outputs come last, `[groups, size, out]` and `[groups, 1, out]`; where they come
/// second, and there are no groups, `[in, out, run]` and `[1, out, 1]`.
pub(crate) fn group_dims(rows: &Rows, grouping: Grouping) -> ([usize; 3], [usize; 3]) {
    let n_groups = grouping.per_row(rows.n_cols).unwrap_or(1).max(1);
    let size = rows.n_cols / n_groups;
    match (grouping, rows.axis) {
        (Grouping::Tensor, _) => ([1, 1, rows.n_elements()], [1, 1, 1]),
        (_, OutputAxis::Second) => ([rows.n_cols / rows.run.max(1), rows.n_rows, rows.run], [1, rows.n_rows, 1]),
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
        return Rows::plain(n_scales, 1);
    }
    let axis = if rows.axis == OutputAxis::Last { rows.axis } else { OutputAxis::First };
    Rows { axis, ..Rows::plain(rows.n_rows, n_scales / rows.n_rows.max(1)) }
}

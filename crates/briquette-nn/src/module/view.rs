//! Converts between a parameter's own order and rows of outputs, including the transposition of `Linear`
//! weights.

use briquette_core::{Affine, Grouping, Mask, OutputAxis, Rows};
use rayon::prelude::*;

/// Number of elements that a thread copies per task.
const PART: usize = 1 << 16;
/// Number of rows that a thread transposes per task.
const TILE: usize = 64;
/// Number of elements of a row that are transposed together: one cache line of output.
const LINES: usize = 16;

/// Converts elements from a parameter's own order to rows of outputs.
///
/// # Panics
/// If the number of elements differs from `rows`.
pub fn to_rows<T: bytemuck::Pod>(own: Vec<T>, rows: &Rows) -> Vec<T> {
    turn(own, rows, Rows::turn)
}

/// Converts rows of outputs to a parameter's own order.
///
/// # Panics
/// If the number of elements differs from `rows`.
pub fn to_own<T: bytemuck::Pod>(by_row: Vec<T>, rows: &Rows) -> Vec<T> {
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

/// Returns the index among rows of outputs for an index in a parameter's own order.
///
/// # Panics
/// If outputs are not the first axis and `rows` has none.
pub fn place_of(own: usize, rows: &Rows) -> usize {
    let &Rows { n_rows, n_cols, axis, run } = rows;
    if !axis.is_turned() {
        return own;
    }
    let (line, row) = (own / run / n_rows, own / run % n_rows);
    row * n_cols + line * run + own % run
}

/// Inverts [`place_of`].
///
/// # Panics
/// If outputs are not the first axis and `rows` has no inputs.
pub fn own_of(place: usize, rows: &Rows) -> usize {
    let &Rows { n_rows, n_cols, axis, run } = rows;
    if !axis.is_turned() {
        return place;
    }
    let (row, col) = (place / n_cols, place % n_cols);
    (col / run * n_rows + row) * run + col % run
}

/// Fills `by_row` with a parameter as rows of outputs, on all threads. Weights with a 1 in `dropped` become 0;
/// an empty `dropped` drops none.
///
/// # Panics
/// If the lengths differ.
pub fn fill_rows(own: &[f32], dropped: &[u8], rows: &Rows, by_row: &mut Vec<f32>) {
    assert_eq!(own.len(), rows.n_elements(), "whole rows");
    by_row.resize(own.len(), 0.0);
    let &Rows { n_rows, n_cols, axis, .. } = rows;
    if axis == OutputAxis::Second {
        let mut kept = vec![0.0; own.len()];
        copy_kept(own, dropped, &mut kept);
        return rows.turn(bytemuck::cast_slice(&kept), bytemuck::cast_slice_mut(by_row), size_of::<f32>());
    }
    if axis != OutputAxis::Last || n_cols == 0 {
        let parts = by_row.par_chunks_mut(PART).zip(own.par_chunks(PART)).enumerate();
        return parts.for_each(|(i, (to, from))| copy_kept(from, dropped.get(i * PART..).unwrap_or_default(), to));
    }
    by_row.par_chunks_mut(TILE * n_cols).enumerate().for_each(|(tile, to)| {
        let (first, n) = (tile * TILE, to.len() / n_cols);
        // Lines of a matrix are often a power of two apart and evict each other from the cache, so they are
        // gathered first.
        let mut lines = [[0.0_f32; TILE]; LINES];
        for start in (0..n_cols).step_by(LINES) {
            let n_lines = LINES.min(n_cols - start);
            for (i, line) in lines[..n_lines].iter_mut().enumerate() {
                let at = (start + i) * n_rows + first;
                copy_kept(&own[at..at + n], dropped.get(at..).unwrap_or_default(), &mut line[..n]);
            }
            for (row, to) in to.chunks_exact_mut(n_cols).enumerate() {
                to[start..start + n_lines].iter_mut().zip(&lines).for_each(|(to, line)| *to = line[row]);
            }
        }
    });
}

/// Copies elements; those with a 1 in `dropped` become 0.
fn copy_kept(from: &[f32], dropped: &[u8], to: &mut [f32]) {
    if dropped.is_empty() {
        return to.copy_from_slice(from);
    }
    for ((to, from), &dropped) in to.iter_mut().zip(from).zip(dropped) {
        *to = f32::from_bits(from.to_bits() & u32::from(dropped).wrapping_sub(1));
    }
}

/// Returns the mask for bytes in the parameter's own order, 1 for dropped weights; `None` if no weight is
/// dropped.
///
/// # Panics
/// If the number of bytes differs from the weights of `rows`.
pub fn mask_of(dropped: &[u8], rows: &Rows) -> Option<Mask> {
    if !dropped.par_chunks(1 << 16).any(|dropped| dropped.contains(&1)) {
        return None;
    }
    if rows.axis == OutputAxis::Second {
        return mask_of(&to_rows(dropped.to_vec(), rows), &Rows::plain(rows.n_rows, rows.n_cols));
    }
    let &Rows { n_rows, n_cols, axis, .. } = rows;
    let width = Mask::row_bytes(n_cols);
    let mut bits = vec![0_u8; n_rows * width];
    bits.par_chunks_mut(TILE * width).enumerate().for_each(|(tile, bits)| {
        let first = tile * TILE;
        if axis != OutputAxis::Last {
            let rows = dropped[first * n_cols..].chunks_exact(n_cols);
            return bits.chunks_exact_mut(width).zip(rows).for_each(|(bits, dropped)| pack_kept(dropped, bits));
        }
        let n = bits.len() / width;
        let mut line = [[0_u8; 8]; TILE];
        for (byte, start) in (0..n_cols).step_by(8).enumerate() {
            let cols = 8.min(n_cols - start);
            for (col, from) in dropped[start * n_rows..].chunks(n_rows).take(cols).enumerate() {
                line.iter_mut().zip(&from[first..first + n]).for_each(|(line, &dropped)| line[col] = dropped);
            }
            for (row, line) in line[..n].iter().enumerate() {
                pack_kept(&line[..cols], &mut bits[row * width + byte..][..1]);
            }
        }
    });
    Some(Mask::from_bits(n_rows, n_cols, bits))
}

/// Sets a bit for each byte that is 0.
fn pack_kept(dropped: &[u8], bits: &mut [u8]) {
    for (bits, dropped) in bits.iter_mut().zip(dropped.chunks(8)) {
        *bits = dropped.iter().enumerate().fold(0, |bits, (i, &dropped)| bits | u8::from(dropped == 0) << i);
    }
}

/// Returns the dropped weights of a mask in the parameter's own order, computed on all threads.
///
/// # Panics
/// If the size of the mask differs from `rows`.
pub fn dropped_of(mask: &Mask, rows: &Rows) -> Vec<bool> {
    if rows.axis == OutputAxis::Second {
        let by_row = dropped_of(mask, &Rows::plain(rows.n_rows, rows.n_cols)).into_iter().map(u8::from);
        return to_own(by_row.collect(), rows).into_iter().map(|dropped| dropped != 0).collect();
    }
    let &Rows { n_rows, n_cols, axis, .. } = rows;
    let mut dropped = vec![false; rows.n_elements()];
    if axis != OutputAxis::Last {
        let lines = dropped.par_chunks_mut(n_cols.max(1)).enumerate();
        lines.for_each(|(row, dropped)| unpack_dropped(mask.row(row), dropped));
        return dropped;
    }
    let width = Mask::row_bytes(n_cols);
    dropped.par_chunks_mut(8 * n_rows.max(1)).enumerate().for_each(|(byte, lines)| {
        let column: Vec<u8> = mask.as_bits()[byte..].iter().step_by(width).copied().collect();
        for (col, line) in lines.chunks_exact_mut(n_rows).enumerate() {
            line.iter_mut().zip(&column).for_each(|(dropped, bits)| *dropped = bits >> col & 1 == 0);
        }
    });
    dropped
}

fn unpack_dropped(bits: &[u8], dropped: &mut [bool]) {
    for (dropped, bits) in dropped.chunks_mut(8).zip(bits) {
        dropped.iter_mut().enumerate().for_each(|(i, dropped)| *dropped = bits >> i & 1 == 0);
    }
}

/// Returns the number of scales of a grouping over these rows.
pub fn n_scales(rows: &Rows, grouping: Grouping) -> usize {
    match grouping {
        Grouping::Tensor => 1,
        _ => rows.n_rows * grouping.per_row(rows.n_cols).unwrap_or(0),
    }
}

/// Returns three extents of a parameter over which group scales broadcast, and the extents of the scales.
///
/// - outputs first: `[out, groups, size]` and `[out, groups, 1]`
/// - outputs last: `[groups, size, out]` and `[groups, 1, out]`
/// - outputs second, without groups: `[in, out, run]` and `[1, out, 1]`
pub fn group_dims(rows: &Rows, grouping: Grouping) -> ([usize; 3], [usize; 3]) {
    let n_groups = grouping.per_row(rows.n_cols).unwrap_or(1).max(1);
    let size = rows.n_cols / n_groups;
    match (grouping, rows.axis) {
        (Grouping::Tensor, _) => ([1, 1, rows.n_elements()], [1, 1, 1]),
        (_, OutputAxis::Second) => ([rows.n_cols / rows.run.max(1), rows.n_rows, rows.run], [1, rows.n_rows, 1]),
        (_, OutputAxis::First | OutputAxis::Stacked) => ([rows.n_rows, n_groups, size], [rows.n_rows, n_groups, 1]),
        (_, OutputAxis::Last) => ([n_groups, size, rows.n_rows], [n_groups, 1, rows.n_rows]),
    }
}

/// Converts scales and zero points from row order to the order of [`group_dims`].
///
/// # Panics
/// If the scales do not fill whole rows.
pub fn affines_to_own(affines: &[Affine], rows: &Rows) -> (Vec<f32>, Vec<f32>) {
    let scales = affines.iter().map(|affine| affine.scale).collect();
    let zeros = affines.iter().map(|affine| f32::from(affine.zero)).collect();
    let by_group = scale_rows(affines.len(), rows);
    (to_own(scales, &by_group), to_own(zeros, &by_group))
}

/// Inverts [`affines_to_own`].
///
/// # Panics
/// If the scales do not fill whole rows, or the numbers of scales and zero points differ.
pub fn affines_to_rows(scales: Vec<f32>, zeros: Vec<f32>, rows: &Rows) -> Vec<Affine> {
    let by_group = scale_rows(scales.len(), rows);
    let pairs = to_rows(scales, &by_group).into_iter().zip(to_rows(zeros, &by_group));
    pairs.map(|(scale, zero)| Affine { scale, zero: zero as i8 }).collect()
}

/// Returns the matrix of scales, `[rows, groups]`; a single scale is never transposed.
fn scale_rows(n_scales: usize, rows: &Rows) -> Rows {
    if n_scales <= 1 {
        return Rows::plain(n_scales, 1);
    }
    let axis = if rows.axis == OutputAxis::Last { rows.axis } else { OutputAxis::First };
    Rows { axis, ..Rows::plain(rows.n_rows, n_scales / rows.n_rows.max(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_weights_convert_to_rows_and_back() {
        for (n_rows, n_cols) in [(1, 1), (3, 7), (8, 8), (65, 33), (130, 200), (0, 5), (5, 0)] {
            for axis in [OutputAxis::First, OutputAxis::Last, OutputAxis::Second, OutputAxis::Stacked] {
                let rows = Rows { axis, ..Rows::plain(n_rows, n_cols) };
                let own: Vec<f32> = (0..n_rows * n_cols).map(|i| i as f32).collect();
                let mut by_row = vec![9.0; 3];
                fill_rows(&own, &[], &rows, &mut by_row);
                assert_eq!(by_row, to_rows(own.clone(), &rows), "{rows:?}");
                let dropped: Vec<u8> = (0..n_rows * n_cols).map(|i| u8::from(i * 7919 % 31 < 9)).collect();
                fill_rows(&own, &dropped, &rows, &mut by_row);
                let kept = own.iter().zip(&dropped).map(|(own, dropped)| own * f32::from(1 - dropped)).collect();
                assert_eq!(by_row, to_rows(kept, &rows), "{rows:?}");
                let mask = mask_of(&dropped, &rows);
                assert_eq!(mask.is_some(), !dropped.is_empty(), "{rows:?}");
                let Some(mask) = mask else { continue };
                let expected = to_rows(dropped.clone(), &rows);
                let keeps = |i: usize| mask.keeps(i / n_cols, i % n_cols);
                assert!((0..expected.len()).all(|i| keeps(i) == (expected[i] == 0)), "{rows:?}");
                assert!(dropped_of(&mask, &rows).into_iter().map(u8::from).eq(dropped), "{rows:?}");
                assert_eq!(mask_of(&vec![0; n_rows * n_cols], &rows), None);
            }
        }
    }
}

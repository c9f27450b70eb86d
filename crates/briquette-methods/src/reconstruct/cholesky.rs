//! The blocked Cholesky factorization of a symmetric matrix, and inverses computed from it.

use crate::reconstruct::product::{StridedMatrix, add_product};
use rayon::prelude::*;
use std::ops::Range;

/// The number of columns per block.
const BLOCK: usize = 128;

/// The number of rows per thread.
const ROWS: usize = 128;

/// The number of columns that are solved for together.
pub(crate) const COLUMNS: usize = 64;

/// Computes `A = L·Lᵀ` in place of the lower triangle of `[n, n]`, and returns whether `A` is positive
/// definite.
///
/// Elements above the diagonal are neither read nor written. If `A` is not positive definite, the contents are
/// invalid. A pivot must exceed the rounding error of its diagonal element, `n·ε·A_kk`. `check_stop` is called
/// for every block of columns.
///
/// Source: Golub and Van Loan, "Matrix Computations", 4.2.9 (by blocks, right-looking).
///
/// # Errors
/// The first error of `check_stop`.
pub(crate) fn cholesky<E>(matrix: &mut [f64], n: usize, check_stop: &impl Fn() -> Result<(), E>) -> Result<bool, E> {
    let least = n as f64 * f64::EPSILON;
    let floors: Vec<f64> = (0..n).map(|k| least * matrix[k * n + k]).collect();
    for first in (0..n).step_by(BLOCK) {
        check_stop()?;
        let block = first..n.min(first + BLOCK);
        let (above, below) = matrix.split_at_mut(block.end * n);
        if !diagonal_block(&mut above[block.start * n..], n, block.clone(), &floors) {
            return Ok(false);
        }
        let panel = solve_panel(&above[block.start * n..], below, n, block.clone());
        let width = block.len();
        below.par_chunks_mut(ROWS * n).enumerate().for_each(|(chunk, rows)| {
            let (from, n_rows) = (chunk * ROWS, rows.len() / n);
            let of_rows = StridedMatrix::new(&panel[from * width..], width, n_rows, width);
            let of_columns = StridedMatrix::new(&panel, width, from + n_rows, width).transposed();
            add_product(&mut rows[block.end..], n, -1.0, of_rows, of_columns);
        });
    }
    Ok(true)
}

/// Factorizes the diagonal block in `rows`, and returns whether all its pivots exceed their floors.
fn diagonal_block(rows: &mut [f64], n: usize, block: Range<usize>, floors: &[f64]) -> bool {
    for i in 0..block.len() {
        let (before, row) = rows.split_at_mut(i * n);
        let row = &mut row[block.start..block.start + i + 1];
        for j in 0..i {
            let other = &before[j * n + block.start..j * n + block.start + j + 1];
            let sum: f64 = row[..j].iter().zip(other).map(|(a, b)| a * b).sum();
            row[j] = (row[j] - sum) / other[j];
        }
        let pivot = row[i] - row[..i].iter().map(|value| value * value).sum::<f64>();
        // This also refuses infinite and NaN pivots.
        if !(pivot > floors[block.start + i] && pivot.is_finite()) {
            return false;
        }
        row[i] = pivot.sqrt();
    }
    true
}

/// Computes `L21 = A21·L11⁻ᵀ` for the rows below a diagonal block, in place, and returns a contiguous copy,
/// `[rows, block]`.
fn solve_panel(diagonal: &[f64], below: &mut [f64], n: usize, block: Range<usize>) -> Vec<f64> {
    let width = block.len();
    // The columns of L11 as rows, so that a solved element is subtracted from all later ones in one pass.
    let columns: Vec<f64> = (0..width * width).map(|at| diagonal[at % width * n + block.start + at / width]).collect();
    let mut panel = vec![0.0; below.len() / n * width];
    let rows = below.par_chunks_mut(n).zip(panel.par_chunks_mut(width)).with_min_len(8);
    rows.for_each(|(row, solved)| {
        let row = &mut row[block.clone()];
        for j in 0..width {
            let column = &columns[j * width..(j + 1) * width];
            row[j] /= column[j];
            let value = row[j];
            row[j + 1..].iter_mut().zip(&column[j + 1..]).for_each(|(left, factor)| *left -= value * factor);
        }
        solved.copy_from_slice(row);
    });
    panel
}

/// Returns up to [`COLUMNS`] rows of `L⁻¹`, as columns. Elements beyond the last row are 0 and omitted.
pub(crate) fn inverse_rows(lower: &[f64], n: usize, rows: Range<usize>) -> Vec<[f64; COLUMNS]> {
    let mut columns = vec![[0.0; COLUMNS]; rows.end];
    rows.enumerate().for_each(|(i, row)| columns[row][i] = 1.0);
    backward(lower, n, &mut columns);
    columns
}

/// Returns `(L·Lᵀ)⁻¹` of a factor from [`cholesky`], `[n, n]`.
pub(crate) fn inverse(lower: &[f64], n: usize) -> Vec<f32> {
    inverse_as(lower, n, |value| value as f32)
}

/// Returns [`inverse`] with its elements converted.
pub(crate) fn inverse_as<T: Copy + Default + Send>(
    lower: &[f64],
    n: usize,
    convert: impl Fn(f64) -> T + Sync,
) -> Vec<T> {
    let mut inverse = vec![T::default(); n * n];
    inverse.par_chunks_mut(COLUMNS * n.max(1)).enumerate().for_each(|(chunk, rows)| {
        let first = chunk * COLUMNS;
        let mut columns = vec![[0.0; COLUMNS]; n];
        (0..rows.len() / n).for_each(|i| columns[first + i][i] = 1.0);
        forward(lower, n, &mut columns, first);
        backward(lower, n, &mut columns);
        // The inverse is symmetric: these columns are its rows.
        for (i, row) in rows.chunks_mut(n).enumerate() {
            row.iter_mut().zip(&columns).for_each(|(value, column)| *value = convert(column[i]));
        }
    });
    inverse
}

/// Solves `L·Lᵀ·X = B` and returns `Xᵀ`, `[m, n]`; `B` is `[n, m]`, and `L` a factor from [`cholesky`].
pub(crate) fn solve(lower: &[f64], n: usize, values: &[f64], m: usize) -> Vec<f64> {
    let mut solved = vec![0.0; m * n];
    solved.par_chunks_mut(COLUMNS * n.max(1)).enumerate().for_each(|(chunk, rows)| {
        let (first, n_rows) = (chunk * COLUMNS, rows.len() / n);
        let mut columns = vec![[0.0; COLUMNS]; n];
        for (column, row) in columns.iter_mut().zip(values.chunks_exact(m)) {
            column[..n_rows].copy_from_slice(&row[first..first + n_rows]);
        }
        solve_columns(lower, n, &mut columns);
        for (i, row) in rows.chunks_mut(n).enumerate() {
            row.iter_mut().zip(&columns).for_each(|(value, column)| *value = column[i]);
        }
    });
    solved
}

/// Solves `L·Lᵀ·X = B` in place of `B`, `[n, COLUMNS]`.
pub(crate) fn solve_columns(lower: &[f64], n: usize, values: &mut [[f64; COLUMNS]]) {
    forward(lower, n, values, 0);
    backward(lower, n, values);
}

/// Solves `L·X = B` in place of `B`, `[n, COLUMNS]`, whose rows before `first` are 0.
fn forward(lower: &[f64], n: usize, values: &mut [[f64; COLUMNS]], first: usize) {
    let from = first / BLOCK * BLOCK;
    for start in (from..n).step_by(BLOCK) {
        let (before, rest) = values.split_at_mut(start);
        let here = &mut rest[..BLOCK.min(n - start)];
        let known = StridedMatrix::new(before[from..].as_flattened(), COLUMNS, start - from, COLUMNS);
        let factor = StridedMatrix::new(&lower[start * n + from..], n, here.len(), start - from);
        add_product(here.as_flattened_mut(), COLUMNS, -1.0, factor, known);
        for i in 0..here.len() {
            let row = &lower[(start + i) * n + start..];
            let (solved, rest) = here.split_at_mut(i);
            solved.iter().zip(row).for_each(|(other, &factor)| subtract(&mut rest[0], other, factor));
            rest[0].iter_mut().for_each(|value| *value /= row[i]);
        }
    }
}

/// Solves `Lᵀ·X = B` in place of `B`, `[m, COLUMNS]`: the first `m` of `n` rows, with zeros after them.
fn backward(lower: &[f64], n: usize, values: &mut [[f64; COLUMNS]]) {
    let m = values.len();
    for start in (0..m).step_by(BLOCK).collect::<Vec<_>>().into_iter().rev() {
        let end = m.min(start + BLOCK);
        let (before, after) = values.split_at_mut(end);
        let here = &mut before[start..];
        if end < m {
            let known = StridedMatrix::new(after.as_flattened(), COLUMNS, m - end, COLUMNS);
            let factor = StridedMatrix::new(&lower[end * n + start..], n, m - end, end - start).transposed();
            add_product(here.as_flattened_mut(), COLUMNS, -1.0, factor, known);
        }
        for i in (0..end - start).rev() {
            let row = &lower[(start + i) * n + start..];
            let (rest, solved) = here.split_at_mut(i);
            solved[0].iter_mut().for_each(|value| *value /= row[i]);
            rest.iter_mut().zip(row).for_each(|(other, &factor)| subtract(other, &solved[0], factor));
        }
    }
}

/// Computes `values -= factor · other`.
fn subtract(values: &mut [f64; COLUMNS], other: &[f64; COLUMNS], factor: f64) {
    values.iter_mut().zip(other).for_each(|(value, other)| *value -= factor * other);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn check_stop() -> Result<(), Infallible> {
        Ok(())
    }

    /// Returns `X·Xᵀ + I` with pseudorandom `X`.
    fn positive(n: usize) -> Vec<f64> {
        let x: Vec<f64> = (0..n * n).map(|i| ((i * 7919 + i * i % 613) % 1009) as f64 / 500.0 - 1.0).collect();
        let dot = |i: usize, j: usize| (0..n).map(|k| x[i * n + k] * x[j * n + k]).sum::<f64>();
        (0..n * n).map(|at| dot(at / n, at % n) + f64::from(at / n == at % n)).collect()
    }

    #[test]
    fn factors_and_inverses_reproduce_the_matrix() {
        for n in [0, 1, 2, 127, 128, 129, 300] {
            let matrix = positive(n);
            let mut lower = matrix.clone();
            assert_eq!(cholesky(&mut lower, n, &check_stop), Ok(true));
            let inverse = inverse(&lower, n);
            for i in 0..n {
                for j in 0..n {
                    let (a, b) = (&lower[i * n..], &lower[j * n..]);
                    let product: f64 = (0..=i.min(j)).map(|k| a[k] * b[k]).sum();
                    assert!((product - matrix[i * n + j]).abs() < 1e-10 * n as f64, "{n}: {i}, {j}");
                    let unit: f64 = (0..n).map(|k| matrix[i * n + k] * f64::from(inverse[k * n + j])).sum();
                    assert!((unit - f64::from(i == j)).abs() < 2e-4, "{n}: {i}, {j}: {unit}");
                }
            }
        }
    }

    #[test]
    fn an_indefinite_matrix_has_no_factor() {
        let n = 200;
        for (at, value) in [(0, 0.0), (150 * n + 150, -1.0), (199 * n + 199, f64::NAN), (3 * n + 3, f64::INFINITY)] {
            let mut matrix = positive(n);
            matrix[at] = value;
            assert_eq!(cholesky(&mut matrix, n, &check_stop), Ok(false), "{at} {value}");
        }
        let mut ones = vec![1.0; n * n];
        assert_eq!(cholesky(&mut ones, n, &check_stop), Ok(false), "of rank one");
    }

    #[test]
    fn an_error_of_check_stop_ends_the_work() {
        assert_eq!(cholesky(&mut positive(4), 4, &|| Err("stop")), Err("stop"));
    }
}

//! Matrix products on slices by the `gemm` crate: the only module with `unsafe`.

use gemm::{Parallelism, gemm};

/// The number of terms per call: `gemm` splits longer sums by the CPU's cache sizes, which would change the
/// last bits.
const MAX_TERMS: usize = 512;

/// A number type that `gemm` multiplies.
pub(crate) trait Real: Copy + 'static {
    const ONE: Self;
}

impl Real for f32 {
    const ONE: Self = 1.0;
}

impl Real for f64 {
    const ONE: Self = 1.0;
}

/// A matrix whose rows are `stride` elements apart, optionally transposed.
#[derive(Clone, Copy)]
pub(crate) struct StridedMatrix<'a, T> {
    values: &'a [T],
    stride: usize,
    n_rows: usize,
    n_cols: usize,
    is_transposed: bool,
}

impl<'a, T> StridedMatrix<'a, T> {
    pub(crate) fn new(values: &'a [T], stride: usize, n_rows: usize, n_cols: usize) -> Self {
        assert!(fits(values.len(), stride, n_rows, n_cols), "[{n_rows}, {n_cols}] by {stride} in {}", values.len());
        Self { values, stride, n_rows, n_cols, is_transposed: false }
    }

    /// Returns the transposed matrix.
    pub(crate) fn transposed(self) -> Self {
        Self { n_rows: self.n_cols, n_cols: self.n_rows, is_transposed: !self.is_transposed, ..self }
    }

    /// Returns the distance in elements between columns, and between rows.
    fn strides(&self) -> (isize, isize) {
        if self.is_transposed { (self.stride as isize, 1) } else { (1, self.stride as isize) }
    }
}

/// Returns whether rows of `n_cols` that are `stride` elements apart do not overlap and fit in `len` elements.
fn fits(len: usize, stride: usize, n_rows: usize, n_cols: usize) -> bool {
    if n_rows == 0 || n_cols == 0 {
        return true;
    }
    let end = (n_rows - 1).checked_mul(stride).and_then(|start| start.checked_add(n_cols));
    (n_rows == 1 || n_cols <= stride) && end.is_some_and(|end| end <= len)
}

/// Computes `out += times · a · b` on the calling thread.
///
/// `out` is `[rows of a, columns of b]` with rows `stride` elements apart.
///
/// # Panics
/// If the shapes disagree.
#[allow(unsafe_code)]
pub(crate) fn add_product<T: Real>(out: &mut [T], stride: usize, times: T, a: StridedMatrix<T>, b: StridedMatrix<T>) {
    let (m, n, k) = (a.n_rows, b.n_cols, a.n_cols);
    assert_eq!(b.n_rows, k, "rows of the right side");
    assert!(fits(out.len(), stride, m, n), "[{m}, {n}] by {stride} in {}", out.len());
    if m == 0 || n == 0 {
        return;
    }
    let ((a_cs, a_rs), (b_cs, b_rs), none) = (a.strides(), b.strides(), Parallelism::None);
    for first in (0..k).step_by(MAX_TERMS) {
        let (a, b) = (&a.values[first * a_cs as usize..], &b.values[first * b_rs as usize..]);
        let (k, out, a, b) = (MAX_TERMS.min(k - first), out.as_mut_ptr(), a.as_ptr(), b.as_ptr());
        let stride = stride as isize;
        // SAFETY: `fits` has checked the extents of all three slices. Each call covers a part of the `k`
        // columns of `a` and rows of `b`. `out` is borrowed exclusively.
        unsafe {
            gemm(m, n, k, out, 1, stride, true, a, a_cs, a_rs, b, b_cs, b_rs, T::ONE, times, false, false, false, none);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_any_shape_are_added_to_the_output() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 2), (1, 70, 130), (65, 1, 9), (70, 64, 600), (2, 3, 0), (0, 3, 2)] {
            for (turns_a, turns_b) in [(false, false), (true, false), (false, true), (true, true)] {
                let number = |i: usize| ((i * 37) % 23) as f64 - 11.0;
                let matrix = |n_rows: usize, n_cols: usize, turns: bool| {
                    let (stride, n_lines) = if turns { (n_rows + 3, n_cols) } else { (n_cols + 3, n_rows) };
                    (stride, (0..stride * n_lines).map(number).collect::<Vec<_>>())
                };
                let ((a_stride, a), (b_stride, b)) = (matrix(m, k, turns_a), matrix(k, n, turns_b));
                let view = |values, stride, n_rows, n_cols, turns| {
                    if turns {
                        StridedMatrix::new(values, stride, n_cols, n_rows).transposed()
                    } else {
                        StridedMatrix::new(values, stride, n_rows, n_cols)
                    }
                };
                let at = |values: &[f64], stride: usize, row: usize, col: usize, turns: bool| {
                    if turns { values[col * stride + row] } else { values[row * stride + col] }
                };
                let mut out = vec![1.0; m * (n + 2)];
                add_product(
                    &mut out,
                    n + 2,
                    -2.0,
                    view(&a[..], a_stride, m, k, turns_a),
                    view(&b[..], b_stride, k, n, turns_b),
                );
                for (row, out) in out.chunks(n + 2).enumerate() {
                    for (col, &found) in out.iter().enumerate() {
                        let terms =
                            (0..k).map(|i| at(&a, a_stride, row, i, turns_a) * at(&b, b_stride, i, col, turns_b));
                        let expected = if col < n { 1.0 - 2.0 * terms.sum::<f64>() } else { 1.0 };
                        assert_eq!(found, expected, "[{m}, {n}, {k}] at {row}, {col}");
                    }
                }
            }
        }
    }
}

//! Products of f32 matrices with the `gemm` crate.

use gemm::{Parallelism, gemm};

/// A matrix in a slice, by rows or by columns.
#[derive(Clone, Copy)]
pub(crate) struct MatrixView<'a> {
    values: &'a [f32],
    n_rows: usize,
    n_cols: usize,
    is_transposed: bool,
}

impl<'a> MatrixView<'a> {
    /// Returns a row-major matrix.
    pub(crate) fn new(values: &'a [f32], n_rows: usize, n_cols: usize) -> Self {
        assert_eq!(values.len(), n_rows * n_cols, "{} values for a matrix of [{n_rows}, {n_cols}]", values.len());
        Self { values, n_rows, n_cols, is_transposed: false }
    }

    /// Returns the transposed matrix over the same values.
    pub(crate) fn transposed(self) -> Self {
        Self { n_rows: self.n_cols, n_cols: self.n_rows, is_transposed: !self.is_transposed, ..self }
    }

    /// Returns the elements between two columns, and between two rows.
    fn strides(&self) -> (isize, isize) {
        if self.is_transposed { (self.n_rows as isize, 1) } else { (1, self.n_cols as isize) }
    }
}

/// Computes `out = a · b`, or `out += a · b` if `adds`, in the calling thread.
///
/// `out` is `[rows of a, columns of b]`.
pub(crate) fn multiply(a: MatrixView, b: MatrixView, adds: bool, out: &mut [f32]) {
    let (m, n, k) = (a.n_rows, b.n_cols, a.n_cols);
    assert_eq!((b.n_rows, out.len()), (k, m * n), "rows of the right side, and length of the product");
    let ((a_cs, a_rs), (b_cs, b_rs)) = (a.strides(), b.strides());
    let (a, b, one) = (a.values.as_ptr(), b.values.as_ptr(), f32::from(adds));
    let out = out.as_mut_ptr();
    // SAFETY: the strides stay inside the slices, whose lengths were checked by `MatrixView::new` and the
    // assertion above, and `out` is borrowed exclusively.
    unsafe {
        gemm(
            m,
            n,
            k,
            out,
            1,
            n as isize,
            adds,
            a,
            a_cs,
            a_rs,
            b,
            b_cs,
            b_rs,
            one,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_and_a_sum_of_products_in_every_order() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.0, -1.0, 2.0, 1.0, 1.0]);
        let mut out = [9.0; 4];
        multiply(MatrixView::new(&a, 2, 3), MatrixView::new(&b, 3, 2), false, &mut out);
        assert_eq!(out, [2.0, 7.0, 5.0, 16.0]);
        multiply(MatrixView::new(&a, 3, 2).transposed(), MatrixView::new(&b, 2, 3).transposed(), true, &mut out);
        assert_eq!(out, [-2.0, 17.0, 1.0, 30.0]);
        multiply(MatrixView::new(&[], 2, 0), MatrixView::new(&[], 0, 2), false, &mut out);
        assert_eq!(out, [0.0; 4]);
    }
}

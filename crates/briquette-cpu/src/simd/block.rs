//! A rectangle of a matrix, to which threads write disjoint parts.
#![allow(unsafe_code)]

use std::marker::PhantomData;

/// A rectangle of a row-major f32 matrix.
pub(crate) struct OutputBlock<'a> {
    first: *mut f32,
    stride: usize,
    n_rows: usize,
    n_cols: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: a block is a unique borrow of its elements, like `&mut [f32]`.
unsafe impl Send for OutputBlock<'_> {}

impl<'a> OutputBlock<'a> {
    /// Returns the whole matrix.
    pub(crate) fn new(values: &'a mut [f32], n_rows: usize, n_cols: usize) -> Self {
        assert_eq!(values.len(), n_rows * n_cols, "{} values for a matrix of [{n_rows}, {n_cols}]", values.len());
        Self { first: values.as_mut_ptr(), stride: n_cols, n_rows, n_cols, matrix: PhantomData }
    }

    pub(crate) const fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Splits into rows `..at` and `at..`.
    pub(crate) fn split_rows(self, at: usize) -> (Self, Self) {
        assert!(at <= self.n_rows);
        // At the end there may be no row to point to. Wrapping arithmetic is defined there, and nothing is
        // read.
        let second = self.first.wrapping_add(at * self.stride);
        (Self { n_rows: at, ..self }, Self { first: second, n_rows: self.n_rows - at, ..self })
    }

    /// Splits into columns `..at` and `at..`.
    pub(crate) fn split_cols(self, at: usize) -> (Self, Self) {
        assert!(at <= self.n_cols);
        let second = self.first.wrapping_add(at);
        (Self { n_cols: at, ..self }, Self { first: second, n_cols: self.n_cols - at, ..self })
    }

    /// Returns a pointer to the start of a row.
    pub(crate) fn row_start(&mut self, row: usize) -> *mut f32 {
        assert!(row < self.n_rows);
        self.first.wrapping_add(row * self.stride)
    }

    /// Returns one row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.n_rows);
        if self.n_cols == 0 {
            return &mut [];
        }
        // SAFETY: the row is inside the matrix given to `new`. Blocks split from it are disjoint, so with `&mut
        // self` nothing else refers to these elements.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.stride), self.n_cols) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_blocks_write_disjoint_elements() {
        let mut values = vec![0.0; 12];
        let (mut top, bottom) = OutputBlock::new(&mut values, 3, 4).split_rows(1);
        let (mut left, mut right) = bottom.split_cols(3);
        top.row(0).fill(1.0);
        left.row(1).fill(2.0);
        right.row(0).fill(3.0);
        assert_eq!(values, [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 3.0, 2.0, 2.0, 2.0, 0.0]);
    }
}

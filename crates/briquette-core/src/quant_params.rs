//! The result of quantization: a grid, a grouping and the scales.

use crate::{Affine, Grid, Grouping, log_scale};
use std::sync::Arc;

/// Quantization parameters of some rows: a grid, a grouping and one [`Affine`] per group.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantParams {
    /// The grid of the codes.
    pub grid: Grid,
    /// Which weights share a scale.
    pub grouping: Grouping,
    /// One scale and zero point per group, row by row; a single one with `Grouping::Tensor`.
    pub affines: Vec<Affine>,
    /// A scale for each column too, if there are any. Weights are divided by them before they are rounded.
    pub columns: Option<ColumnScales>,
    group_size: usize,
    per_row: usize,
}

impl QuantParams {
    /// Returns parameters for rows of `n_cols`.
    ///
    /// # Panics
    /// If the group size does not divide `n_cols`, or `affines` do not make up whole rows.
    pub fn new(grid: Grid, grouping: Grouping, n_cols: usize, affines: Vec<Affine>) -> Self {
        let per_row = grouping.per_row(n_cols).expect("the group size divides the row");
        assert!(grouping != Grouping::Tensor || affines.len() == 1, "one scale for the tensor");
        assert!(per_row == 0 || affines.len().is_multiple_of(per_row), "whole rows of scales");
        Self { grid, grouping, affines, columns: None, group_size: n_cols.checked_div(per_row).unwrap_or(0), per_row }
    }

    /// Adds scales of columns.
    #[must_use]
    pub fn with_columns(self, columns: Option<ColumnScales>) -> Self {
        Self { columns, ..self }
    }

    /// Returns the number of columns that share a scale within a row.
    pub fn group_size(&self) -> usize {
        self.group_size
    }

    /// Returns the scales of one row, in the order of its groups.
    pub fn row(&self, row: usize) -> &[Affine] {
        match self.grouping {
            Grouping::Tensor => &self.affines,
            Grouping::Row | Grouping::Group(_) => &self.affines[row * self.per_row..(row + 1) * self.per_row],
        }
    }
}

/// A scale for each column of a weight: powers of `2^(1/8)`, one byte each in a file.
///
/// A weight is `code · row scale · column scale`. A layer multiplies its inputs by the column scales, and then uses the codes without
/// them. Columns with large inputs get small scales, so that inputs can be rounded with one step for all columns.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnScales {
    bytes: Arc<[u8]>,
    values: Arc<[f32]>,
}

impl ColumnScales {
    /// Returns the scales of these bytes: see [`log_scale::of_byte`].
    pub fn of_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        let values = bytes.iter().map(|&byte| log_scale::of_byte(byte)).collect();
        Self { bytes, values }
    }

    /// Returns the scales nearest to positive numbers.
    pub fn nearest(scales: impl IntoIterator<Item = f64>) -> Self {
        Self::of_bytes(scales.into_iter().map(|scale| log_scale::nearest_byte(scale as f32)).collect::<Vec<u8>>())
    }

    /// Returns the stored bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the scale of each column.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Divides rows of weights by the scales of their columns.
    ///
    /// # Panics
    /// If the rows are not whole.
    pub fn divide(&self, weights: &mut [f32]) {
        self.for_each_row(weights, |weight, column| *weight /= column);
    }

    /// Multiplies rows of weights by the scales of their columns.
    ///
    /// # Panics
    /// If the rows are not whole.
    pub fn multiply(&self, weights: &mut [f32]) {
        self.for_each_row(weights, |weight, column| *weight *= column);
    }

    fn for_each_row(&self, weights: &mut [f32], change: impl Fn(&mut f32, f32)) {
        let n_cols = self.values.len().max(1);
        assert!(weights.len().is_multiple_of(n_cols), "whole rows of {n_cols} columns");
        for row in weights.chunks_exact_mut(n_cols) {
            row.iter_mut().zip(&*self.values).for_each(|(weight, &column)| change(weight, column));
        }
    }
}

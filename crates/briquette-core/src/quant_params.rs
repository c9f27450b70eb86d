//! The result of quantization: a grid, a grouping and the scales.

use crate::{Affine, Grid, Grouping};

/// Quantization parameters of some rows: a grid, a grouping and one [`Affine`] per group.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantParams {
    /// The grid of the codes.
    pub grid: Grid,
    /// Which weights share a scale.
    pub grouping: Grouping,
    /// One scale and zero point per group, row by row; a single one with `Grouping::Tensor`.
    pub affines: Vec<Affine>,
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
        Self { grid, grouping, affines, group_size: n_cols.checked_div(per_row).unwrap_or(0), per_row }
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

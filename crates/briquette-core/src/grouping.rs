//! Which weights share a scale.

use serde::{Deserialize, Serialize};

/// Which weights share one scale (and zero point).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grouping {
    /// The whole tensor.
    Tensor,
    /// Each row, that is, each output channel.
    Row,
    /// Each run of this many inputs in a row. The size divides the length of the row.
    Group(usize),
}

impl Grouping {
    /// Returns the groups per row of `n_cols`, or `None` if the group size does not divide `n_cols`.
    ///
    /// `Tensor` counts as one group per row, although all rows share its scale.
    pub fn per_row(self, n_cols: usize) -> Option<usize> {
        match self {
            Self::Tensor | Self::Row => Some(1),
            Self::Group(0) => None,
            Self::Group(size) => n_cols.is_multiple_of(size).then_some(n_cols / size),
        }
    }

    /// Returns the shape `[rows, groups]` of the scales of an `n_rows` by `n_cols` tensor.
    ///
    /// # Panics
    /// If the group size does not divide `n_cols`.
    pub fn scale_shape(self, n_rows: usize, n_cols: usize) -> [usize; 2] {
        match self {
            Self::Tensor => [1, 1],
            Self::Row => [n_rows, 1],
            Self::Group(_) => [n_rows, self.per_row(n_cols).expect("the group size divides the row")],
        }
    }
}

impl std::fmt::Display for Grouping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tensor => f.write_str("per tensor"),
            Self::Row => f.write_str("per channel"),
            Self::Group(size) => write!(f, "groups of {size}"),
        }
    }
}

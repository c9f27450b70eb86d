//! A tensor's extents.

use serde::{Deserialize, Serialize};

/// The extents of a tensor, outermost first; empty for a scalar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(pub Vec<usize>);

impl Shape {
    /// Product of the extents, `None` on overflow. A scalar has one element.
    pub fn n_elements(&self) -> Option<usize> {
        self.0.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent))
    }

    /// Number of extents.
    pub fn rank(&self) -> usize {
        self.0.len()
    }
}

impl From<&[usize]> for Shape {
    fn from(extents: &[usize]) -> Self {
        Self(extents.to_vec())
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let extents: Vec<String> = self.0.iter().map(usize::to_string).collect();
        write!(f, "[{}]", extents.join(", "))
    }
}

//! What a student's outputs are held against.

use crate::{Outputs, Projections};
use briquette_core::{Error, Result};
use burn::tensor::{Int, Tensor};

/// What a student is held against.
#[derive(Debug, Clone, Copy, Default)]
pub struct Targets<'a> {
    /// The teacher's outputs.
    pub teacher: Option<&'a Outputs>,
    /// Labels, one a row of scores.
    pub labels: Option<&'a Tensor<1, Int>>,
    /// What brings the student's states to the teacher's width, where widths differ.
    pub projections: Option<&'a Projections>,
}

impl<'a> Targets<'a> {
    /// The teacher's outputs, for a loss that cannot do without.
    ///
    /// # Errors
    /// Config where there is no teacher.
    pub fn need_teacher(&self) -> Result<&'a Outputs> {
        self.teacher.ok_or_else(|| Error::config("there is no teacher; name one"))
    }

    /// Labels, `[n]`, for a loss that cannot do without.
    ///
    /// # Errors
    /// Config where the data has none.
    pub fn need_labels(&self) -> Result<&'a Tensor<1, Int>> {
        self.labels.ok_or_else(|| Error::config("the data has no labels; remove it or name labels"))
    }
}

//! The targets of a student's outputs.

use crate::{Outputs, Projections};
use briquette_core::{Error, Result};
use burn::tensor::{Int, Tensor};

/// The targets of a student.
#[derive(Debug, Clone, Copy, Default)]
pub struct Targets<'a> {
    /// The teacher's outputs.
    pub teacher: Option<&'a Outputs>,
    /// The labels, one per row of logits.
    pub labels: Option<&'a Tensor<1, Int>>,
    /// Projections of the student's states to the teacher's width, if the widths differ.
    pub projections: Option<&'a Projections>,
}

impl<'a> Targets<'a> {
    /// Returns the teacher's outputs, for a loss that requires them.
    ///
    /// # Errors
    /// Config: there is no teacher.
    pub fn need_teacher(&self) -> Result<&'a Outputs> {
        self.teacher.ok_or_else(|| Error::config("there is no teacher; set one"))
    }

    /// Returns the labels, `[n]`, for a loss that requires them.
    ///
    /// # Errors
    /// Config: the data has no labels.
    pub fn need_labels(&self) -> Result<&'a Tensor<1, Int>> {
        self.labels.ok_or_else(|| Error::config("the data has no labels; remove the loss, or add labels"))
    }
}

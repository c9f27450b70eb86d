//! The trained model: a student and its companions.

use crate::Projections;
use crate::traced::Traced;
use burn::module::Module;

/// A student, with the projections and average that accompany its training.
#[derive(Module, Debug)]
pub struct Trained<N: Module> {
    /// The student, with its masks and grids attached.
    pub student: N,
    pub(crate) projections: Projections,
    /// The student's average over time, if it is the teacher. It is on the plain device, without masks and
    /// grids attached.
    pub average: Option<N>,
}

impl<N: Traced> Trained<N> {
    /// Returns the student, with its masks and grids attached.
    pub fn into_student(self) -> N {
        self.student
    }
}

/// Projections as a field: optimizers see their parameters under paths that begin with `projections.`.
#[derive(Module, Debug)]
pub(crate) struct TrainedProjections {
    pub(crate) projections: Projections,
}

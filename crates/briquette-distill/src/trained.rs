//! What is trained: a student, and what goes along with it.

use crate::Projections;
use crate::traced::Traced;
use burn::module::Module;

/// A student, and what is trained along with it and thrown away at the end.
#[derive(Module, Debug)]
pub struct Trained<N: Module> {
    /// The student, with what is attached to it.
    pub student: N,
    pub(crate) projections: Projections,
    /// The student's average over time, on the plain device and without what is attached to it, where it is the teacher.
    pub average: Option<N>,
}

impl<N: Traced> Trained<N> {
    /// The student with what is attached to it.
    pub fn into_student(self) -> N {
        self.student
    }
}

/// The projections as a field: optimizers name their parameters by paths that begin with `projections.`.
#[derive(Module, Debug)]
pub(crate) struct TrainedProjections {
    pub(crate) projections: Projections,
}

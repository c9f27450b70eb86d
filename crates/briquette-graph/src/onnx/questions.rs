//! Numbers that a model computes and its graph depends on, such as the number of iterations of a loop.

use crate::graph::ValueId;

/// The answers so far, and the next question.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// `None`: nothing is asked.
    answers: Option<std::vec::IntoIter<f64>>,
    /// The first number without an answer.
    pub(super) open: Option<ValueId>,
}

impl Questions {
    pub(super) fn new(answers: Option<Vec<f64>>) -> Self {
        Self { answers: answers.map(Vec::into_iter), open: None }
    }

    /// Whether the numbers are not to be known: the graph only shows layers.
    pub(super) fn only_plans(&self) -> bool {
        self.answers.is_none()
    }

    /// Returns the answer for a value with one element; `None` if it has to be computed first.
    pub(super) fn ask(&mut self, value: ValueId) -> Option<f64> {
        let answers = self.answers.as_mut().filter(|_| self.open.is_none())?;
        let found = answers.next();
        self.open = found.is_none().then_some(value);
        found
    }
}

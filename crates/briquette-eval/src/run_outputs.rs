//! The outputs of running a model over data.

use crate::likelihood::Likelihood;
use crate::outputs::OutputRows;

/// The outputs of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunOutputs {
    /// The rows of an encoder or classifier.
    Rows(OutputRows),
    /// The likelihood of a decoder.
    Likelihood(Likelihood),
}

impl RunOutputs {
    /// Returns the number of items in the largest batch.
    pub fn batch_size(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.batch_size,
            Self::Likelihood(found) => found.batch_size,
        }
    }
}

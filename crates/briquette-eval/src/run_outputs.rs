//! What running a model over data leaves behind.

use crate::likelihood::Likelihood;
use crate::outputs::OutputRows;

/// What a run leaves behind.
#[derive(Debug, Clone, PartialEq)]
pub enum RunOutputs {
    /// Of encoders and classifiers.
    Rows(OutputRows),
    /// Of decoders.
    Likelihood(Likelihood),
}

impl RunOutputs {
    /// Items of the largest batch.
    pub fn batch_size(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.batch_size,
            Self::Likelihood(found) => found.batch_size,
        }
    }
}

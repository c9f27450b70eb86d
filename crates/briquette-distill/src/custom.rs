//! A loss of somebody's own, in a blend with ours.

use crate::{Outputs, Targets, Wanted};
use briquette_core::{Error, Result};
use burn::tensor::Tensor;
use std::fmt;
use std::sync::Arc;

/// What a custom loss computes.
type Compute = dyn Fn(&Outputs, Targets) -> Result<Tensor<1>> + Send + Sync;

/// A named function of a student's outputs and what they are held against. It is weighted, added up, written down and checked for
/// numbers that are not finite as the others are.
#[derive(Clone)]
pub struct Custom {
    name: Arc<str>,
    wanted: Wanted,
    compute: Arc<Compute>,
}

impl Custom {
    /// A loss with this name. `compute` returns one number, `[1]`, of the student's outputs on the autodiff device; what it takes of
    /// [`Targets`] is constant. An error of its own, such as that of [`Targets::need_teacher`], ends the training.
    pub fn new(name: &str, compute: impl Fn(&Outputs, Targets) -> Result<Tensor<1>> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), wanted: Wanted::default(), compute: Arc::new(compute) }
    }

    /// Asks networks for hidden states, attention or values, which they need not give otherwise.
    #[must_use]
    pub fn wanting(self, wanted: Wanted) -> Self {
        Self { wanted, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn wanted(&self) -> Wanted {
        self.wanted
    }

    pub(crate) fn compute(&self, student: &Outputs, targets: Targets) -> Result<Tensor<1>> {
        let loss = (self.compute)(student, targets)?;
        match loss.dims() {
            [1] => Ok(loss),
            [n] => Err(Error::config(format!("it gives {n} numbers, expected one; take their mean"))),
        }
    }
}

/// Two are the same where they are copies of one.
impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.wanted == other.wanted && Arc::ptr_eq(&self.compute, &other.compute)
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("name", &self.name).field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

//! Custom losses, which can be blended with the built-in ones.

use crate::{Outputs, Targets, Wanted};
use briquette_core::{Error, Result};
use burn::tensor::Tensor;
use std::fmt;
use std::sync::Arc;

/// The function of a custom loss.
type Compute = dyn Fn(&Outputs, Targets) -> Result<Tensor<1>> + Send + Sync;

/// A named function of a student's outputs and its targets.
///
/// It is weighted, summed, logged and checked for finite values like the built-in losses.
#[derive(Clone)]
pub struct Custom {
    name: Arc<str>,
    wanted: Wanted,
    compute: Arc<Compute>,
}

impl Custom {
    /// Creates a loss with this name.
    ///
    /// `compute` returns one number, `[1]`, from the student's outputs on the autodiff device; values from
    /// [`Targets`] are constant. An error of `compute`, such as that of [`Targets::need_teacher`], ends the
    /// training.
    pub fn new(name: &str, compute: impl Fn(&Outputs, Targets) -> Result<Tensor<1>> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), wanted: Wanted::default(), compute: Arc::new(compute) }
    }

    /// Requests hidden states, attention or values from networks, which are not computed otherwise.
    #[must_use]
    pub fn wanting(self, wanted: Wanted) -> Self {
        Self { wanted, ..self }
    }

    /// Returns the name.
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
            [n] => Err(Error::config(format!("it returned {n} numbers, expected one; return their mean"))),
        }
    }
}

/// Equal if one is a copy of the other.
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

//! One job, and why it may not be one.

use crate::recipe::Recipe;
use briquette_core::{Error, ErrorKind, Result};
use std::path::Path;

/// One thing to do, with nothing left to fill in.
#[derive(Debug, Clone)]
pub struct Job {
    /// What it is called.
    pub name: String,
    /// What to do, or why that cannot be told.
    pub recipe: Result<Recipe, Unsound>,
}

/// Why a job has no sound recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsound {
    kind: ErrorKind,
    message: String,
}

impl Job {
    /// What to do.
    ///
    /// # Errors
    /// Why that cannot be told.
    pub fn recipe(&self) -> Result<&Recipe> {
        self.recipe.as_ref().map_err(Unsound::to_error)
    }

    /// The directory it writes, where its recipe is sound.
    pub fn output(&self) -> Option<&Path> {
        self.recipe.as_ref().ok().map(|recipe| recipe.output.as_path())
    }
}

impl Unsound {
    pub(super) fn of(error: &Error) -> Self {
        Self { kind: error.kind, message: error.message.clone() }
    }

    fn to_error(&self) -> Error {
        Error { kind: self.kind, message: self.message.clone(), source: None }
    }
}

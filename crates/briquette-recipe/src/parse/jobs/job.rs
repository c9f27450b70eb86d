//! One job: its name, its output, and its recipe or why it has no sound one.

use super::multiplied::Multiplied;
use crate::parse::Recipe;
use briquette_core::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One thing to do, with nothing left to fill in.
#[derive(Debug, Clone)]
pub struct Job {
    /// What it is called.
    pub name: String,
    output: Option<PathBuf>,
    source: RecipeSource,
}

/// Where its recipe comes from.
#[derive(Debug, Clone)]
enum RecipeSource {
    /// It was written out, and is sound or not.
    Written(Result<Box<Recipe>, Unsound>),
    /// A matrix makes it, in this place: it takes little room until it is asked for.
    Point(Arc<Multiplied>, usize),
}

/// Why a job has no sound recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unsound {
    kind: ErrorKind,
    message: String,
}

impl Job {
    pub(super) fn written(name: String, recipe: Recipe) -> Self {
        Self { name, output: Some(recipe.output.clone()), source: RecipeSource::Written(Ok(Box::new(recipe))) }
    }

    pub(super) fn unsound(name: String, why: &Error) -> Self {
        let why = Unsound { kind: why.kind, message: why.message.clone() };
        Self { name, output: None, source: RecipeSource::Written(Err(why)) }
    }

    pub(super) fn point(name: String, output: PathBuf, of: Arc<Multiplied>, index: usize) -> Self {
        Self { name, output: Some(output), source: RecipeSource::Point(of, index) }
    }

    /// Its recipe, which is made now where a matrix stands for it.
    ///
    /// # Errors
    /// Why it has no sound recipe.
    pub fn recipe(&self) -> Result<Recipe> {
        match &self.source {
            RecipeSource::Written(Ok(recipe)) => Ok((**recipe).clone()),
            RecipeSource::Written(Err(why)) => {
                Err(Error { kind: why.kind, message: why.message.clone(), source: None, remedy: None })
            }
            RecipeSource::Point(of, index) => of.recipe(*index),
        }
    }

    /// The directory it writes, where that can be told.
    pub fn output(&self) -> Option<&Path> {
        self.output.as_deref()
    }
}

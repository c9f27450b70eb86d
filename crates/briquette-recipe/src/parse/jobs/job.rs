//! A job: its name, its output, and its recipe or the reason why the recipe is invalid.

use super::multiplied::Multiplied;
use crate::parse::Recipe;
use briquette_core::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A job with all values filled in.
#[derive(Debug, Clone)]
pub struct Job {
    /// The name of the job.
    pub name: String,
    output: Option<PathBuf>,
    source: RecipeSource,
}

/// The source of a job's recipe.
#[derive(Debug, Clone)]
enum RecipeSource {
    /// A recipe in the file, valid or not.
    Written(Result<Box<Recipe>, Unsound>),
    /// A point of a matrix; the recipe is built on demand.
    Point(Arc<Multiplied>, usize),
}

/// The reason why a recipe is invalid.
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

    /// Returns the recipe; builds it if the job is a point of a matrix.
    ///
    /// # Errors
    /// Config: the recipe is invalid.
    pub fn recipe(&self) -> Result<Recipe> {
        match &self.source {
            RecipeSource::Written(Ok(recipe)) => Ok((**recipe).clone()),
            RecipeSource::Written(Err(why)) => {
                Err(Error { kind: why.kind, message: why.message.clone(), source: None, remedy: None })
            }
            RecipeSource::Point(of, index) => of.recipe(*index),
        }
    }

    /// Returns the output directory, if it is known.
    pub fn output(&self) -> Option<&Path> {
        self.output.as_deref()
    }
}

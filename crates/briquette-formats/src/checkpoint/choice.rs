//! What was chosen for one model, said of several.

use super::{Checkpoint, InputFormat};
use crate::Choice;
use crate::choice::no_keys;
use briquette_core::Result;

impl Choice {
    /// This, or where it says nothing what the manifest of another model says.
    #[must_use]
    pub fn or_of(&self, other: &Checkpoint) -> Self {
        match other.manifest().filter(|_| self.key.is_none() && self.strip_prefix.is_none()) {
            Some(manifest) => Self::of_manifest(manifest),
            None => self.clone(),
        }
    }

    /// Refuses a key where none of these models is of a file that has any.
    ///
    /// # Errors
    /// Config, with the key.
    pub fn check_used(&self, models: &[&Checkpoint]) -> Result<()> {
        match &self.key {
            Some(key) if models.iter().all(|model| model.format() != InputFormat::PyTorch) => Err(no_keys(key)),
            _ => Ok(()),
        }
    }
}

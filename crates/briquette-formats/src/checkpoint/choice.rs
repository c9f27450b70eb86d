//! A choice that was made for one model, applied to several that are compared.

use super::{Checkpoint, InputFormat};
use crate::Choice;
use crate::choice::no_keys;
use briquette_core::Result;

impl Choice {
    /// This choice; where it is empty, the one that the manifest of `other` tells.
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

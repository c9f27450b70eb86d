//! One choice of entry and layout for several models that are compared.

use super::{Checkpoint, InputFormat};
use crate::choice::no_keys;
use crate::{Choice, WeightLayout, weight_layout};
use briquette_core::Result;

impl Choice {
    /// Returns this choice, completed from the manifest of `other`.
    ///
    /// Key and prefix belong together: they come from the manifest only if this choice has neither.
    #[must_use]
    pub fn or_of(&self, other: &Checkpoint) -> Self {
        let Some(manifest) = other.manifest() else { return self.clone() };
        let known = Self::of_manifest(manifest);
        let layout = self.layout.or(known.layout);
        match self.key.is_none() && self.strip_prefix.is_none() {
            true => Self { layout, ..known },
            false => Self { layout, ..self.clone() },
        }
    }

    /// Refuses a key if none of the models is a PyTorch file.
    ///
    /// # Errors
    /// Config: a key was chosen and no model has keys.
    pub fn check_used(&self, models: &[&Checkpoint]) -> Result<()> {
        match &self.key {
            Some(key) if models.iter().all(|model| model.format() != InputFormat::PyTorch) => Err(no_keys(key)),
            _ => Ok(()),
        }
    }
}

impl Checkpoint {
    /// Returns the chosen layout of linear layers, or the layout of the files or of their format.
    ///
    /// A choice for one of two models does not override the manifest of a directory written by Briquette.
    pub(super) fn layout_by(&self, choice: &Choice) -> Option<WeightLayout> {
        let stated = self.stated_layout();
        if choice.is_for_one_of_two && self.stored().is_some() {
            return stated;
        }
        let found = match choice.is_for_one_of_two {
            true => stated.or(choice.layout),
            false => choice.layout.or(stated),
        };
        let of_format = (self.format() == InputFormat::Burnpack).then_some(WeightLayout::Burn);
        found.or(of_format)
    }

    /// Returns the layout in the manifest, or in the header of a file written by Briquette.
    fn stated_layout(&self) -> Option<WeightLayout> {
        let name = match self.manifest() {
            Some(manifest) => manifest.recipe.pointer("/model/layout").and_then(serde_json::Value::as_str),
            None => self.header_string(weight_layout::KEY),
        };
        name.and_then(WeightLayout::of)
    }
}

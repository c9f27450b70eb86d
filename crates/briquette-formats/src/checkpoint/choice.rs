//! A choice that was made for one model, applied to several that are compared.

use super::{Checkpoint, InputFormat};
use crate::choice::no_keys;
use crate::{Choice, WeightLayout, weight_layout};
use briquette_core::Result;

impl Choice {
    /// This choice, completed by the one that `other` was made by.
    ///
    /// Key and prefix belong together: they are taken from the manifest of `other` only where both are absent here.
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

impl Checkpoint {
    /// The layout of the matrices of linear layers: the chosen one, else the one that the files state or that their format has.
    ///
    /// A choice for one of two models does not overrule a directory of ours, whose manifest is about that very directory.
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

    /// The layout that the manifest states, or the header of a file of ours.
    fn stated_layout(&self) -> Option<WeightLayout> {
        let name = match self.manifest() {
            Some(manifest) => manifest.recipe.pointer("/model/layout").and_then(serde_json::Value::as_str),
            None => self.said(weight_layout::KEY),
        };
        name.and_then(WeightLayout::of)
    }
}

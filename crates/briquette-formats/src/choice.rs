//! Which entry of a file is the model, if the file has several.

use crate::{ManifestHead, WeightLayout};
use briquette_core::Error;

/// Which entry of a file is the model, the names of its tensors, and the layout of its weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The key of the model in a PyTorch file, such as `model_ema`; `""` is the whole file.
    ///
    /// If absent, the entry is found by its contents.
    pub key: Option<String>,
    /// The prefix to remove from tensor names; `""` keeps the names.
    ///
    /// If absent, `module.` and `_orig_mod.` are removed if all names of a PyTorch file begin with them.
    pub strip_prefix: Option<String>,
    /// The layout of linear weights, if it differs from that of the files or of their format.
    pub layout: Option<WeightLayout>,
    /// Whether the choice may not apply: it was made for one of two models that are compared.
    pub is_for_one_of_two: bool,
}

impl Choice {
    /// Returns the choice that an output was made with, for opening the model it is compared with.
    ///
    /// A manifest written for a burn module has the layout of the module, which says nothing about the other
    /// model.
    pub fn of_manifest(manifest: &ManifestHead) -> Self {
        let text = |key: &str| manifest.recipe.pointer(key).and_then(|value| value.as_str()).map(str::to_string);
        let is_of_module = manifest.producer.starts_with("briquette-nn");
        let layout = text("/model/layout").filter(|_| !is_of_module).as_deref().and_then(WeightLayout::of);
        Self { key: text("/model/key"), strip_prefix: text("/model/strip_prefix"), layout, is_for_one_of_two: true }
    }
}

/// Returns the error for a key if the model is not a PyTorch file.
pub(crate) fn no_keys(key: &str) -> Error {
    Error::config(format!(
        "key: found {key:?}, but only PyTorch files have keys and this model is not one; remove the key"
    ))
}

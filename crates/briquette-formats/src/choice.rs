//! Which part of a file is the model, where it holds more than one thing.

use crate::{ManifestHead, WeightLayout};
use briquette_core::Error;

/// Which entry of a file is the model, the names of its tensors, and the layout of its weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The key of a PyTorch file under which the model is, such as `model_ema`; `""` for all there is. Where absent it is found.
    pub key: Option<String>,
    /// What names begin with and are to be without. Where absent, `module.` and `_orig_mod.` go where all names of a PyTorch file
    /// begin so; `""` keeps names as they are.
    pub strip_prefix: Option<String>,
    /// The layout of the matrices of linear layers, where it is not the one that the files state or that their format has.
    pub layout: Option<WeightLayout>,
    /// Whether it is no error where it does not fit a model: two models are compared, and it is meant for one of them.
    pub is_for_one_of_two: bool,
}

impl Choice {
    /// The choice that this output was made by, for opening the model that it is compared with.
    ///
    /// A manifest that a burn module wrote has the layout of the module, which says nothing about a model beside it.
    pub fn of_manifest(manifest: &ManifestHead) -> Self {
        let text = |key: &str| manifest.recipe.pointer(key).and_then(|value| value.as_str()).map(str::to_string);
        let is_of_module = manifest.producer.starts_with("briquette-nn");
        let layout = text("/model/layout").filter(|_| !is_of_module).as_deref().and_then(WeightLayout::of);
        Self { key: text("/model/key"), strip_prefix: text("/model/strip_prefix"), layout, is_for_one_of_two: true }
    }
}

/// The error of a key for a model that is of no such file.
pub(crate) fn no_keys(key: &str) -> Error {
    Error::config(format!("key: found {key:?} for a model that is no PyTorch file, which alone has keys; leave it out"))
}

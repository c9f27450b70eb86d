//! Which part of a file is the model, where it holds more than one thing.

use crate::ManifestHead;
use briquette_core::Error;

/// Which of the things in a file is the model, and how its tensors are called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The key of a PyTorch file under which the model is, such as `model_ema`; `""` for all there is. Where absent it is found.
    pub key: Option<String>,
    /// What names begin with and are to be without. Where absent, `module.` and `_orig_mod.` go where all names of a PyTorch file
    /// begin so; `""` keeps names as they are.
    pub strip_prefix: Option<String>,
    /// Whether it is no error where it does not fit a model: two models are compared, and it is meant for one of them.
    pub is_for_one_of_two: bool,
}

impl Choice {
    /// What was chosen when this output was made: what it is compared with is to be the same.
    pub fn of_manifest(manifest: &ManifestHead) -> Self {
        let text = |key: &str| manifest.recipe.pointer(key).and_then(|value| value.as_str()).map(str::to_string);
        Self { key: text("/model/key"), strip_prefix: text("/model/strip_prefix"), is_for_one_of_two: true }
    }
}

/// The error of a key for a model that is of no such file.
pub(crate) fn no_keys(key: &str) -> Error {
    Error::config(format!("key: found {key:?} for a model that is no PyTorch file, which alone has keys; leave it out"))
}

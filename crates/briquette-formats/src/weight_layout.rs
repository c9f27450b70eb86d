//! Which way the matrices of linear layers lie in a file.

use crate::{Checkpoint, InputFormat};

/// Which way the matrices of linear layers lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightLayout {
    /// `[out, in]`, as PyTorch has them.
    Torch,
    /// `[in, out]`, as burn has them.
    Burn,
}

/// The key of the free-form strings of a header that says it, in files of ours that others read too.
pub const KEY: &str = "briquette.layout";

impl WeightLayout {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Burn => "burn",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Torch, Self::Burn].into_iter().find(|layout| layout.name() == name)
    }
}

impl Checkpoint {
    /// Which way the matrices of linear layers lie, where the model says so: our manifest, or the header of a file of ours. A burnpack
    /// file that does not say lies as burn's own do.
    pub fn layout(&self) -> Option<WeightLayout> {
        let said = match self.manifest() {
            Some(manifest) => manifest.recipe.pointer("/model/layout").and_then(serde_json::Value::as_str),
            None => self.said(KEY),
        };
        let own = (self.format() == InputFormat::Burnpack).then_some(WeightLayout::Burn);
        said.and_then(WeightLayout::of).or(own)
    }
}

//! Which way the matrices of linear layers lie in a file.

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

    pub(crate) fn of(name: &str) -> Option<Self> {
        [Self::Torch, Self::Burn].into_iter().find(|layout| layout.name() == name)
    }
}

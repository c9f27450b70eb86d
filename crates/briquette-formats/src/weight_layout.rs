//! The axis order of the weights of linear layers in a file.

/// The axis order of the weights of linear layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightLayout {
    /// `[out, in]`, as in PyTorch.
    Torch,
    /// `[in, out]`, as in burn.
    Burn,
}

/// The header key for the layout, in files of Briquette that other programs read too.
pub const KEY: &str = "briquette.layout";

impl WeightLayout {
    /// Returns the name of the layout.
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

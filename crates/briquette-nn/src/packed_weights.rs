//! Codes laid out for the kernel that uses them.

use briquette_ops::compressed::{LinearWeights, QuantizedConv2d, Table, Weights};

/// The forms in which codes are held.
#[derive(Debug, Clone)]
pub(crate) enum PackedWeights {
    /// Codes of a linear layer, in the panels of its kernel.
    Linear(LinearWeights),
    /// Codes of a convolution, in the panels of its kernel.
    Conv(QuantizedConv2d),
    /// Rows that are looked up.
    Table(Table),
    /// Rows of weights whose arithmetic stays float: decoded for each use.
    Decoded(Table),
}

/// The names of the forms in which weights can be held, as reports show them.
pub(crate) const NAMES: [&str; 9] = [
    "int8",
    "sparse int8",
    "int4",
    "int8 table",
    "sparse int8 table",
    "int8 as floats",
    "sparse int8 as floats",
    "int8 weight-only",
    "sparse int8 weight-only",
];

impl PackedWeights {
    /// The index of its name.
    pub(crate) fn name(&self) -> usize {
        let name = match self {
            Self::Linear(weights) => weights.name(),
            Self::Conv(weights) => weights.name(),
            Self::Table(table) => NAMES[3 + usize::from(table.is_sparse())],
            Self::Decoded(table) => NAMES[5 + usize::from(table.is_sparse())],
        };
        NAMES.iter().position(|known| *known == name).unwrap_or(0)
    }

    /// Bytes that it takes in memory.
    pub(crate) fn n_bytes(&self) -> usize {
        match self {
            Self::Linear(weights) => weights.n_bytes(),
            Self::Conv(weights) => weights.n_bytes(),
            Self::Table(table) | Self::Decoded(table) => table.n_bytes(),
        }
    }

    /// The weights as rows of outputs.
    pub(crate) fn rows(&self) -> Weights {
        match self {
            Self::Linear(weights) => Weights::Linear(weights.clone()),
            Self::Conv(weights) => Weights::Conv(weights.clone()),
            Self::Table(table) | Self::Decoded(table) => Weights::Table(table.clone()),
        }
    }
}

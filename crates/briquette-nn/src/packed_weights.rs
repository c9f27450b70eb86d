//! Codes packed for the kernel that uses them.

use briquette_core::{ColumnScales, Error, Result};
use briquette_ops::compressed::{InputColumns, LinearWeights, QuantizedConv2d, Table, Weights};
use burn::tensor::Device;

/// The storage forms of codes.
#[derive(Debug, Clone)]
pub(crate) enum PackedWeights {
    /// A linear layer, in its kernel's panels.
    Linear(LinearWeights),
    /// A convolution, in its kernel's panels.
    Conv(QuantizedConv2d),
    /// A convolution whose activations are on fixed grids.
    Fixed(QuantizedConv2d),
    /// An embedding table with row lookup.
    Table(Table),
    /// Rows that are decoded for each use, for float arithmetic.
    Decoded(Table),
}

/// Names of the storage forms in reports.
pub(crate) const NAMES: [&str; 10] = [
    "int8",
    "sparse int8",
    "int4",
    "int8 table",
    "sparse int8 table",
    "int8 as floats",
    "sparse int8 as floats",
    "int8 weight-only",
    "sparse int8 weight-only",
    "int4 by int8",
];

impl PackedWeights {
    /// Returns the index of the name.
    pub(crate) fn name(&self) -> usize {
        let name = match self {
            Self::Linear(weights) => weights.name(),
            Self::Conv(weights) | Self::Fixed(weights) => weights.name(),
            Self::Table(table) => NAMES[3 + usize::from(table.is_sparse())],
            Self::Decoded(table) => NAMES[5 + usize::from(table.is_sparse())],
        };
        NAMES.iter().position(|known| *known == name).unwrap_or(0)
    }

    /// Returns the bytes in memory.
    pub(crate) fn n_bytes(&self) -> usize {
        match self {
            Self::Linear(weights) => weights.n_bytes(),
            Self::Conv(weights) | Self::Fixed(weights) => weights.n_bytes(),
            Self::Table(table) | Self::Decoded(table) => table.n_bytes(),
        }
    }

    /// Adds scales of columns to the weights of a linear layer.
    ///
    /// # Errors
    /// Bug: only linear layers multiply inputs by scales of columns; other weights with them become floats.
    pub(crate) fn with_columns(self, columns: Option<ColumnScales>, device: &Device) -> Result<Self> {
        match (self, columns) {
            (kept, None) => Ok(kept),
            (Self::Linear(weights), columns) => Ok(Self::Linear(weights.with_columns(columns, device))),
            _ => Err(Error::bug("scales of columns for weights that are not of a linear layer")),
        }
    }

    /// Returns the scales of columns, if there are any.
    pub(crate) fn columns(&self) -> Option<&ColumnScales> {
        match self {
            Self::Linear(weights) => weights.columns().map(InputColumns::scales),
            Self::Conv(_) | Self::Fixed(_) | Self::Table(_) | Self::Decoded(_) => None,
        }
    }

    /// Returns the weights as rows of outputs.
    pub(crate) fn rows(&self) -> Weights {
        match self {
            Self::Linear(weights) => Weights::Linear(weights.clone()),
            Self::Conv(weights) | Self::Fixed(weights) => Weights::Conv(weights.clone()),
            Self::Table(table) | Self::Decoded(table) => Weights::Table(table.clone()),
        }
    }
}

//! Quantized weights as cheap handles, packed for the device that uses them.

mod columns;
mod conv2d;
mod linear;
mod table;

use super::device::{is_cpu, runs_on};
use super::host_or_cuda::WeightInfo;
use briquette_core::ColumnScales;
use burn::tensor::Device;
pub use columns::InputColumns;
pub use conv2d::{Conv2dCall, QuantizedConv2d};
pub(super) use linear::HostLinear;
pub use linear::LinearWeights;
pub use table::Table;

/// Quantized weights of any kind, as rows of outputs.
#[derive(Debug, Clone)]
pub enum Weights {
    /// Weights of a linear layer.
    Linear(LinearWeights),
    /// Weights of a convolution.
    Conv(QuantizedConv2d),
    /// A lookup table.
    Table(Table),
}

impl Weights {
    /// Returns the number of rows and columns.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Linear(weights) => weights.placed.dims(),
            Self::Conv(weights) => weights.placed.dims(),
            Self::Table(table) => table.placed.dims(),
        }
    }

    /// Returns whether the weights are packed for this device.
    pub fn runs_on(&self, device: &Device) -> bool {
        runs_on(device) && is_cpu(device) == self.is_on_host()
    }

    const fn is_on_host(&self) -> bool {
        match self {
            Self::Linear(weights) => weights.placed.on_host().is_some(),
            Self::Conv(weights) => weights.placed.on_host().is_some(),
            Self::Table(table) => table.placed.on_host().is_some(),
        }
    }

    /// Returns the codes by rows, including zeros, and the scales of each row, if the weights are on the host.
    pub(super) fn host_codes(&self) -> Option<(Vec<i8>, Vec<f32>)> {
        match self {
            Self::Linear(weights) => weights.placed.on_host().map(HostLinear::codes),
            Self::Conv(weights) => weights.placed.on_host().map(|weights| weights.codes()),
            Self::Table(table) => table.placed.on_host().map(|table| table.codes()),
        }
    }

    /// Returns the scales of weights on a GPU, row by row.
    pub(super) fn cuda_scales(&self) -> Option<&[f32]> {
        match self {
            Self::Linear(weights) => weights.placed.cuda_scales(),
            Self::Conv(weights) => weights.placed.cuda_scales(),
            Self::Table(table) => table.placed.cuda_scales(),
        }
    }

    /// Returns the scales of columns, if there are any.
    pub fn columns(&self) -> Option<&ColumnScales> {
        self.input_columns().map(InputColumns::scales)
    }

    /// Returns the scales of columns that inputs are multiplied by, if there are any.
    pub(super) fn input_columns(&self) -> Option<&InputColumns> {
        match self {
            Self::Linear(weights) => weights.columns(),
            Self::Conv(_) | Self::Table(_) => None,
        }
    }

    /// Returns the codes times the scales of rows as f32, if they are on the host.
    pub(super) fn host_floats(&self) -> Option<Vec<f32>> {
        match self {
            Self::Linear(weights) => weights.placed.on_host().map(HostLinear::to_floats),
            Self::Conv(weights) => weights.placed.on_host().map(|weights| weights.to_floats()),
            Self::Table(table) => table.placed.on_host().map(|table| table.to_floats()),
        }
    }
}

//! Handles of weights, cheap to clone, laid out for the device they are used on.

mod conv2d;
mod linear;
mod table;

use super::device::{is_cpu, runs_on};
use super::host_or_cuda::WeightInfo;
use burn::tensor::Device;
pub use conv2d::{Conv2dCall, QuantizedConv2d};
pub(super) use linear::HostLinear;
pub use linear::LinearWeights;
pub use table::Table;

/// Weights of any kind, as rows of outputs.
#[derive(Debug, Clone)]
pub enum Weights {
    /// Of a linear layer.
    Linear(LinearWeights),
    /// Of a convolution.
    Conv(QuantizedConv2d),
    /// Of a table.
    Table(Table),
}

impl Weights {
    /// Rows and columns.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Linear(weights) => weights.placed.dims(),
            Self::Conv(weights) => weights.placed.dims(),
            Self::Table(table) => table.placed.dims(),
        }
    }

    /// Whether they are laid out for operations on this device.
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

    /// Codes of rows of outputs, zeros included, and the scales of each row, where they are kept on the host.
    pub(super) fn host_codes(&self) -> Option<(Vec<i8>, Vec<f32>)> {
        match self {
            Self::Linear(weights) => weights.placed.on_host().map(HostLinear::codes),
            Self::Conv(weights) => weights.placed.on_host().map(|weights| weights.codes()),
            Self::Table(table) => table.placed.on_host().map(|table| table.codes()),
        }
    }

    /// The scales of weights that are kept on a GPU, row by row.
    pub(super) fn cuda_scales(&self) -> Option<&[f32]> {
        match self {
            Self::Linear(weights) => weights.placed.cuda_scales(),
            Self::Conv(weights) => weights.placed.cuda_scales(),
            Self::Table(table) => table.placed.cuda_scales(),
        }
    }

    /// The weights as f32, where they are kept on the host.
    pub(super) fn host_floats(&self) -> Option<Vec<f32>> {
        match self {
            Self::Linear(weights) => weights.placed.on_host().map(HostLinear::to_floats),
            Self::Conv(weights) => weights.placed.on_host().map(|weights| weights.to_floats()),
            Self::Table(table) => table.placed.on_host().map(|table| table.to_floats()),
        }
    }
}

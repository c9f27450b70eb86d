//! The result of a calibration, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The statistics that a calibration gathered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalibrationReport {
    /// The path of the model.
    pub model: String,
    /// The architecture.
    pub arch: String,
    /// The device.
    pub device: String,
    /// The data.
    pub data: String,
    /// Number of items: sentences, images or windows of text.
    pub n_items: usize,
    /// Number of images that could not be decoded.
    pub n_skipped: usize,
    /// Layers with statistics.
    pub layers: Vec<CalibratedLayer>,
    /// Layers without statistics, because they do not expose their inputs or did not run.
    pub unseen: Vec<String>,
    /// The statistics file.
    pub output: String,
    /// Size of the file in bytes.
    pub n_bytes: u64,
}

/// A layer with input statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalibratedLayer {
    /// The name of its weight without `.weight`.
    pub name: String,
    /// Number of inputs.
    pub n_inputs: usize,
    /// Number of input vectors.
    pub n_vectors: u64,
    /// Whether there are fewer than 512 input vectors, which is unreliable.
    pub is_few: bool,
}

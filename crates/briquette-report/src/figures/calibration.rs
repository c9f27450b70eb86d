//! What a calibration gathered, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a calibration gathered, and where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalibrationReport {
    /// The model that ran.
    pub model: String,
    /// Its architecture.
    pub arch: String,
    /// Where it ran.
    pub device: String,
    /// What it ran on.
    pub data: String,
    /// Items that ran: sentences, images, or windows of a text.
    pub n_items: usize,
    /// Images that did not decode.
    pub n_skipped: usize,
    /// The layers with statistics.
    pub layers: Vec<CalibratedLayer>,
    /// Layers without statistics: they do not show their inputs, or saw none.
    pub unseen: Vec<String>,
    /// The file of statistics.
    pub output: String,
    /// Its bytes.
    pub n_bytes: u64,
}

/// A layer whose inputs were seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalibratedLayer {
    /// The name of its weight without `.weight`.
    pub name: String,
    /// Inputs.
    pub n_inputs: usize,
    /// Vectors of inputs that it saw.
    pub n_vectors: u64,
    /// Whether those are fewer than 512: statistics of so few say little.
    pub is_few: bool,
}

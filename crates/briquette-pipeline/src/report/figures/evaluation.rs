//! Quality, latency and memory of an evaluated model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The prefix of metrics of the original model.
pub(crate) const REFERENCE: &str = "reference_";

/// The results of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvaluationReport {
    /// The architecture.
    pub arch: String,
    /// The device.
    pub device: String,
    /// The data.
    pub data: String,
    /// Number of sentences, images or predicted tokens.
    pub n_items: usize,
    /// Number of images that could not be decoded.
    pub n_skipped: usize,
    /// Items of the largest batch of the model; tiles, if images are cut into tiles.
    pub batch_size: usize,
    /// Items of the largest batch of the original.
    #[serde(default)]
    pub batch_size_before: Option<usize>,
    /// Whether the batch size was chosen automatically.
    #[serde(default)]
    pub is_batch_auto: bool,
    /// Metrics by name; `reference_` is the prefix of metrics of the original model.
    pub metrics: BTreeMap<String, f64>,
    /// How the model prepares items in another way than the original.
    #[serde(default)]
    pub input_difference: Option<String>,
    /// Text that a decoder generates from a prompt.
    #[serde(default)]
    pub continuation: Option<ContinuationFigures>,
    /// Latency and memory of the original.
    pub before: Option<RunFigures>,
    /// Latency and memory of the model.
    pub after: RunFigures,
}

/// Text that decoders generate from a prompt with the most likely tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContinuationFigures {
    /// The prompt.
    pub prompt: String,
    /// The text of the original.
    pub before: Option<String>,
    /// The text of the model.
    pub after: String,
}

/// Latency and memory of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunFigures {
    /// Median latency of a batch in milliseconds.
    pub p50_ms: f64,
    /// 90th percentile of the latency of a batch in milliseconds.
    pub p90_ms: f64,
    /// 99th percentile of the latency of a batch in milliseconds.
    pub p99_ms: f64,
    /// Items per second.
    pub items_per_s: f64,
    /// The figures of each memory meter.
    pub memory: Vec<MemoryFigures>,
    /// How weights were stored in memory and computed.
    ///
    /// `int8`, `sparse int8` and `int4 by int8` were multiplied as integers. `int8 weight-only` and `int4` were converted to
    /// floats in registers. `int8 as floats` was decoded for each use. Tables were looked up.
    #[serde(default)]
    pub held: BTreeMap<String, HeldFigures>,
}

/// Parameters with the same storage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldFigures {
    /// Number of parameters.
    pub n_tensors: usize,
    /// Number of weights, with zeros.
    pub n_weights: usize,
    /// Bytes in memory.
    pub n_bytes: usize,
}

/// The figures of one memory meter, minus the use before the model was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryFigures {
    /// The name of the meter.
    pub meter: String,
    /// Bytes of the weights, predicted from the headers, if the meter covers them.
    pub predicted_bytes: Option<u64>,
    /// Bytes that the network released when it was dropped, if any.
    pub weights_bytes: Option<u64>,
    /// Peak bytes during the run.
    pub peak_bytes: Option<u64>,
    /// Bytes that remained after the network was dropped.
    pub after_bytes: Option<u64>,
}

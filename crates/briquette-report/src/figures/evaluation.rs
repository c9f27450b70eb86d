//! Quality, latency and memory of a model that was run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How metrics begin that the original has by itself.
pub(crate) const REFERENCE: &str = "reference_";

/// What running a model showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvaluationReport {
    /// The architecture.
    pub arch: String,
    /// Where it ran.
    pub device: String,
    /// The data.
    pub data: String,
    /// Sentences, images, or tokens predicted.
    pub n_items: usize,
    /// Images that did not decode.
    pub n_skipped: usize,
    /// Items of the largest batch of the model; tiles, where images are cut into those.
    pub batch_size: usize,
    /// Items of the largest batch of the original.
    #[serde(default)]
    pub batch_size_before: Option<usize>,
    /// Whether that was found while they ran.
    #[serde(default)]
    pub is_batch_auto: bool,
    /// What was measured, by name; `reference_` of what the original has of its own.
    pub metrics: BTreeMap<String, f64>,
    /// What a decoder goes on with after a prompt.
    #[serde(default)]
    pub continuation: Option<ContinuationFigures>,
    /// The original.
    pub before: Option<RunFigures>,
    /// The model.
    pub after: RunFigures,
}

/// What decoders go on with after a prompt, taking the most likely token each time: whether a compressed one still speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContinuationFigures {
    /// What they go on from.
    pub prompt: String,
    /// What the original goes on with.
    pub before: Option<String>,
    /// What the model does.
    pub after: String,
}

/// What one model took to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunFigures {
    /// Milliseconds of a batch: the median, and what nine of ten and 99 of 100 stay below.
    pub p50_ms: f64,
    /// See `p50_ms`.
    pub p90_ms: f64,
    /// See `p50_ms`.
    pub p99_ms: f64,
    /// Items a second.
    pub items_per_s: f64,
    /// What each meter saw.
    pub memory: Vec<MemoryFigures>,
    /// How weights were held: `int8` and `sparse int8` were multiplied as integers, `int8 weight-only` and `int4` became
    /// floats in registers, `int8 as floats` was decoded for each use, tables were looked up.
    #[serde(default)]
    pub held: BTreeMap<String, HeldFigures>,
}

/// Parameters that are held in one way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldFigures {
    /// Parameters.
    pub n_tensors: usize,
    /// Weights, zeros too.
    pub n_weights: usize,
    /// Bytes they take.
    pub n_bytes: usize,
}

/// What one meter saw, above what was there before the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryFigures {
    /// What was measured, in words.
    pub meter: String,
    /// Bytes of the weights, as the headers predicted them, where the meter sees them.
    pub predicted_bytes: Option<u64>,
    /// Bytes that its network held, where dropping it gave any back.
    pub weights_bytes: Option<u64>,
    /// The most while it ran.
    pub peak_bytes: Option<u64>,
    /// What was left when it was dropped.
    pub after_bytes: Option<u64>,
}

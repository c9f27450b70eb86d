//! What running a model may use, as TOML has it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What running a model may use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawMemory {
    /// The most memory that running may take, such as "4GiB" or "800MB": held against the weights before anything is
    /// loaded, and against what is measured while batches run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// evaluate and `[calibration]`: have the weights of one block of the network in memory at a time, and what lies between blocks in a
    /// file where it is large; for models that are larger than the memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offload: bool,
    /// Items of a batch (32), or "auto": as many as fit the limit, or what the system has to give; fewer where a device
    /// runs out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<RawBatchSize>,
    /// distill: batches whose gradients make one step (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<usize>,
    /// distill: make cheap tensors again in the backward pass instead of keeping them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gradient_checkpointing: bool,
    /// distill: ask the teacher once for each item and look its outputs up from then on; class scores and embeddings only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cache_teacher: bool,
    /// What networks compute in: "f32" (the default), "bf16" or "f16". distill: over weights that stay f32, and what is
    /// trained is then evaluated in f32; else evaluate: weights too, where none are held as codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
}

/// How many items a batch has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RawBatchSize {
    /// So many.
    Size(usize),
    /// "auto".
    Name(String),
}

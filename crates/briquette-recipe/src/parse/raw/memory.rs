//! The TOML structure of memory settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory limits and batch size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawMemory {
    /// Memory limit, such as "4GiB" or "800MB". Stages on files use fewer threads and smaller pieces to stay below
    /// it. Runs of a model compare it with the size of the weights, and with the measured use while batches run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// evaluate and `[calibration]`: keep only one block's weights in memory at a time, and large hidden states
    /// in a file. For models larger than memory (false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offload: bool,
    /// Number of items in a batch (32), or "auto". "auto" takes as many as fit the limit or the free memory,
    /// and fewer if a device runs out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<RawBatchSize>,
    /// distill: number of batches whose gradients are accumulated for one step (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<usize>,
    /// distill: compute cheap activations again in the backward pass instead of storing them (false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gradient_checkpointing: bool,
    /// distill: run the teacher once for each item and cache its outputs; logits and embeddings only (false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cache_teacher: bool,
    /// The float type of computation: "f32" (the default), "bf16" or "f16". distill keeps f32 master weights
    /// and evaluates the result in f32. evaluate also stores weights in this type, if none are stored as codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
}

/// The number of items in a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RawBatchSize {
    /// A fixed number.
    Size(usize),
    /// "auto".
    Name(String),
}

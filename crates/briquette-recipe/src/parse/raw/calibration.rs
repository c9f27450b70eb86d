//! The TOML structure of a calibration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The source of input statistics, for methods that need layer inputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawCalibration {
    /// The data to run the model on, in the formats of `data.eval`; `[data]` sets how images are preprocessed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// Instead of data: statistics that `briquette calibrate` wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<PathBuf>,
    /// The largest number of items: sentences, images or windows of text (512).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// Largest number of tokens of a text; longer texts are truncated. Default: the model's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
    /// How the range of each activation is chosen for int8-static: "minmax", "percentile" (99.999 %), "mse" (the default) or
    /// "entropy".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation_range: Option<String>,
    /// Seed that chooses the items (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Gather Gram matrices even if no method needs them, so that the reported output errors are exact (false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gram: bool,
    /// Compute the inputs of each block with the compressed blocks before it (true if a method updates
    /// weights).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential: Option<bool>,
    /// Correct the weights of each layer for the errors of all layers before it. True by default if a method updates
    /// weights, `sequential` is true, and memory has no limit. Takes about twice the time and memory of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correct: Option<bool>,
}

//! What methods that look at the inputs of layers learn them from, as TOML has it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What methods that look at the inputs of layers learn them from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawCalibration {
    /// What the model runs on, of the kinds that `data.eval` may be; images are prepared as `[data]` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// Instead of data: statistics that `briquette calibrate` wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<PathBuf>,
    /// The most items that run: sentences, images, or windows of a text (512).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// Tokens that texts are cut at; the model's own limit when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
    /// Chooses the items (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Gather gram matrices where no method needs them, so that errors of outputs are exact (false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gram: bool,
    /// Take the inputs of each block from blocks that are compressed already (where a method moves weights).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential: Option<bool>,
}

//! What a model is run on and what must come of it, as TOML has it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What to run the model on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawData {
    /// What a distill stage trains on: of the kinds that `eval` may be; `train_x` and `train_y` of a file of arrays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// The share of `train` that is used, its first items (1): for trying out how little is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The share of labels of `train` that are drawn anew at random (0): for trying out how much noise is borne.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_noise: Option<f64>,
    /// Text lines or .jsonl for encoders; a text file for decoders; a folder of classes or an array for classifiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<PathBuf>,
    /// What the `metric` of a distill stage is measured on to choose the best epoch, where that is not `eval`; an array has its
    /// labels in the same file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub select: Option<PathBuf>,
    /// Labels in a file of their own, where `eval` is an array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<PathBuf>,
    /// Tokens that texts are cut at; the model's own limit when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
    /// Tokens from the beginning of one window of a decoder's text to the next, at most those of a window, which is what it is when
    /// absent: with fewer, every token but the first ones has more before it, and the run takes longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stride: Option<usize>,
    /// What the shorter side of an image is scaled to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Height and width cut from the middle of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crop: Option<[usize; 2]>,
    /// Cut images into tiles of at most this height and width and average what the network says of each, instead of
    /// cropping; images are scaled only where `size` says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile: Option<usize>,
    /// What each channel of an image is shifted and divided by, after bytes were scaled to 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalize: Option<RawNormalize>,
    /// Stop at an image that does not decode, instead of skipping and counting it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Threads that prepare batches (2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
}

/// The statistics of an image's channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawNormalize {
    /// Subtracted.
    pub mean: Vec<f32>,
    /// Divided by.
    pub std: Vec<f32>,
}

/// What metrics must reach.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawGate {
    /// Lowest values, by the name of the metric: `min = { cosine = 0.965 }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub min: BTreeMap<String, f64>,
    /// Highest values: `max = { perplexity = 12 }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub max: BTreeMap<String, f64>,
}

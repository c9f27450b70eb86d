//! The TOML structure of the data and of the gate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Data for training and evaluation, and its preprocessing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawData {
    /// Training data of a distill stage, in the formats of `eval`; in a file of arrays, `train_x` and
    /// `train_y`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// The share of `train` to use, from its beginning (1); to find out how little data is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The share of labels of `train` to replace by random ones (0); to find out how robust the training is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_noise: Option<f64>,
    /// Evaluation data: text lines or .jsonl for encoders; a text file for decoders; a folder of classes or an
    /// array for classifiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<PathBuf>,
    /// Data for the `metric` that chooses the best epoch of a distill stage, if it is not `eval`. An array has
    /// its labels in the same file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub select: Option<PathBuf>,
    /// A file of labels, if `eval` is an array without labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<PathBuf>,
    /// Largest number of tokens of a text; longer texts are truncated. Default: the model's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
    /// Tokens between the starts of two windows of a decoder's text; at most the window length, which is the
    /// default. A smaller stride gives tokens more context and takes longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stride: Option<usize>,
    /// Length to which the shorter side of an image is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Height and width of the center crop of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crop: Option<[usize; 2]>,
    /// Instead of a crop: the largest height and width of tiles that images are cut into. The outputs of the
    /// tiles are averaged. Images are scaled only if `size` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile: Option<usize>,
    /// Mean and standard deviation of each channel, applied after bytes are scaled to 0..1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalize: Option<RawNormalize>,
    /// Fail at an image that cannot be decoded, instead of skipping and counting it (false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Number of threads that prepare batches (2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
}

/// Mean and standard deviation of image channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawNormalize {
    /// The mean, which is subtracted.
    pub mean: Vec<f32>,
    /// The standard deviation, by which values are divided.
    pub std: Vec<f32>,
}

/// Bounds that the metrics must meet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawGate {
    /// Lower bounds by metric: `min = { cosine = 0.965 }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub min: BTreeMap<String, f64>,
    /// Upper bounds by metric: `max = { perplexity = 12 }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub max: BTreeMap<String, f64>,
}

//! Sensitivities of tensors, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The sensitivity of each tensor: the file that `briquette sensitivity` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SensitivityReport {
    /// The identifier of this file format.
    pub format: String,
    /// Version of this structure.
    pub version: u32,
    /// The program that wrote the file.
    pub producer: String,
    /// The path of the model.
    pub model: String,
    /// The fingerprint of the model.
    pub fingerprint: String,
    /// A hash of each input of the recipe that was measured, by its key. Only sweeps have them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contents: BTreeMap<String, String>,
    /// How losses were found: gradient, measured or relative.
    pub how: String,
    /// The unit of losses.
    ///
    /// It is "1 - cosine", "nats", "squared error of the score / 2", a metric, or "relative". "nats" is the KL
    /// divergence from the uncompressed model, per token or image. "accuracy", "sts_spearman" and "ln perplexity"
    /// are the deterioration of the metric. "relative" is relative to the weights or outputs of the layer.
    pub unit: String,
    /// measured: the requested loss, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// The data, if the model ran.
    pub data: Option<String>,
    /// Largest number of items.
    pub n_samples: Option<usize>,
    /// The method whose losses are compared with these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// The rank correlation of both methods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_correlation: Option<f64>,
    /// Every tensor that may be quantized.
    pub tensors: Vec<TensorSensitivity>,
}

/// The sensitivity of a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TensorSensitivity {
    /// The name.
    pub name: String,
    /// Number of weights.
    pub n_weights: usize,
    /// Root mean square of the weights.
    pub rms: f64,
    /// Loss from rounding the tensor to a step size, over the square of that step size.
    pub loss_of_square: f64,
    /// Loss with a quarter of `rms` as step size, about four bits per weight.
    pub loss: f64,
    /// The same loss by the other method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<f64>,
    /// Whether no layer that ran uses the tensor.
    pub is_idle: bool,
}

impl SensitivityReport {
    /// The value of `format`.
    pub const FORMAT: &str = "briquette-sensitivity";
    /// The value of `version`.
    pub const VERSION: u32 = 1;

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorSensitivity> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

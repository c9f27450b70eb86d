//! What a model loses by the errors of its tensors, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a model loses by the error of each tensor; the file of `briquette sensitivity`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SensitivityReport {
    /// What tells such a file from others.
    pub format: String,
    /// Version of this structure.
    pub version: u32,
    /// The program that wrote it.
    pub producer: String,
    /// The model.
    pub model: String,
    /// What tells the model from others.
    pub fingerprint: String,
    /// How losses were found: gradient, measured or relative.
    pub how: String,
    /// What losses are counted in: "1 - cosine"; "nats" a token or an image, of divergence from the model as it is; what a metric becomes worse by,
    /// "accuracy", "sts_spearman" or "ln perplexity"; or "relative" to the weights or outputs of the layer.
    pub unit: String,
    /// measured: the loss that was asked for, where one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// What the model ran on, where it did.
    pub data: Option<String>,
    /// The most items of it that ran.
    pub n_samples: Option<usize>,
    /// How losses were found that these are held against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// The correlation of the ranks of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_correlation: Option<f64>,
    /// Every tensor that may be rounded.
    pub tensors: Vec<TensorSensitivity>,
}

/// What a model loses by the error of a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TensorSensitivity {
    /// Its name.
    pub name: String,
    /// Its weights.
    pub n_weights: usize,
    /// The root mean square of its weights.
    pub rms: f64,
    /// What is lost by rounding it to a step, over the square of that step.
    pub loss_of_square: f64,
    /// What is lost by a step of a quarter of `rms`, which is some four bits a weight.
    pub loss: f64,
    /// The same, as found by the other way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<f64>,
    /// Whether nothing that ran has it.
    pub is_idle: bool,
}

impl SensitivityReport {
    /// What `format` says.
    pub const FORMAT: &str = "briquette-sensitivity";
    /// What `version` says.
    pub const VERSION: u32 = 1;

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorSensitivity> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

//! How many bytes weights may take, as TOML has it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How many bytes the weight files may have. Steps of a quantize stage with the scheme "step" or "step-dynamic" are found by it, a step for each
/// tensor; codes are entropy-coded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawBudget {
    /// The most bytes of all weight files, such as "9.4MB".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<String>,
    /// The most bits for each weight of the tensors whose steps are found, instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<f64>,
    /// What metrics have to be at least, instead: the output is the smallest that is found which keeps to it on the data of an evaluate stage.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub min: BTreeMap<String, f64>,
    /// What metrics may be at most, likewise.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub max: BTreeMap<String, f64>,
    /// What a tensor may have: "step" (the default), and schemes such as "int8" or "int4-g64". Without "step", nothing is entropy-coded unless
    /// `output.storage` says so, and a scheme may be pruned too, by magnitude: "int8+0.5" drops half of the weights, "int4-g64+2:4" keeps two of every
    /// four inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<String>>,
    /// What a tensor's error costs: "gradient", by one pass over data and back (the default where there is data); "measured", by running the model with
    /// each tensor alone rounded; or "relative", the square error of a layer's outputs, or of its weights where inputs are not known, over their
    /// square.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<String>,
    /// measured: what a loss is counted by. "kl", the divergence from the model as it is (the default of decoders and classifiers); "cosine", one less
    /// that of outputs (the default of encoders); or "metric", what accuracy, the correlation with what people say of pairs, or the logarithm of
    /// perplexity becomes worse by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// A file of sensitivities that `briquette sensitivity` wrote, instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity_file: Option<PathBuf>,
    /// gradient, measured: items of the calibration's data that run, for measured once for each tensor (64).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
}

//! The TOML structure of a budget.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The size or quality that the output must reach.
///
/// A budget chooses a step size for each tensor of a quantize stage with the scheme "step" or "step-dynamic".
/// The codes are entropy-coded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawBudget {
    /// The largest size of all weight files, such as "9.4MB".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<String>,
    /// Instead of bytes: the largest mean number of bits per weight of the tensors that the budget covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<f64>,
    /// Instead of a size: lower bounds of metrics. The run searches for the smallest output that meets them on
    /// the data of the evaluate stage.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub min: BTreeMap<String, f64>,
    /// Instead of a size: upper bounds of metrics, used like `min`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub max: BTreeMap<String, f64>,
    /// Schemes to choose from for each tensor: "step" (the default) and named schemes such as "int8" or
    /// "int4-g64".
    ///
    /// Without "step", codes are entropy-coded only if `output.storage` is "entropy". A scheme may then include
    /// pruning by magnitude: "int8+0.5" prunes half of the weights, "int4-g64+2:4" keeps two of every four
    /// inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<String>>,
    /// "trellis": step sizes whose codes depend on the codes above them, which take fewer bits at equal quality. Only programs
    /// from version 9 of the format on read them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub experimental: Vec<String>,
    /// How the sensitivity of each tensor is found.
    ///
    /// "gradient" needs one forward and one backward pass (the default with data). "measured" runs the model
    /// with only this tensor quantized. "relative" is the relative squared error of the layer's outputs, or of
    /// its weights if the layer inputs are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<String>,
    /// measured: the loss. "kl" is the KL divergence from the uncompressed model (the default of decoders and
    /// classifiers). "cosine" is one minus the cosine similarity of outputs (the default of encoders). "metric"
    /// is the loss of accuracy or of sts_spearman, or the increase of ln perplexity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Instead of `sensitivity`: a file that `briquette sensitivity` wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity_file: Option<PathBuf>,
    /// gradient, measured: number of calibration items (64). measured runs them once for each tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
}

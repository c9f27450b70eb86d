//! The TOML structure of the model and the output.

use briquette_core::OutputAxis;
use briquette_formats::{Choice, WeightLayout};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The model to compress.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawModel {
    /// A file, an index of shards, or a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The key of the model in a PyTorch file, such as "model_ema". It is needed if the file has several
    /// models, or the model is not found; "" reads the whole file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Prefix to remove from tensor names, such as "model.". By default, "module." and "_orig_mod." are removed
    /// if all names of a PyTorch file have them; "" keeps names unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strip_prefix: Option<String>,
    /// The architecture, if the files do not show it: "bert", "llama", "resnet50", "digits-cnn", ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// The layout of Linear weights: "torch" is [out, in], "burn" is [in, out]. The default of burnpack files
    /// is "burn".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<RawLayout>,
    /// Roles of tensors that are detected wrongly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RawRole>,
    /// Accept NaN and infinity: tensors that contain any are not changed (false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_nonfinite: bool,
}

impl RawModel {
    /// Returns the settings that choose the model within a file.
    pub fn choice(&self) -> Choice {
        let (key, strip_prefix) = (self.key.clone(), self.strip_prefix.clone());
        Choice { key, strip_prefix, layout: self.layout.map(RawLayout::said), is_for_one_of_two: false }
    }
}

/// The layout of Linear weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RawLayout {
    /// `[out, in]`.
    Torch,
    /// `[in, out]`.
    Burn,
}

impl RawLayout {
    /// Returns the layout as the type of the formats crate.
    pub fn said(self) -> WeightLayout {
        match self {
            Self::Torch => WeightLayout::Torch,
            Self::Burn => WeightLayout::Burn,
        }
    }

    /// Converts the layout from the type of the formats crate.
    pub fn of(layout: WeightLayout) -> Self {
        match layout {
            WeightLayout::Torch => Self::Torch,
            WeightLayout::Burn => Self::Burn,
        }
    }
}

/// The role of some tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawRole {
    /// Globs over tensor names.
    pub include: Vec<String>,
    /// The role: linear, conv, embedding, norm, bias, parameter, unknown or other.
    pub role: briquette_core::Role,
    /// The axis of the outputs: "first", "last", "second" or "stacked". "first" is `[out, in]`, "last" is `[in,
    /// out]`, "second" is `[in, out, ..]` of transposed convolutions, and "stacked" is `[experts, out, in]`. By
    /// default, the axis is detected from names and shapes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<RawOutputs>,
}

/// The axis of the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RawOutputs {
    /// `[out, in]`.
    First,
    /// `[in, out]`.
    Last,
    /// `[in, out, ..]`.
    Second,
    /// `[.., out, in]`.
    Stacked,
}

impl RawOutputs {
    /// Returns the axis.
    pub fn axis(self) -> OutputAxis {
        match self {
            Self::First => OutputAxis::First,
            Self::Last => OutputAxis::Last,
            Self::Second => OutputAxis::Second,
            Self::Stacked => OutputAxis::Stacked,
        }
    }
}

/// The directory to write.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawOutput {
    /// The directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// "briquette" (the default), "compressed-tensors", "dense" or "burnpack".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// briquette: "auto" (the default) stores weights dense or sparse, whichever is smaller; "entropy" stores
    /// codes entropy-coded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// compressed-tensors: write the output even if transformers is not known to load the model (false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_untested: bool,
}

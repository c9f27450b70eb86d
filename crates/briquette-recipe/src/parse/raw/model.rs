//! What a recipe says of the model it reads and of what it writes, as TOML has it.

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
    /// The key of a PyTorch file under which the model is, such as "model_ema", where the file holds several or it is not found; ""
    /// for all there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What names begin with and are to be without, such as "model.". Where absent, "module." and "_orig_mod." go where all names of
    /// a PyTorch file begin so; "" keeps names as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strip_prefix: Option<String>,
    /// The architecture, where files do not tell: "bert", "llama", "resnet50", "digits-cnn", ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Which way Linear weights lie: "torch" is [out, in], "burn" is [in, out]. Burnpack files are "burn" unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<RawLayout>,
    /// Names that our own reading of roles gets wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RawRole>,
    /// Accept NaN and infinity: tensors that have any are left as they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_nonfinite: bool,
}

impl RawModel {
    /// The entry of a file that is the model, its names and its layout.
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
    /// The same layout as files have it.
    pub fn said(self) -> WeightLayout {
        match self {
            Self::Torch => WeightLayout::Torch,
            Self::Burn => WeightLayout::Burn,
        }
    }

    /// The layout that a recipe has for one of files.
    pub fn of(layout: WeightLayout) -> Self {
        match layout {
            WeightLayout::Torch => Self::Torch,
            WeightLayout::Burn => Self::Burn,
        }
    }
}

/// What some tensors are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawRole {
    /// Globs over tensor names.
    pub include: Vec<String>,
    /// linear, conv, embedding, norm, bias, parameter, unknown or other.
    pub role: briquette_core::Role,
    /// Which axis counts their outputs: "first", as `[out, in]`, "last", as `[in, out]`, "second", as transposed convolutions
    /// `[in, out, ..]`, or "stacked", as experts `[experts, out, in]`; without it, what names and shapes show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<RawOutputs>,
}

/// Which axis counts outputs.
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
    /// The axis.
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
    /// briquette: "auto" (the default) keeps weights dense or sparse, whichever is smaller; "entropy" keeps codes in as many bits as their
    /// frequencies say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// compressed-tensors: write models too that transformers is not known to load.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_untested: bool,
}

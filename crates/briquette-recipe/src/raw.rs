//! The recipe as TOML has it: no behaviour, every key spelled out.

mod model;
mod training;

pub use model::{RawLayout, RawModel, RawOutputs, RawRole};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
pub use training::{RawGradual, RawLayers, RawLoss, RawStudent};

/// A recipe: one model in, one directory out, stages in between. Paths are relative to the recipe's file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawRecipe {
    /// The model to compress.
    #[serde(default)]
    pub model: RawModel,
    /// The directory to write.
    #[serde(default)]
    pub output: RawOutput,
    /// What to do, in order: factorize, prune and distill, then quantize, then cast, evaluate last.
    #[serde(default)]
    pub stage: Vec<RawStage>,
    /// What an evaluate stage runs the model on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RawData>,
    /// What running the model may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<RawMemory>,
    /// What the metrics of an evaluate stage must reach, or nothing is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<RawGate>,
}

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

/// What running a model may use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawMemory {
    /// The most memory that running may take, such as "4GiB" or "800MB": held against the weights before anything is
    /// loaded, and against what is measured while batches run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Items of a batch (32), or "auto": as many as fit the limit, or what the system has to give; fewer where a device
    /// runs out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<RawBatchSize>,
    /// distill: batches whose gradients make one step (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<usize>,
    /// distill: make cheap tensors again in the backward pass instead of keeping them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gradient_checkpointing: bool,
    /// distill: ask the teacher once for each item and look its outputs up from then on; class scores and embeddings only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cache_teacher: bool,
    /// What networks compute in: "f32" (the default), "bf16" or "f16". distill: over weights that stay f32, and what is
    /// trained is then evaluated in f32; else evaluate: weights too, where none are held as codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
}

/// How many items a batch has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RawBatchSize {
    /// So many.
    Size(usize),
    /// "auto".
    Name(String),
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
    /// compressed-tensors: write models too that transformers is not known to load.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_untested: bool,
}

/// One stage. Which keys it may have depends on its kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawStage {
    /// "factorize", "prune", "distill", "quantize", "cast" or "evaluate".
    pub kind: String,
    /// prune: "magnitude" (the default) or "random".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// prune: "layer" (the default), each tensor by itself, or "global", one threshold over all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// prune: share of weights to drop, 0 to below 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<f64>,
    /// prune: "N:M", keep N of every M neighbouring inputs, instead of a sparsity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// prune: seed of the method "random". distill: seed of weights and of the order of the data (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// factorize: two factors for each linear layer, of the smallest rank whose squared singular values sum to this share, above 0
    /// to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
    /// factorize: two factors for each linear layer, of the largest rank that takes at most this share of its bytes, above 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// quantize: a named scheme such as "int8", "int8-dynamic" or "int4-g128".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// quantize: 2 to 8, instead of a scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// quantize: "tensor", "channel", or the number of inputs that share a scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<RawGroup>,
    /// quantize: true for no zero point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symmetric: Option<bool>,
    /// quantize: "absmax", "minmax", "percentile", "mse" or, without zero points, "hqq".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// quantize: the share of weights that range "percentile" holds, 0.5 to 1 (0.999).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentile: Option<f64>,
    /// quantize: type of the scales, "f32" (the default) or "f16".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<String>,
    /// cast: the type that floats are stored in, "f16", "bf16" or "f32".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Globs over tensor names; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over tensor names to leave out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Which roles are chosen: linear and conv for prune; linear, conv and embedding for quantize; all for cast; linear for
    /// factorize, always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<Vec<briquette_core::Role>>,
    /// Other values for some tensors; the last that matches counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<RawOverride>,
    /// distill: "self" (the default) is the model as the stages before left it; "layers" is some of its layers; a table is
    /// other sizes of its config.json, with random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub student: Option<RawStudent>,
    /// distill, student "layers": how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_layers: Option<usize>,
    /// distill, student "layers": "every" (the default), "first", "last", or a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<RawLayers>,
    /// distill: the teacher's file, index or directory; the recipe's model when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<PathBuf>,
    /// distill: what goes down, each with its weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loss: Vec<RawLoss>,
    /// distill: passes over the data (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<usize>,
    /// distill: the highest learning rate (5e-5); it falls along half a cosine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// distill: "adamw" (the default) or "sgd".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
    /// distill: weight decay (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f32>,
    /// distill: momentum of sgd (0.9).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// distill: the share of steps in which the learning rate rises (0.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<f64>,
    /// distill: the longest that the gradient of all weights may be (1); longer ones are scaled down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// distill: the metric of the evaluation that says which epoch was best; without it the last epoch counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// distill: epochs without a better metric after which it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<usize>,
    /// distill: steps between checkpoints (200).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_every: Option<usize>,
    /// distill: globs over tensor names that do not learn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// distill: drop weights little by little while the student learns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<RawGradual>,
    /// distill: train with the rounding of the quantize stage that follows in place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quantization_aware: bool,
}

/// How many inputs share a scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected \"tensor\", \"channel\" or a whole number of inputs")]
pub enum RawGroup {
    /// Inputs that share a scale.
    Size(usize),
    /// "tensor" or "channel".
    Name(String),
}

/// Other values for some tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawOverride {
    /// Globs over tensor names.
    pub include: Vec<String>,
    /// prune: their share of weights to drop, each by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<f64>,
    /// quantize: their scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
}

impl RawStage {
    /// The stage in words: `prune magnitude, layer, sparsity 0.4`.
    pub fn in_words(&self) -> String {
        let text = |key: &str, value: Option<String>| value.map(|value| format!("{key} {value}"));
        let scheme = self.scheme.clone().or(self.bits.map(|bits| format!("int{bits}")));
        let parts = [
            self.method.clone(),
            scheme,
            self.dtype.clone(),
            text("scope", self.scope.clone()),
            text("sparsity", self.sparsity.map(|sparsity| sparsity.to_string())),
            text("pattern", self.pattern.clone()),
            text("energy", self.energy.map(|energy| energy.to_string())),
            text("bytes", self.bytes.map(|bytes| bytes.to_string())),
            text("range", self.range.clone()),
            self.student.as_ref().map(RawStudent::in_words),
            self.prune.as_ref().and_then(|prune| Some(format!("pruned to {}", prune.sparsity?))),
            text("epochs", self.epochs.map(|epochs| epochs.to_string())),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!("{} {}", self.kind, parts.join(", ")).trim_end().to_string()
    }
}

//! Flags that describe a recipe: what to prune, quantize and cast, and how.

use super::choice::ReadArgs;
use super::values::{parse_bound, parse_role, parse_sparsity};
use briquette::core::Role;
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};

/// Flags that a recipe replaces.
///
/// This includes flags that others require, because clap allows a flag whose required flag conflicts.
const IN_A_RECIPE: [&str; 34] = [
    "bytes",
    "bits",
    "min",
    "choices",
    "experimental",
    "max",
    "eval",
    "sensitivity",
    "sensitivity_file",
    "loss",
    "shrink",
    "shrink_method",
    "shrink_parts",
    "fold",
    "pruning",
    "scope",
    "prune_method",
    "prune_roles",
    "seed",
    "statistics",
    "data",
    "samples",
    "max_length",
    "activation_range",
    "round",
    "reconstruct",
    "column_scales",
    "bias_correction",
    "quantize",
    "range",
    "quantize_roles",
    "cast",
    "include",
    "exclude",
];

/// The stages to run: a recipe, or flags that describe one.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
#[command(group = clap::ArgGroup::new("texts").args(["data", "eval"]).multiple(true))]
#[command(group = clap::ArgGroup::new("budget").multiple(true))]
#[command(group = clap::ArgGroup::new("rounding").args(["quantize", "bytes", "bits", "min", "max"]).multiple(true))]
pub(crate) struct What {
    /// Take the stages from a recipe. MODEL, --key, --strip-prefix, --output, --format, --storage, --layout,
    /// --allow-untested and --allow-nonfinite override its keys
    #[arg(long, value_name = "FILE", conflicts_with_all = IN_A_RECIPE, help_heading = "Input")]
    pub(crate) recipe: Option<PathBuf>,
    /// How to read the model's file
    #[command(flatten, next_help_heading = "Input")]
    pub(crate) read: ReadArgs,
    /// Remove this share of the channels and heads of every layer, from 0 to below 1, so that tensors become smaller
    #[arg(long, value_name = "SHARE", value_parser = parse_sparsity, allow_negative_numbers = true, help_heading = "Shrinking")]
    pub(crate) shrink: Option<f64>,
    /// Score of channels and heads: l2, l1 or random; with --statistics also wanda, flap, taylor or osscar (the default),
    /// and the remaining weights are refitted
    #[arg(long, value_name = "METHOD", requires = "shrink", help_heading = "Shrinking")]
    pub(crate) shrink_method: Option<String>,
    /// Parts to remove: feed-forward, heads, channels, experts, width; by default the first three
    #[arg(long, value_name = "PARTS", value_delimiter = ',', requires = "shrink", help_heading = "Shrinking")]
    pub(crate) shrink_parts: Option<Vec<String>>,
    /// Change weights without changing the function of the network: batch-norm, equalize, rotate; with --statistics also
    /// smooth, awq and auto, which does either or neither for each input
    #[arg(long, value_name = "METHODS", value_delimiter = ',', help_heading = "Folding")]
    pub(crate) fold: Vec<String>,
    /// Prune this share of the weights, from 0 to below 1, those of the smallest magnitude unless --prune-method says
    /// otherwise
    #[arg(long, value_name = "SHARE", group = "pruning", value_parser = parse_sparsity, allow_negative_numbers = true, help_heading = "Pruning")]
    pub(crate) prune: Option<f64>,
    /// Keep N of every M neighbouring inputs instead, such as 2:4
    #[arg(long, visible_alias = "nm", value_name = "N:M", group = "pruning", help_heading = "Pruning")]
    pub(crate) prune_pattern: Option<String>,
    /// Scope of the share: layer (each tensor), global (one threshold) or owl (each block by its outliers)
    #[arg(long, value_name = "SCOPE", requires = "prune", help_heading = "Pruning")]
    pub(crate) scope: Option<String>,
    /// Score: magnitude or random; with data also wanda, or sparsegpt and admm, which update the kept weights
    #[arg(long, value_name = "METHOD", requires = "pruning", help_heading = "Pruning")]
    pub(crate) prune_method: Option<String>,
    /// Calibration data, for methods that need layer inputs: text, images or an array
    #[arg(long, value_name = "PATH", conflicts_with = "statistics", help_heading = "Data")]
    pub(crate) data: Option<PathBuf>,
    /// Largest number of sentences, images or windows of text of --data (512)
    #[arg(long, value_name = "N", requires = "data", help_heading = "Data")]
    pub(crate) samples: Option<usize>,
    /// Truncate texts of --data and --eval to this many tokens
    #[arg(long, value_name = "N", requires = "texts", help_heading = "Data")]
    pub(crate) max_length: Option<usize>,
    /// How the range of each activation is chosen for int8-static: minmax, percentile, mse (the default) or entropy
    #[arg(long, value_name = "RANGE", requires = "data", help_heading = "Quantization")]
    pub(crate) activation_range: Option<String>,
    /// Input statistics from `briquette calibrate`, instead of --data
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub(crate) statistics: Option<PathBuf>,
    /// Seed of random scores
    #[arg(long, value_name = "N", requires = "prune_method", help_heading = "Pruning")]
    pub(crate) seed: Option<u64>,
    /// Quantize weights with a scheme: int8, int8-dynamic, int8-dynamic-sym, int8-static, int4-g128, int4-g32-dynamic, int5-g32-asym, ...
    #[arg(long, value_name = "SCHEME", help_heading = "Quantization")]
    pub(crate) quantize: Option<String>,
    /// Size budget of the weight files, such as 9.4MB; chooses a step size for each tensor, and uses gptq with
    /// --data
    #[arg(long, value_name = "SIZE", group = "budget", conflicts_with = "range", help_heading = "Budget")]
    pub(crate) bytes: Option<String>,
    /// Bit budget: largest mean number of bits per quantized weight, such as 3.2
    #[arg(long, value_name = "BITS", group = "budget", conflicts_with = "range", help_heading = "Budget")]
    pub(crate) bits: Option<f64>,
    /// Quality budget: lower bound of a metric on --eval, such as cosine=0.99, in the fewest bytes; can be
    /// repeated
    #[arg(long, value_name = "METRIC=VALUE", group = "budget", conflicts_with_all = ["range", "bytes", "bits"], requires = "eval", value_parser = parse_bound, help_heading = "Budget")]
    pub(crate) min: Vec<(String, f64)>,
    /// Quality budget: upper bound of a metric on --eval, such as perplexity=12; can be repeated
    #[arg(long, value_name = "METRIC=VALUE", group = "budget", conflicts_with_all = ["range", "bytes", "bits"], requires = "eval", value_parser = parse_bound, help_heading = "Budget")]
    pub(crate) max: Vec<(String, f64)>,
    /// Evaluate the output and the original model on this data: text, images or an array
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    pub(crate) eval: Option<PathBuf>,
    /// Schemes to choose from for each tensor: step (the default), int8, int4-g64, ... Without step, nothing is
    /// entropy-coded, and schemes may include pruning: int8+0.5,int4-g64+2:4
    #[arg(long, value_name = "SCHEME,...", value_delimiter = ',', requires = "budget", help_heading = "Budget")]
    pub(crate) choices: Option<Vec<String>>,
    /// Experimental: trellis, for codes that take fewer bits at equal quality (needs --data; versions before 9 of the format cannot
    /// read them)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "budget", help_heading = "Budget")]
    pub(crate) experimental: Vec<String>,
    /// How sensitivity is found: gradient (one forward and backward pass), measured (with only this tensor
    /// quantized) or relative (to weights)
    #[arg(long, value_name = "HOW", requires = "budget", help_heading = "Budget")]
    pub(crate) sensitivity: Option<String>,
    /// Loss of `--sensitivity measured`: kl (decoders, classifiers), cosine (of outputs) or metric (accuracy, sts_spearman, ln
    /// perplexity)
    #[arg(long, value_name = "LOSS", requires = "sensitivity", help_heading = "Budget")]
    pub(crate) loss: Option<String>,
    /// Sensitivities from `briquette sensitivity`
    #[arg(long, value_name = "FILE", requires = "budget", conflicts_with = "sensitivity", help_heading = "Budget")]
    pub(crate) sensitivity_file: Option<PathBuf>,
    /// How the range of a group is chosen: absmax, minmax, percentile, mse, hqq (symmetric schemes) or weighted
    /// (needs input statistics)
    #[arg(long, value_name = "RANGE", requires = "quantize", help_heading = "Quantization")]
    pub(crate) range: Option<String>,
    /// How weights are rounded: nearest, or gptq, which updates the remaining weights
    #[arg(long, value_name = "HOW", requires = "rounding", help_heading = "Quantization")]
    pub(crate) round: Option<String>,
    /// Learn the rounding and scales of each block from its outputs on --data; the only method is signround (200 steps)
    #[arg(long, value_name = "HOW", requires = "rounding", help_heading = "Quantization")]
    pub(crate) reconstruct: Option<String>,
    /// Give each column of a linear layer a scale, which multiplies its input before it is rounded, so that rounded inputs
    /// lose less (needs input statistics)
    #[arg(long, requires = "quantize", help_heading = "Quantization")]
    pub(crate) column_scales: bool,
    /// Let biases, and the means of batch norms, take up the mean error of the layer's new weights (needs input statistics)
    #[arg(long, requires = "quantize", help_heading = "Quantization")]
    pub(crate) bias_correction: bool,
    /// Store tensors that are not quantized in another type: f16, bf16 or f32
    #[arg(long, value_name = "TYPE", help_heading = "Quantization")]
    pub(crate) cast: Option<String>,
    /// Only tensors whose name matches; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Tensors")]
    pub(crate) include: Vec<String>,
    /// Skip tensors whose name matches; can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Tensors")]
    pub(crate) exclude: Vec<String>,
    /// Roles to prune (linear,conv): linear, conv, embedding, norm, bias, parameter, unknown
    #[arg(long, value_name = "ROLES", value_delimiter = ',', value_parser = parse_role, requires = "pruning", help_heading = "Pruning")]
    pub(crate) prune_roles: Option<Vec<Role>>,
    /// Roles to quantize (linear,conv,embedding). Below 8 bits, a tied head gets int8 unless embedding is in
    /// the list
    #[arg(long, value_name = "ROLES", value_delimiter = ',', value_parser = parse_role, requires = "rounding", help_heading = "Quantization")]
    pub(crate) quantize_roles: Option<Vec<Role>>,
    /// Format of the output: briquette (the default), compressed-tensors, dense, burnpack, or onnx (only for ONNX models,
    /// where it is the default)
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub(crate) format: Option<String>,
    /// How codes are stored: auto (dense or sparse, whichever is smaller) or entropy
    #[arg(long, value_name = "STORAGE", help_heading = "Output")]
    pub(crate) storage: Option<String>,
    /// Write compressed-tensors even if transformers is not known to load the model
    #[arg(long, help_heading = "Output")]
    pub(crate) allow_untested: bool,
    /// Memory limit, such as 2GiB: fewer threads and smaller pieces, or a refusal
    #[arg(long, value_name = "BYTES", help_heading = "Memory")]
    pub(crate) memory_limit: Option<String>,
    /// Keep only one block's weights in memory during --eval; runs on --data always do
    #[arg(long, help_heading = "Memory")]
    pub(crate) offload: bool,
    /// Accept NaN and infinity: tensors that have any, or would after a cast, are not changed
    #[arg(long, help_heading = "Input")]
    pub(crate) allow_nonfinite: bool,
}

impl What {
    /// Returns the data and statistics that are read.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let named = [&self.statistics, &self.data, &self.eval, &self.sensitivity_file];
        named.into_iter().flatten().map(PathBuf::as_path)
    }
}

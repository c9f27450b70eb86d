//! Flags that make a recipe: what to prune, quantize and cast, and how.

use super::choice::{ChoiceArgs, LayoutArg};
use super::values::{parse_bound, parse_role, parse_sparsity};
use briquette::core::Role;
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};

/// Flags whose place a recipe takes. Those that others require too: clap lets a flag be that cannot have what it requires.
const IN_A_RECIPE: [&str; 25] = [
    "bytes",
    "bits",
    "min",
    "choices",
    "max",
    "eval",
    "sensitivity",
    "sensitivity_file",
    "loss",
    "pruning",
    "scope",
    "prune_method",
    "prune_roles",
    "seed",
    "statistics",
    "data",
    "samples",
    "max_length",
    "round",
    "quantize",
    "range",
    "quantize_roles",
    "cast",
    "include",
    "exclude",
];

/// What to do with a model: a recipe, or flags that make one.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
#[command(group = clap::ArgGroup::new("texts").args(["data", "eval"]).multiple(true))]
#[command(group = clap::ArgGroup::new("budget").multiple(true))]
#[command(group = clap::ArgGroup::new("rounding").args(["quantize", "bytes", "bits", "min", "max"]).multiple(true))]
pub(crate) struct What {
    /// Take the stages from a recipe; MODEL, --key, --strip-prefix, --output, --format, --storage, --layout, --allow-untested and --allow-nonfinite
    /// override its own
    #[arg(long, value_name = "FILE", conflicts_with_all = IN_A_RECIPE, help_heading = "Input")]
    pub(crate) recipe: Option<PathBuf>,
    /// Which of the things in the model's file
    #[command(flatten, next_help_heading = "Input")]
    pub(crate) choice: ChoiceArgs,
    /// Drop this share of the weights, smallest magnitude first: 0 to below 1
    #[arg(long, value_name = "SHARE", group = "pruning", value_parser = parse_sparsity, allow_negative_numbers = true, help_heading = "Pruning")]
    pub(crate) prune: Option<f64>,
    /// Keep N of every M neighbouring inputs instead, such as 2:4
    #[arg(long, visible_alias = "nm", value_name = "N:M", group = "pruning", help_heading = "Pruning")]
    pub(crate) prune_pattern: Option<String>,
    /// Take the share from each tensor by itself (layer), from all together (global), or from each block by its outliers (owl)
    #[arg(long, value_name = "SCOPE", requires = "prune", help_heading = "Pruning")]
    pub(crate) scope: Option<String>,
    /// Score weights by magnitude, or at random as a baseline; by their inputs too: wanda, or sparsegpt and admm, which move what stays
    #[arg(long, value_name = "METHOD", requires = "pruning", help_heading = "Pruning")]
    pub(crate) prune_method: Option<String>,
    /// Run the model on this, for methods that look at the inputs of layers: text, images, an array
    #[arg(long, value_name = "PATH", conflicts_with = "statistics", help_heading = "Data")]
    pub(crate) data: Option<PathBuf>,
    /// The most items of --data that run: sentences, images, or windows of a text (512)
    #[arg(long, value_name = "N", requires = "data", help_heading = "Data")]
    pub(crate) samples: Option<usize>,
    /// Tokens that texts of --data and --eval are cut at
    #[arg(long, value_name = "N", requires = "texts", help_heading = "Data")]
    pub(crate) max_length: Option<usize>,
    /// Statistics of the inputs of layers, instead of --data: a file that `briquette calibrate` writes
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub(crate) statistics: Option<PathBuf>,
    /// Seed of random scores
    #[arg(long, value_name = "N", requires = "prune_method", help_heading = "Pruning")]
    pub(crate) seed: Option<u64>,
    /// Round weights to a grid: int8, int8-dynamic, int8-dynamic-sym, int4-g128, int5-g32-asym, ...
    #[arg(long, value_name = "SCHEME", help_heading = "Quantization")]
    pub(crate) quantize: Option<String>,
    /// Find a step for each tensor, so that weight files have at most this size: 9.4MB. With --data, weights are rounded by gptq
    #[arg(long, value_name = "SIZE", group = "budget", conflicts_with = "range", help_heading = "Budget")]
    pub(crate) bytes: Option<String>,
    /// The same, so that the weights that are rounded have at most so many bits each: 3.2
    #[arg(long, value_name = "BITS", group = "budget", conflicts_with = "range", help_heading = "Budget")]
    pub(crate) bits: Option<f64>,
    /// The same, so that a metric on --eval is at least this, in the fewest bytes: cosine=0.99; may be given several times
    #[arg(long, value_name = "METRIC=VALUE", group = "budget", conflicts_with_all = ["range", "bytes", "bits"], requires = "eval", value_parser = parse_bound, help_heading = "Budget")]
    pub(crate) min: Vec<(String, f64)>,
    /// The same, so that a metric on --eval is at most this: perplexity=12
    #[arg(long, value_name = "METRIC=VALUE", group = "budget", conflicts_with_all = ["range", "bytes", "bits"], requires = "eval", value_parser = parse_bound, help_heading = "Budget")]
    pub(crate) max: Vec<(String, f64)>,
    /// Run the output and the original on this, and tell the metrics: text, images, an array
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    pub(crate) eval: Option<PathBuf>,
    /// What a tensor may have: step (the default), and schemes such as int8,int4-g64; without step nothing is entropy-coded, and schemes may be
    /// pruned: int8+0.5,int4-g64+2:4
    #[arg(long, value_name = "SCHEME,...", value_delimiter = ',', requires = "budget", help_heading = "Budget")]
    pub(crate) choices: Option<Vec<String>>,
    /// What a tensor's error costs: gradient, by one pass over --data and back, measured, with it alone rounded, or relative, to its weights
    #[arg(long, value_name = "HOW", requires = "budget", help_heading = "Budget")]
    pub(crate) sensitivity: Option<String>,
    /// measured: what a loss is counted by: kl (divergence; of decoders and classifiers), cosine (of outputs), or metric (accuracy, sts_spearman, ln perplexity)
    #[arg(long, value_name = "LOSS", requires = "sensitivity", help_heading = "Budget")]
    pub(crate) loss: Option<String>,
    /// What errors cost, as `briquette sensitivity` found it
    #[arg(long, value_name = "FILE", requires = "budget", conflicts_with = "sensitivity", help_heading = "Budget")]
    pub(crate) sensitivity_file: Option<PathBuf>,
    /// How the range of a group is chosen: absmax, minmax, percentile, mse, in symmetric schemes hqq, or, by inputs, weighted
    #[arg(long, value_name = "RANGE", requires = "quantize", help_heading = "Quantization")]
    pub(crate) range: Option<String>,
    /// How weights are rounded: to the nearest, or by gptq, which moves those that follow
    #[arg(long, value_name = "HOW", requires = "rounding", help_heading = "Quantization")]
    pub(crate) round: Option<String>,
    /// Store what is not quantized in another type: f16, bf16 or f32
    #[arg(long, value_name = "TYPE", help_heading = "Quantization")]
    pub(crate) cast: Option<String>,
    /// Only tensors whose name matches; may be given several times
    #[arg(long, value_name = "GLOB", help_heading = "Tensors")]
    pub(crate) include: Vec<String>,
    /// Leave out tensors whose name matches; may be given several times
    #[arg(long, value_name = "GLOB", help_heading = "Tensors")]
    pub(crate) exclude: Vec<String>,
    /// Roles to prune (linear,conv): linear, conv, embedding, norm, bias, parameter, unknown
    #[arg(long, value_name = "ROLES", value_delimiter = ',', value_parser = parse_role, requires = "pruning", help_heading = "Pruning")]
    pub(crate) prune_roles: Option<Vec<Role>>,
    /// Roles to quantize (linear,conv,embedding; below 8 bits an embedding that is the head too stays at int8 unless named here)
    #[arg(long, value_name = "ROLES", value_delimiter = ',', value_parser = parse_role, requires = "rounding", help_heading = "Quantization")]
    pub(crate) quantize_roles: Option<Vec<Role>>,
    /// Format of the output: briquette (the default), compressed-tensors, dense or burnpack
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub(crate) format: Option<String>,
    /// How codes are kept: auto (dense or sparse, the smaller), or entropy (in as many bits as their frequencies say)
    #[arg(long, value_name = "STORAGE", help_heading = "Output")]
    pub(crate) storage: Option<String>,
    /// Write compressed-tensors of models that transformers is not known to load, too
    #[arg(long, help_heading = "Output")]
    pub(crate) allow_untested: bool,
    /// Which way Linear weights lie: torch is [out, in], burn is [in, out]
    #[arg(long, value_enum, help_heading = "Input")]
    pub(crate) layout: Option<LayoutArg>,
    /// Memory that running the model over --data or --eval may take, such as 2GiB
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory_limit: Option<String>,
    /// Have the weights of one block in memory at a time where the model runs: of --data it always does, of --eval with this flag
    #[arg(long)]
    pub(crate) offload: bool,
    /// Accept NaN and infinity: tensors that have any, or would in the type they are cast to, are left as they are
    #[arg(long, help_heading = "Input")]
    pub(crate) allow_nonfinite: bool,
}

impl What {
    /// The data and statistics that are read.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let named = [&self.statistics, &self.data, &self.eval, &self.sensitivity_file];
        named.into_iter().flatten().map(PathBuf::as_path)
    }
}

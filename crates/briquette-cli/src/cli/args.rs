//! Arguments, and the help that goes with them.

use super::batch::SweepArgs;
use super::calibrate::CalibrateArgs;
use super::choice::{ChoiceArgs, ModelArgs};
use super::common::Common;
use super::generate::GenerateArgs;
use super::sensitivity::SensitivityArgs;
use super::stage_flags::What;
use super::values::parse_batch_size;
use briquette::pipeline::recipe::raw::RawBatchSize;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Compress neural networks: prune, quantize, verify what was written, report what it saved.
#[derive(Debug, Parser)]
#[command(name = "briquette", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Flags of every command
    #[command(flatten)]
    pub(crate) common: Common,
}

const EXAMPLES: &str = "Examples:
  briquette compress models/minilm -o out/small --prune 0.4 --quantize int8
  briquette verify out/small --against models/minilm
  briquette diff models/minilm out/small

Exit codes: 0 ok, 1 internal error, 2 usage or configuration, 3 batch partly failed, 4 bad input or a difference
found, 5 I/O, space or memory, 6 refused by policy, 129/130/143 stopped by SIGHUP, SIGINT or SIGTERM. Where nothing
else was printed, --json prints an error too: {\"error\": {\"kind\", \"message\", \"exit_code\"}}.";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List tensors, types, shapes, bytes, roles, and what has been done to the model already
    #[command(after_help = "Example: briquette inspect models/minilm --zeros\n\n\
        Reads safetensors (one file or shards), PyTorch .pt/.pth/.bin of any version, the weights of TorchScript programs, \
        burnpack .bpk, compressed-tensors, and the directories briquette writes. Of a training checkpoint it lists the model \
        and names what else is there; --key chooses.")]
    Inspect {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// Read every weight and count those that are zero
        #[arg(long)]
        zeros: bool,
        /// List every tensor; otherwise layers that are alike share a row
        #[arg(long)]
        all: bool,
        /// Which of the things in its file
        #[command(flatten)]
        choice: ChoiceArgs,
    },
    /// Show what would become of each tensor, and the predicted bytes; writes nothing
    #[command(
        after_help = "Examples:\n  briquette plan models/minilm --quantize int8\n  briquette plan configs/digits-small.toml\n  \
        briquette plan configs/digits-sweep.toml"
    )]
    Plan {
        /// A model, a recipe, or a jobs file
        model: PathBuf,
        /// List every tensor; otherwise layers that are alike share a row
        #[arg(long)]
        all: bool,
        /// What to do with a model
        #[command(flatten)]
        what: What,
    },
    /// Compress a model into a new, verified directory
    #[command(after_help = "Examples:\n  \
        briquette compress models/minilm -o out/int8 --quantize int8\n  \
        briquette compress models/minilm -o out/small --prune 0.4 --quantize int8\n  \
        briquette compress model.pt -o out/two-four --prune-pattern 2:4\n  \
        briquette compress models/minilm -o out/half --cast f16 --format dense\n  \
        briquette compress models/minilm -o out/vllm --quantize int8-dynamic --format compressed-tensors")]
    Compress {
        /// A file, an index of shards, or a directory; may be left out when the recipe names one
        model: Option<PathBuf>,
        /// The directory to write
        #[arg(long, short, value_name = "OUT", help_heading = "Output")]
        output: Option<PathBuf>,
        /// Replace the output if it exists and briquette wrote it
        #[arg(long, help_heading = "Output")]
        force: bool,
        /// What to do with the model
        #[command(flatten)]
        what: What,
    },
    /// Run a recipe, or every job of a jobs file
    #[command(
        after_help = "Examples:\n  briquette run configs/digits-small.toml\n  briquette run configs/digits-sweep.toml\n  \
        briquette run configs/digits-sweep.toml --resume\n  briquette run configs/digits-sweep.toml --shard 0/4\n\n\
        A jobs file has [[job]] tables, or a [matrix] that multiplies a [base]; `briquette recipe schema jobs` has \
        every key. One JSON line for each finished job goes into NAME.journal.jsonl in the directory that holds all \
        outputs, and a page of all jobs into NAME.report.html. A job that fails leaves the others alone; the exit code is then 3."
    )]
    Run {
        /// A recipe, or a jobs file
        recipe: PathBuf,
        /// Replace outputs that exist and that briquette wrote
        #[arg(long)]
        force: bool,
        /// Skip jobs that are done and whose models, data, recipe and output are unchanged
        #[arg(long)]
        resume: bool,
        /// Take every n-th job, starting with the i-th (from 0): i/n, auto (Slurm array or torchrun) or auto/n (Kubernetes)
        #[arg(long, value_name = "I/N")]
        shard: Option<String>,
    },
    /// Train a student to follow a teacher, as a recipe's distill stages say; what was killed goes on where it stood
    #[command(after_help = "Examples:\n  briquette distill configs/digits-teacher.toml\n  \
        briquette distill configs/minilm-recover.toml\n  briquette distill configs/minilm-recover.toml models/minilm -o out/mine\n  \
        briquette distill configs/minilm-recover.toml --devices cuda:0,cuda:1\n\n\
        Runs every stage of the recipe. OUT.stages beside the output keeps what is finished and, while one trains, its \
        checkpoints; run the same command again to go on. report.html of the output shows losses and metrics, and \
        metrics.jsonl has them line by line.")]
    Distill {
        /// A recipe with a distill stage
        recipe: PathBuf,
        /// A file, an index of shards, or a directory, instead of the recipe's model
        model: Option<PathBuf>,
        /// The directory to write, instead of the recipe's
        #[arg(long, short, value_name = "OUT")]
        output: Option<PathBuf>,
        /// Train on several devices, each with a share of the data: cuda:0,cuda:1
        #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
        devices: Vec<String>,
        /// Replace the output if it exists, and begin anew where an unfinished run had another recipe
        #[arg(long)]
        force: bool,
        /// Print lines where a terminal would be drawn on, with curves and what is left to do
        #[arg(long)]
        plain: bool,
    },
    /// Re-read, re-hash and decode an output; finds a single flipped bit
    #[command(after_help = "Example: briquette verify out/small --against models/minilm")]
    Verify {
        /// A directory that briquette wrote
        output: PathBuf,
        /// Recompute every value from this original and compare
        #[arg(long, value_name = "MODEL")]
        against: Option<PathBuf>,
    },
    /// Compare two models: the tensors that differ, and by how much
    #[command(after_help = "Example: briquette diff models/minilm out/small")]
    Diff {
        /// The original
        first: PathBuf,
        /// The other
        second: PathBuf,
        /// List every tensor, equal ones too; otherwise layers that are alike share a row
        #[arg(long)]
        all: bool,
        /// Which of the things in their files
        #[command(flatten)]
        choice: ChoiceArgs,
    },
    /// Run a model, and the one it came from, over data: quality, latency and memory, before and after
    #[command(after_help = "Examples:\n  \
        briquette eval out/small --data sentences.txt --against models/minilm\n  \
        briquette eval out/digits --data fixtures/digits-data.safetensors --against fixtures/digits\n  \
        briquette eval out/small --recipe configs/minilm-gate.toml")]
    Eval {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// What to run it on
        #[command(flatten)]
        what: EvalArgs,
    },
    /// Have a language model go on from a prompt, and the one it came from: does it still speak, and how fast
    #[command(after_help = "Examples:\n  \
        briquette generate models/smollm2 --prompt 'Why is the sky blue?'\n  \
        briquette generate out/small --against models/smollm2 --prompt 'Why is the sky blue?' --max-tokens 64\n  \
        briquette generate out/small --prompts questions.txt --temperature 0.7 --top-p 0.9 --seed 1 --json\n\n\
        The chat template beside the model is used where there is one, unless --raw is given. Text goes to stdout as it comes, \
        figures to stderr. Without --temperature the same model gives the same text each time.")]
    Generate {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// What to go on from, and how
        #[command(flatten)]
        what: GenerateArgs,
    },
    /// Run a model over some data and write statistics of the inputs of its layers, for --prune-method wanda and --range weighted
    #[command(after_help = "Examples:\n  \
        briquette calibrate models/minilm --data sentences.txt -o minilm.stats.safetensors\n  \
        briquette compress models/minilm -o out/small --prune 0.4 --prune-method wanda --statistics minilm.stats.safetensors")]
    Calibrate {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// What to run it on, and where statistics go
        #[command(flatten)]
        what: CalibrateArgs,
    },
    /// Find what a model loses by the error of each tensor, which decides where the bytes of a budget go
    #[command(after_help = "Examples:\n  \
        briquette sensitivity models/minilm --data sentences.txt -o minilm.sensitivity.json\n  \
        briquette sensitivity models/minilm --data sentences.txt --against measured\n  \
        briquette compress models/minilm -o out/small --bytes 9.4MB --sensitivity-file minilm.sensitivity.json")]
    Sensitivity {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// How, and on what
        #[command(flatten)]
        what: SensitivityArgs,
    },
    /// Run a budget at several sizes, and draw quality against bytes
    #[command(after_help = "Examples:\n  \
        briquette sweep models/minilm -o out/sizes --bytes 6MB..23MB --data train.txt --eval held-out.txt --cast f16\n  \
        briquette sweep models/minilm -o out/sizes --bytes 6MB..23MB --data train.txt --eval held-out.txt --also out/int8 --resume\n\n\
        What errors of tensors cost is found once, for all sizes: OUT/sweep.sensitivity.json. The jobs are in OUT/sweep.toml, which \
        `briquette run` takes too, their journal in OUT/sweep.journal.jsonl; the page is OUT/sweep.report.html.")]
    Sweep {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// At what sizes, and where
        #[command(flatten)]
        sweep: SweepArgs,
        /// What to do with the model; --bytes is a range, 6MB..23MB, or a list
        #[command(flatten)]
        what: What,
    },
    /// List what models can run on here: instruction sets and CUDA devices
    #[command(after_help = "Example: briquette devices")]
    Devices,
    /// Convert a model to another format; of a plain checkpoint, dense is a bit-exact conversion
    #[command(
        after_help = "Examples:\n  briquette export out/small --to dense -o out/dense\n  briquette export model.pt --to burnpack -o out/bpk\n  briquette export out/small --to briquette --storage entropy -o out/smaller"
    )]
    Export {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// The format to write: briquette, compressed-tensors, dense or burnpack
        #[arg(long, value_name = "FORMAT")]
        to: String,
        /// How codes are kept: auto (dense or sparse, the smaller), or entropy (in as many bits as their frequencies say)
        #[arg(long, value_name = "STORAGE")]
        storage: Option<String>,
        /// The directory to write
        #[arg(long, short, value_name = "OUT")]
        output: PathBuf,
        /// Write compressed-tensors of models that transformers is not known to load, too
        #[arg(long)]
        allow_untested: bool,
        /// Replace the output if it exists and briquette wrote it
        #[arg(long)]
        force: bool,
        /// Which of the things in its file
        #[command(flatten)]
        choice: ChoiceArgs,
    },
    /// Draw report.html again from report.json, and print the summary
    #[command(after_help = "Example: briquette report out/small")]
    Report {
        /// A directory that briquette wrote
        output: PathBuf,
    },
    /// Print the JSON Schema of recipes, jobs files or reports
    #[command(after_help = "Example: briquette recipe schema > recipe.schema.json")]
    Recipe {
        /// What about recipes
        #[command(subcommand)]
        what: RecipeCommand,
    },
    /// Print shell completions
    #[command(after_help = "Example: briquette completions bash > /etc/bash_completion.d/briquette")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of all commands, in roff
    #[command(after_help = "Example: briquette man > briquette.1")]
    Man,
}

/// What about recipes.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum RecipeCommand {
    /// Print a JSON Schema
    Schema {
        /// Of what
        #[arg(value_enum, default_value = "recipe")]
        of: SchemaOf,
    },
}

/// What a schema is of.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SchemaOf {
    /// A recipe
    Recipe,
    /// A jobs file
    Jobs,
    /// report.json
    Report,
}

/// What to run a model on.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct EvalArgs {
    /// Take data, memory and gate from a recipe; its model is what to compare with
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "against"])]
    pub(crate) recipe: Option<PathBuf>,
    /// Text lines or .jsonl (encoders), a text file (decoders), a folder of classes or an array (classifiers)
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// Labels in a file of their own, where --data is an array; else they are looked for in that
    #[arg(long, value_name = "FILE", requires = "data")]
    pub(crate) labels: Option<PathBuf>,
    /// The model it came from, to compare with
    #[arg(long, value_name = "MODEL")]
    pub(crate) against: Option<PathBuf>,
    /// How to read the models
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Items of a batch, or auto: as many as fit the memory
    #[arg(long, value_name = "N", value_parser = parse_batch_size)]
    pub(crate) batch_size: Option<RawBatchSize>,
    /// Tokens that texts are cut at
    #[arg(long, value_name = "N")]
    pub(crate) max_length: Option<usize>,
    /// Tokens from one window of a decoder's text to the next, at most those of a window; fewer give each token more before it
    #[arg(long, value_name = "N")]
    pub(crate) stride: Option<usize>,
    /// What the shorter side of an image is scaled to, at most 16384
    #[arg(long, value_name = "PIXELS")]
    pub(crate) size: Option<usize>,
    /// Cut images into tiles of at most this height and width, and average what the network says of each
    #[arg(long, value_name = "PIXELS")]
    pub(crate) tile: Option<usize>,
    /// Stop at an image that does not decode, instead of counting it
    #[arg(long)]
    pub(crate) strict: bool,
    /// Refuse what takes more than this to run, such as 4GiB: by its weights before they are loaded, by measuring after
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_limit: Option<String>,
    /// Have the weights of one block of the network in memory at a time, as f32: for models that are larger than the memory
    #[arg(long)]
    pub(crate) offload: bool,
    /// What both models compute in: f32, bf16 or f16; codes that are held compute in f32 only
    #[arg(long, value_name = "TYPE")]
    pub(crate) dtype: Option<String>,
}

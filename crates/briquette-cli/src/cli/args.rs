//! Command-line arguments and their help texts.

use super::batch::SweepArgs;
use super::calibrate::CalibrateArgs;
use super::choice::{ChoiceArgs, ModelArgs, ReadArgs};
use super::common::Common;
use super::generate::GenerateArgs;
use super::graph::GraphArgs;
use super::onnx::OnnxArgs;
use super::sensitivity::SensitivityArgs;
use super::stage_flags::What;
use super::values::parse_batch_size;
use briquette::pipeline::recipe::raw::RawBatchSize;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Compress neural networks: prune, quantize, distill; verify and report the result
#[derive(Debug, Parser)]
#[command(name = "briquette", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The command to run
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Flags of every command
    #[command(flatten)]
    pub(crate) common: Common,
}

const EXAMPLES: &str = "Examples:
  briquette compress models/minilm -o out/int8 --quantize int8
  briquette verify out/int8 --against models/minilm
  briquette diff models/minilm out/int8

Exit codes:
  0    success
  1    internal error
  2    usage or configuration
  3    part of a batch failed
  4    bad input, or a difference found
  5    I/O, space or memory
  6    refused by policy
  129, 130, 143    stopped by SIGHUP, SIGINT or SIGTERM

If nothing was printed before, --json prints errors too:
  {\"error\": {\"kind\", \"message\", \"exit_code\"}}";

/// The command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List tensors with type, shape, size and role, and existing compression
    #[command(after_help = "Example: briquette inspect models/minilm --zeros\n\n\
        Reads safetensors (one file or shards), PyTorch .pt/.pth/.bin of any version, the weights of TorchScript programs, \
        burnpack .bpk, ONNX, compressed-tensors, and outputs of briquette. From a training checkpoint, it lists the model \
        and the names of other entries; --key selects another entry.")]
    Inspect {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// Read every weight and count zeros
        #[arg(long)]
        zeros: bool,
        /// List every tensor; by default, similar layers share a row
        #[arg(long)]
        all: bool,
        /// How to read the file
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Show the network of a known family or of an ONNX model: nodes, weights, shapes, bytes and multiply-adds
    #[command(after_help = "Examples:\n  \
        briquette graph models/minilm --tokens 64\n  \
        briquette graph models/minilm --groups\n  \
        briquette graph models/minilm --html minilm.html\n  \
        briquette graph model.onnx --dim batch=1 --groups\n\n\
        Builds the graph from the headers of the file and config.json, and reads no weights. Bytes are those of dense weights. \
        `briquette recipe schema graph` describes the JSON of --json.")]
    Graph {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// Contents of the report, and its inputs
        #[command(flatten)]
        what: GraphArgs,
    },
    /// Show what happens to each tensor, and the predicted size; writes nothing
    #[command(
        after_help = "Examples:\n  briquette plan models/minilm --quantize int8\n  briquette plan configs/digits-small.toml\n  \
        briquette plan configs/digits-sweep.toml"
    )]
    Plan {
        /// A model, a recipe, or a jobs file
        model: PathBuf,
        /// List every tensor; by default, similar layers share a row
        #[arg(long, help_heading = "Output")]
        all: bool,
        /// The stages to plan
        #[command(flatten)]
        what: What,
    },
    /// Compress a model into a new, verified directory
    #[command(after_help = "Examples:\n  \
        briquette compress models/minilm -o out/int8 --quantize int8\n  \
        briquette compress models/minilm -o out/9mb --bytes 9.4MB --data models/sentences.txt\n  \
        briquette compress model.pt -o out/two-four --prune-pattern 2:4\n  \
        briquette compress models/minilm -o out/half --cast f16 --format dense\n  \
        briquette compress models/minilm -o out/hf --quantize int8-dynamic --format compressed-tensors")]
    Compress {
        /// A file, an index of shards, or a directory; optional if the recipe has a model
        model: Option<PathBuf>,
        /// The directory to write
        #[arg(long, short, value_name = "OUT", help_heading = "Output")]
        output: Option<PathBuf>,
        /// Replace an existing output that briquette wrote
        #[arg(long, help_heading = "Output")]
        force: bool,
        /// The stages to run
        #[command(flatten)]
        what: What,
    },
    /// Run a recipe, or every job of a jobs file
    #[command(
        after_help = "Examples:\n  briquette run configs/digits-small.toml\n  briquette run configs/digits-sweep.toml\n  \
        briquette run configs/digits-sweep.toml --resume\n  briquette run configs/digits-sweep.toml --shard 0/4\n\n\
        A jobs file has [[job]] tables, or a [base] with a [matrix] of values; `briquette recipe schema jobs` lists \
        every key. The journal NAME.journal.jsonl gets one JSON line per finished job, and NAME.report.html shows all jobs. \
        Both are in the common directory of all outputs. If a job fails, the others still run, and the exit code is 3."
    )]
    Run {
        /// A recipe or a jobs file
        recipe: PathBuf,
        /// Replace existing outputs that briquette wrote
        #[arg(long)]
        force: bool,
        /// Skip finished jobs whose models, data, recipe and output are unchanged
        #[arg(long)]
        resume: bool,
        /// Run every N-th job from the I-th (I/N, from 0), or auto. auto reads I and N of Slurm arrays and
        /// torchrun, and auto/N reads I of Kubernetes jobs
        #[arg(long, value_name = "I/N")]
        shard: Option<String>,
    },
    /// Train a student with the distill stages of a recipe; resumes an interrupted run
    #[command(after_help = "Examples:\n  briquette distill configs/digits-teacher.toml\n  \
        briquette distill configs/minilm-recover.toml\n  briquette distill configs/minilm-recover.toml models/minilm -o out/mine\n  \
        briquette distill configs/minilm-recover.toml --devices cuda:0,cuda:1\n\n\
        Runs every stage of the recipe. OUT.stages beside the output keeps finished stages and training \
        checkpoints; run the same command again to resume. report.html of the output shows losses and metrics, and \
        metrics.jsonl has them line by line.")]
    Distill {
        /// A recipe with a distill stage
        recipe: PathBuf,
        /// A file, an index of shards, or a directory; replaces the recipe's model
        model: Option<PathBuf>,
        /// The directory to write; replaces the recipe's output
        #[arg(long, short, value_name = "OUT")]
        output: Option<PathBuf>,
        /// Devices to train on, each with a share of the data: cuda:0,cuda:1
        #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
        devices: Vec<String>,
        /// Replace the output, and restart an unfinished run that had another recipe
        #[arg(long)]
        force: bool,
        /// Print plain lines instead of the live screen with curves and time left
        #[arg(long)]
        plain: bool,
    },
    /// Read, hash and decode an output again; detects a single flipped bit
    #[command(after_help = "Example: briquette verify out/small --against models/minilm")]
    Verify {
        /// A directory that briquette wrote
        output: PathBuf,
        /// Recompute every value from this original model and compare
        #[arg(long, value_name = "MODEL")]
        against: Option<PathBuf>,
    },
    /// Compare two models: the tensors that differ, and by how much
    #[command(after_help = "Example: briquette diff models/minilm out/small")]
    Diff {
        /// The original model
        first: PathBuf,
        /// The other model
        second: PathBuf,
        /// List every tensor, including equal ones; by default, similar layers share a row
        #[arg(long)]
        all: bool,
        /// Which entry of the files is the model
        #[command(flatten)]
        choice: ChoiceArgs,
    },
    /// Measure quality, latency and memory of a model, optionally against the original
    #[command(after_help = "Examples:\n  \
        briquette eval out/small --data sentences.txt --against models/minilm\n  \
        briquette eval out/digits --data fixtures/digits-data.safetensors --against fixtures/digits\n  \
        briquette eval out/small --recipe configs/minilm-gate.toml")]
    Eval {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// The data and how to run
        #[command(flatten)]
        what: EvalArgs,
    },
    /// Generate text from a language model and measure tokens per second
    #[command(after_help = "Examples:\n  \
        briquette generate models/smollm2 --prompt 'Why is the sky blue?'\n  \
        briquette generate out/small --against models/smollm2 --prompt 'Why is the sky blue?' --max-tokens 64\n  \
        briquette generate out/small --prompts questions.txt --temperature 0.7 --top-p 0.9 --seed 1 --json\n\n\
        Prompts use the chat template beside the model, if there is one, except with --raw. Text is streamed to stdout, \
        figures go to stderr. Without --temperature, the same model always generates the same text.")]
    Generate {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// The prompts and how to generate
        #[command(flatten)]
        what: GenerateArgs,
    },
    /// Run a model on data and write input statistics of its layers
    #[command(after_help = "Examples:\n  \
        briquette calibrate models/minilm --data sentences.txt -o minilm.stats.safetensors\n  \
        briquette compress models/minilm -o out/small --prune 0.4 --prune-method wanda --statistics minilm.stats.safetensors")]
    Calibrate {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// The data and the file to write
        #[command(flatten)]
        what: CalibrateArgs,
    },
    /// Measure how much the loss grows if each tensor is quantized; size budgets use the result
    #[command(after_help = "Examples:\n  \
        briquette sensitivity models/minilm --data sentences.txt -o minilm.sensitivity.json\n  \
        briquette sensitivity models/minilm --data sentences.txt --against measured\n  \
        briquette compress models/minilm -o out/small --bytes 9.4MB --sensitivity-file minilm.sensitivity.json")]
    Sensitivity {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// The method and the data
        #[command(flatten)]
        what: SensitivityArgs,
    },
    /// Run a size budget at several sizes, and plot quality against bytes
    #[command(after_help = "Examples:\n  \
        briquette sweep models/minilm -o out/sizes --bytes 6MB..23MB --data train.txt --eval held-out.txt --cast f16\n  \
        briquette sweep models/minilm -o out/sizes --bytes 6MB..23MB --data train.txt --eval held-out.txt --also out/int8 --resume\n\n\
        Sensitivity is measured once for all sizes: OUT/sweep.sensitivity.json. The jobs are in OUT/sweep.toml, which \
        `briquette run` also accepts, the journal is OUT/sweep.journal.jsonl, and the report is OUT/sweep.report.html.")]
    Sweep {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// The sizes and the outputs
        #[command(flatten)]
        sweep: SweepArgs,
        /// The stages to run; --bytes is a range, 6MB..23MB, or a list
        #[command(flatten)]
        what: What,
    },
    /// List the instruction sets and CUDA devices that models can run on
    #[command(after_help = "Example: briquette devices")]
    Devices,
    /// Convert a model to another format; dense is bit-exact for plain checkpoints
    #[command(
        after_help = "Examples:\n  briquette export out/small --to dense -o out/dense\n  briquette export model.pt --to burnpack -o out/bpk\n  briquette export out/small --to briquette --storage entropy -o out/smaller\n  briquette export models/minilm --to onnx -o out/onnx\n  briquette export models/minilm --to onnx --quantize int8-dynamic --statistics minilm.stats.safetensors -o out/onnx-int8\n  briquette export resnet18.pth --to onnx --quantize int8-static --data images -o out/resnet-int8\n\n\
        onnx needs a model of a known family (see `briquette graph`). Inputs and outputs have the names of transformers' own exports. \
        int8-dynamic becomes integer products, codes in groups become MatMulNBits, and all codes are kept. \
        int8-static writes QDQ pairs around convolutions, linear layers, sums and pools: int8 weights by output channel, uint8 activations."
    )]
    Export {
        /// A file, an index of shards, or a directory
        model: PathBuf,
        /// The format to write: briquette, compressed-tensors, dense, burnpack or onnx
        #[arg(long, value_name = "FORMAT")]
        to: String,
        /// How codes are stored: auto (dense or sparse, whichever is smaller) or entropy
        #[arg(long, value_name = "STORAGE")]
        storage: Option<String>,
        /// How to write ONNX
        #[command(flatten)]
        onnx: OnnxArgs,
        /// The directory to write
        #[arg(long, short, value_name = "OUT")]
        output: PathBuf,
        /// Write compressed-tensors even if transformers is not known to load the model
        #[arg(long)]
        allow_untested: bool,
        /// Replace an existing output that briquette wrote
        #[arg(long)]
        force: bool,
        /// How to read the file
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Write report.html again from report.json, and print the summary
    #[command(after_help = "Example: briquette report out/small")]
    Report {
        /// A directory that briquette wrote
        output: PathBuf,
    },
    /// Print the JSON Schema of recipes, jobs files, reports or graphs
    #[command(after_help = "Example: briquette recipe schema > recipe.schema.json")]
    Recipe {
        /// The recipe command
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

/// Commands about recipes.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum RecipeCommand {
    /// Print a JSON Schema
    Schema {
        /// The document that the schema describes
        #[arg(value_enum, default_value = "recipe")]
        of: SchemaOf,
    },
}

/// The document that a schema describes.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SchemaOf {
    /// A recipe
    Recipe,
    /// A jobs file
    Jobs,
    /// report.json
    Report,
    /// The JSON of `briquette graph`
    Graph,
}

/// The data of an evaluation, and how to run it.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct EvalArgs {
    /// Take data, memory and gate from a recipe, and compare with its model
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "against"], help_heading = "Input")]
    pub(crate) recipe: Option<PathBuf>,
    /// Text lines or .jsonl (encoders, text classifiers), a text file (decoders), .jsonl pairs (T5, BART, Whisper), a folder of
    /// classes or an array (image classifiers)
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    pub(crate) data: Option<PathBuf>,
    /// A file of labels for an array; by default, the labels are in --data
    #[arg(long, value_name = "FILE", requires = "data", help_heading = "Data")]
    pub(crate) labels: Option<PathBuf>,
    /// The original model, to compare with
    #[arg(long, value_name = "MODEL", help_heading = "Input")]
    pub(crate) against: Option<PathBuf>,
    /// How to read the models
    #[command(flatten, next_help_heading = "Input")]
    pub(crate) model: ModelArgs,
    /// Number of items in a batch, or auto: as many as fit in memory
    #[arg(long, value_name = "N", value_parser = parse_batch_size, help_heading = "Memory")]
    pub(crate) batch_size: Option<RawBatchSize>,
    /// Truncate texts to this many tokens
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(crate) max_length: Option<usize>,
    /// Tokens between the starts of two windows of a decoder's text, at most the window length. A smaller
    /// stride gives each token more context
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(crate) stride: Option<usize>,
    /// Scale the shorter side of images to this length, at most 16384
    #[arg(long, value_name = "PIXELS", help_heading = "Data")]
    pub(crate) size: Option<usize>,
    /// Cut images into tiles of at most this height and width, and average their outputs
    #[arg(long, value_name = "PIXELS", help_heading = "Data")]
    pub(crate) tile: Option<usize>,
    /// Fail at an image that cannot be decoded, instead of counting it
    #[arg(long, help_heading = "Data")]
    pub(crate) strict: bool,
    /// Memory limit, such as 4GiB; checked with the weights before loading, and with measurements while running
    #[arg(long, value_name = "SIZE", help_heading = "Memory")]
    pub(crate) memory_limit: Option<String>,
    /// Keep only one block's weights in memory at a time, as f32; for models larger than memory
    #[arg(long, help_heading = "Memory")]
    pub(crate) offload: bool,
    /// Float type of computation of both models: f32, bf16 or f16; layers with integer codes use f32 only
    #[arg(long, value_name = "TYPE", help_heading = "Memory")]
    pub(crate) dtype: Option<String>,
}

//! Families of networks: one file and one row each.

mod albert;
mod bart;
mod bert;
mod clip;
mod clip_pooling;
mod convnext;
mod convolution;
mod decoder;
mod densenet;
mod digits;
mod distilbert;
mod efficientnet;
mod efficientnet_lite;
mod electra;
mod encoder;
mod experts;
mod extents;
mod gemma;
mod gpt2;
mod gpt_neox;
mod heads;
mod labels;
mod layers;
mod llama;
mod mobilenet_v2;
mod mobilenet_v2_transformers;
mod mobilenet_v3;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod opt;
mod resnet;
mod resnet_transformers;
mod roberta;
mod rotary;
pub mod shrunk_config;
mod sizes;
mod swin;
mod swin_names;
mod swin_windows;
mod t5;
mod vgg;
mod vit;
mod vit_timm;
mod whisper;

pub use extents::Extents;
pub use labels::{ClassLogits, text_classes};
pub use sizes::TensorShapes;

use crate::config::Config;
use crate::fixed_values::with_grids_of;
use crate::graph::Graph;
use crate::graph_headers::GraphHeaders;
use crate::headers::Headers;
use crate::onnx::{self, InputDims};
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, model_config};
use serde::{Deserialize, Serialize};

/// The task of a network, which determines its data and evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Images to logits of classes.
    Classifier,
    /// Sentences to embeddings.
    Encoder,
    /// Text to logits of the next token.
    Decoder,
    /// A source, which is text or sound, and the beginning of a target to logits of the target's next token.
    EncoderDecoder,
}

impl Task {
    /// Returns whether networks predict the next token of a text.
    pub fn predicts_tokens(self) -> bool {
        matches!(self, Self::Decoder | Self::EncoderDecoder)
    }
}

/// A family of networks.
#[derive(Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// The task of its networks.
    pub task: Task,
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// The names of its networks, where another family has these values too.
    names: Option<&'static [&'static str]>,
    /// Returns whether the tensor names fit this family.
    has_names: fn(&Headers) -> bool,
    /// Builds the graph.
    build: fn(&Headers, &Config, Extents) -> Result<Graph>,
    /// Lists the tensors of a network with the sizes of a `config.json`.
    tensors: Option<TensorsOfSizes>,
    /// How random weights are drawn.
    pub fresh: FreshWeights,
    /// A `config.json` with the usual value of each key that may be absent.
    pub usual_config: &'static str,
    /// Returns which of its names the tensors tell.
    told_by: Option<fn(&Headers) -> Option<&'static str>>,
}

/// Lists tensors from sizes; tensors that only some networks have follow from the headers of another network.
type TensorsOfSizes = fn(&Config, &Headers) -> Result<TensorShapes>;

/// How the random weights of a new network are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreshWeights {
    /// All from one normal distribution, as in transformers.
    Normal,
    /// Convolutions by He et al., linear layers as in torch: see torchvision's ResNets.
    HeNormal,
    /// Uniform below `1 / sqrt(fan_in)`, as in torch.
    Uniform,
}

/// The networks of ONNX models, one for each task. Their graph is in the file.
pub const ONNX_NETWORKS: &[Family] = &[
    Family::new("ONNX classifier", Task::Classifier, &[], has_no_names, in_file).with_names(&["onnx-classifier"]),
    Family::new("ONNX encoder", Task::Encoder, &[], has_no_names, in_file).with_names(&["onnx-encoder"]),
    Family::new("ONNX decoder", Task::Decoder, &[], has_no_names, in_file).with_names(&["onnx-decoder"]),
];

fn has_no_names(_: &Headers) -> bool {
    false
}

fn in_file(_: &Headers, _: &Config, _: Extents) -> Result<Graph> {
    Err(Error::config("found an ONNX model, expected a model of a family; save it as safetensors with its config.json"))
}

const LLAMA_TYPES: &[&str] =
    &["llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "smollm3", "granite", "mixtral", "qwen3_moe"];
const LLAMA_ENCODERS: &[&str] = &[
    "llama-encoder",
    "mistral-encoder",
    "qwen2-encoder",
    "qwen3-encoder",
    "phi3-encoder",
    "olmo2-encoder",
    "smollm3-encoder",
    "granite-encoder",
    "mixtral-encoder",
    "qwen3_moe-encoder",
];
const GEMMA_TYPES: &[&str] = &["gemma", "gemma2", "gemma3", "gemma3_text"];
const GEMMA_ENCODERS: &[&str] = &["gemma-encoder", "gemma2-encoder", "gemma3-encoder", "gemma3_text-encoder"];
const T5_TYPES: &[&str] = &["t5", "mt5"];

/// Every family.
pub const FAMILIES: &[Family] = &[
    Family::new("BERT", Task::Encoder, &["bert"], bert::has_names, bert::build)
        .with_sizes(bert::tensors, FreshWeights::Normal),
    Family::new("RoBERTa", Task::Encoder, &["roberta", "xlm-roberta", "camembert"], roberta::has_names, roberta::build),
    Family::new("DistilBERT", Task::Encoder, &["distilbert"], distilbert::has_names, distilbert::build),
    Family::new("MPNet", Task::Encoder, &["mpnet"], mpnet::has_names, mpnet::build),
    Family::new("ELECTRA", Task::Encoder, &["electra"], electra::has_names, electra::build),
    Family::new("ALBERT", Task::Encoder, &["albert"], albert::has_names, albert::build),
    Family::new("ModernBERT", Task::Encoder, &["modernbert"], modernbert::has_names, modernbert::build),
    Family::new("NomicBERT", Task::Encoder, &["nomic_bert"], nomic_bert::has_names, nomic_bert::build),
    Family::new("T5", Task::EncoderDecoder, T5_TYPES, t5::has_names, t5::build),
    Family::new("T5 encoder", Task::Encoder, T5_TYPES, t5::has_encoder_names, t5::build_encoder)
        .with_names(&["t5-encoder", "mt5-encoder"]),
    Family::new("BART", Task::EncoderDecoder, &["bart", "mbart"], bart::has_names, bart::build),
    Family::new("Whisper", Task::EncoderDecoder, &["whisper"], whisper::has_names, whisper::build),
    Family::new("CLIP", Task::Classifier, clip::MODEL_TYPES, clip::has_images, clip::build),
    Family::new("CLIP text", Task::Encoder, clip::TEXT_MODEL_TYPES, clip::has_texts, clip::build_text),
    Family::new("GPT-2", Task::Decoder, &["gpt2"], gpt2::has_names, gpt2::build),
    Family::new("GPT-NeoX", Task::Decoder, &["gpt_neox"], gpt_neox::has_names, gpt_neox::build),
    Family::new("OPT", Task::Decoder, &["opt"], opt::has_names, opt::build),
    Family::new("Llama", Task::Decoder, LLAMA_TYPES, llama::has_names, llama::build)
        .with_sizes(llama::tensors, FreshWeights::Normal),
    Family::new("Gemma", Task::Decoder, GEMMA_TYPES, gemma::has_names, gemma::build),
    Family::new("GPT-2 encoder", Task::Encoder, &["gpt2"], gpt2::has_encoder_names, gpt2::build)
        .with_names(&["gpt2-encoder"]),
    Family::new("GPT-NeoX encoder", Task::Encoder, &["gpt_neox"], gpt_neox::has_encoder_names, gpt_neox::build)
        .with_names(&["gpt_neox-encoder"]),
    Family::new("OPT encoder", Task::Encoder, &["opt"], opt::has_encoder_names, opt::build)
        .with_names(&["opt-encoder"]),
    Family::new("Llama encoder", Task::Encoder, LLAMA_TYPES, llama::has_encoder_names, llama::build)
        .with_names(LLAMA_ENCODERS),
    Family::new("Gemma encoder", Task::Encoder, GEMMA_TYPES, gemma::has_encoder_names, gemma::build)
        .with_names(GEMMA_ENCODERS),
    Family::new("ViT", Task::Classifier, &["vit", "deit", "dinov2"], vit::has_names, vit::build),
    Family::new("ViT", Task::Classifier, &[], vit_timm::has_names, vit_timm::build),
    Family::new("Swin", Task::Classifier, &["swin"], swin::has_names, swin::build),
    Family::new("MobileNetV2", Task::Classifier, &[], mobilenet_v2::has_names, mobilenet_v2::build),
    Family::new(
        "MobileNetV2",
        Task::Classifier,
        &["mobilenet_v2"],
        mobilenet_v2_transformers::has_names,
        mobilenet_v2_transformers::build,
    ),
    Family::new("MobileNetV3", Task::Classifier, &[], mobilenet_v3::has_names, mobilenet_v3::build),
    // Before EfficientNet, which has some of its names.
    Family::new("ConvNeXt", Task::Classifier, &["convnext"], convnext::has_names, convnext::build),
    Family::new("EfficientNet", Task::Classifier, &[], efficientnet::has_names, efficientnet::build),
    Family::new("EfficientNet-Lite", Task::Classifier, &[], efficientnet_lite::has_names, efficientnet_lite::build),
    Family::new("DenseNet", Task::Classifier, &[], densenet::has_names, densenet::build),
    Family::new("VGG", Task::Classifier, &[], vgg::has_names, vgg::build),
    Family::new(
        "ResNet",
        Task::Classifier,
        &["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"],
        resnet::has_names,
        resnet::build,
    )
    .with_sizes(resnet::tensors, FreshWeights::HeNormal)
    .named_by(resnet::name_of),
    Family::new("ResNet", Task::Classifier, &["resnet"], resnet_transformers::has_names, resnet_transformers::build),
    Family::new("digits", Task::Classifier, &["digits-cnn"], digits::has_names, digits::build)
        .with_sizes(digits::tensors, FreshWeights::Uniform)
        .with_usual(digits::USUAL),
];

impl Family {
    const fn new(
        name: &'static str,
        task: Task,
        model_types: &'static [&'static str],
        has_names: fn(&Headers) -> bool,
        build: fn(&Headers, &Config, Extents) -> Result<Graph>,
    ) -> Self {
        Self {
            name,
            task,
            model_types,
            names: None,
            has_names,
            build,
            tensors: None,
            fresh: FreshWeights::Normal,
            told_by: None,
            usual_config: "{}",
        }
    }

    /// Adds how networks of other sizes are made.
    const fn with_sizes(self, tensors: TensorsOfSizes, fresh: FreshWeights) -> Self {
        Self { tensors: Some(tensors), fresh, ..self }
    }

    /// Adds names for the values of `model_type`, in their order, which another family has too.
    const fn with_names(self, names: &'static [&'static str]) -> Self {
        Self { names: Some(names), ..self }
    }

    /// Adds a `config.json` with usual values.
    const fn with_usual(self, usual_config: &'static str) -> Self {
        Self { usual_config, ..self }
    }

    /// Adds how tensors tell which of its names is meant.
    const fn named_by(self, told_by: fn(&Headers) -> Option<&'static str>) -> Self {
        Self { told_by: Some(told_by), ..self }
    }

    /// Returns whether the tensor names fit this family.
    pub fn has_names(&self, headers: &Headers) -> bool {
        (self.has_names)(headers)
    }

    /// Returns the names of its networks: each `model_type`, or the family's name.
    pub const fn names(&'static self) -> &'static [&'static str] {
        match self.names {
            Some(names) => names,
            None if self.model_types.is_empty() => std::slice::from_ref(&self.name),
            None => self.model_types,
        }
    }

    /// Returns which of its names fits a `model_type`.
    pub fn name_of_type(&'static self, model_type: &str) -> Option<&'static str> {
        let place = self.model_types.iter().position(|known| *known == model_type)?;
        self.names().get(place).copied()
    }

    /// Returns which of its names fits a checkpoint without a `model_type`: the one that tensors tell, or the first.
    pub fn name_of(&'static self, headers: &Headers) -> Option<&'static str> {
        self.told_by.map_or_else(|| self.names().first().copied(), |told_by| told_by(headers))
    }

    /// Returns whether tensors tell which of its names is meant, such as the depth of a ResNet.
    pub fn is_told_by_tensors(&self) -> bool {
        self.told_by.is_some()
    }

    /// Builds and checks the graph of a checkpoint as this family.
    ///
    /// # Errors
    /// See [`build`].
    pub fn graph(&self, headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
        let graph = (self.build)(headers, config, extents)?;
        graph.lower()?;
        Ok(graph)
    }

    /// Lists the tensors of a network with the sizes of a `config.json`, with their shapes.
    ///
    /// Tensors that only some networks have, such as biases, are listed if `like` has them. `None` if the family
    /// cannot be made in other sizes.
    ///
    /// # Errors
    /// Input: a size is missing or invalid.
    pub fn tensors(&self, config: &Config, like: &Headers) -> Result<Option<TensorShapes>> {
        self.tensors.map(|tensors| tensors(config, like)).transpose()
    }
}

/// The family of a checkpoint: by the `model_type`, or by the names of tensors where there is none.
///
/// If several families have the `model_type`, names decide.
pub fn family_of(headers: &Headers, config: &Config) -> Option<&'static Family> {
    match config.model_type() {
        Some(model_type) => {
            let of_type = || FAMILIES.iter().filter(|family| family.model_types.contains(&model_type));
            of_type().find(|family| (family.has_names)(headers)).or_else(|| of_type().next())
        }
        None => FAMILIES.iter().find(|family| (family.has_names)(headers)),
    }
}

/// Builds and checks the graph of a checkpoint; none if no family knows it.
///
/// # Errors
/// - Input: `config.json` is damaged or contradicts the headers.
/// - Input: see [`Graph::lower`].
pub fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Option<Graph>> {
    family_of(headers, config).map(|family| family.graph(headers, config, extents)).transpose()
}

/// Builds the graph of a checkpoint on disk; none if no family knows it. See [`build`].
///
/// # Errors
/// - Input: see [`build`].
/// - Io: `config.json` cannot be read.
pub fn graph_of(checkpoint: &Checkpoint, extents: Extents) -> Result<Option<Graph>> {
    graph_with(checkpoint, &extents.into())
}

/// Builds the graph of a checkpoint on disk for inputs with named extents, which only ONNX models have. See [`graph_of`].
fn graph_with(checkpoint: &Checkpoint, dims: &InputDims) -> Result<Option<Graph>> {
    let at = |error: Error| error.at(briquette_core::shown_path(checkpoint.path()));
    if let Some(file) = checkpoint.network_file() {
        return onnx::import(file, dims).map(Some).map_err(at);
    }
    if let Some(name) = dims.named.keys().next() {
        let message = "only ONNX models have named extents; use --batch, --tokens and --image";
        return Err(Error::config(format!("--dim {name}: {message}")));
    }
    let (tensors, extents) = (GraphHeaders::of(checkpoint), dims.extents);
    let built = parsed(checkpoint).and_then(|config| build(&tensors.headers(), &config, extents));
    built.and_then(|graph| with_grids_of(checkpoint, graph)).map_err(at)
}

/// Builds the graph of a checkpoint on disk, which a family must know.
///
/// # Errors
/// - Input: no family knows the model.
/// - See [`graph_of`].
pub fn known_graph_of(checkpoint: &Checkpoint, dims: &InputDims) -> Result<Graph> {
    match graph_with(checkpoint, dims)? {
        Some(graph) => Ok(graph),
        None => {
            let error = unknown(&GraphHeaders::of(checkpoint).headers(), &parsed(checkpoint)?);
            Err(error.at(briquette_core::shown_path(checkpoint.path())))
        }
    }
}

fn parsed(checkpoint: &Checkpoint) -> Result<Config> {
    Config::parse(model_config::read(checkpoint)?.as_deref())
}

/// An error for a model that no family knows: what was found, what is known, and what works without a graph.
fn unknown(headers: &Headers, config: &Config) -> Error {
    let family = |family: &Family| match family.model_types {
        [] if family.name == "EfficientNet-Lite" => format!("{} (of efficientnet_pytorch)", family.name),
        [] => format!("{} (of torchvision)", family.name),
        types => format!("{} ({})", family.name, types.join(", ")),
    };
    let known: Vec<String> = FAMILIES.iter().map(family).collect();
    let found = match (config.model_type(), headers.names().next()) {
        (Some(model_type), _) => format!("model_type {model_type:?}"),
        (None, Some(name)) => format!("no model_type, and names such as {name:?}"),
        (None, None) => "no tensors".into(),
    };
    let known = known.join(", ");
    Error::input(format!(
        "found {found}, expected a model of a family with a graph: {known}; inspect, plan, compress and export need no graph"
    ))
}

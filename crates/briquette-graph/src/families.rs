//! Families of networks: one file and one row each.

mod albert;
mod bert;
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
mod layers;
mod llama;
mod mobilenet_v2;
mod mobilenet_v3;
mod modernbert;
mod mpnet;
mod opt;
mod resnet;
mod roberta;
mod rotary;
mod vgg;
mod vit;

pub use extents::Extents;

use crate::config::Config;
use crate::graph::Graph;
use crate::headers::Headers;
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, TensorSource, model_config};
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
    /// Returns whether the tensor names fit this family.
    has_names: fn(&Headers) -> bool,
    /// Builds the graph.
    build: fn(&Headers, &Config, Extents) -> Result<Graph>,
}

/// Every family.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "BERT",
        task: Task::Encoder,
        model_types: &["bert"],
        has_names: bert::has_names,
        build: bert::build,
    },
    Family {
        name: "RoBERTa",
        task: Task::Encoder,
        model_types: &["roberta", "xlm-roberta", "camembert"],
        has_names: roberta::has_names,
        build: roberta::build,
    },
    Family {
        name: "DistilBERT",
        task: Task::Encoder,
        model_types: &["distilbert"],
        has_names: distilbert::has_names,
        build: distilbert::build,
    },
    Family {
        name: "MPNet",
        task: Task::Encoder,
        model_types: &["mpnet"],
        has_names: mpnet::has_names,
        build: mpnet::build,
    },
    Family {
        name: "ELECTRA",
        task: Task::Encoder,
        model_types: &["electra"],
        has_names: electra::has_names,
        build: electra::build,
    },
    Family {
        name: "ALBERT",
        task: Task::Encoder,
        model_types: &["albert"],
        has_names: albert::has_names,
        build: albert::build,
    },
    Family {
        name: "ModernBERT",
        task: Task::Encoder,
        model_types: &["modernbert"],
        has_names: modernbert::has_names,
        build: modernbert::build,
    },
    Family {
        name: "GPT-2",
        task: Task::Decoder,
        model_types: &["gpt2"],
        has_names: gpt2::has_names,
        build: gpt2::build,
    },
    Family {
        name: "GPT-NeoX",
        task: Task::Decoder,
        model_types: &["gpt_neox"],
        has_names: gpt_neox::has_names,
        build: gpt_neox::build,
    },
    Family { name: "OPT", task: Task::Decoder, model_types: &["opt"], has_names: opt::has_names, build: opt::build },
    Family {
        name: "Llama",
        task: Task::Decoder,
        model_types: &[
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "phi3",
            "olmo2",
            "smollm3",
            "granite",
            "mixtral",
            "qwen3_moe",
        ],
        has_names: llama::has_names,
        build: llama::build,
    },
    Family {
        name: "Gemma",
        task: Task::Decoder,
        model_types: &["gemma", "gemma2", "gemma3_text"],
        has_names: gemma::has_names,
        build: gemma::build,
    },
    Family {
        name: "ViT",
        task: Task::Classifier,
        model_types: &["vit", "deit", "dinov2"],
        has_names: vit::has_names,
        build: vit::build,
    },
    Family {
        name: "MobileNetV2",
        task: Task::Classifier,
        model_types: &[],
        has_names: mobilenet_v2::has_names,
        build: mobilenet_v2::build,
    },
    Family {
        name: "MobileNetV3",
        task: Task::Classifier,
        model_types: &[],
        has_names: mobilenet_v3::has_names,
        build: mobilenet_v3::build,
    },
    // Before EfficientNet, which has some of its names.
    Family {
        name: "ConvNeXt",
        task: Task::Classifier,
        model_types: &["convnext"],
        has_names: convnext::has_names,
        build: convnext::build,
    },
    Family {
        name: "EfficientNet",
        task: Task::Classifier,
        model_types: &[],
        has_names: efficientnet::has_names,
        build: efficientnet::build,
    },
    Family {
        name: "EfficientNet-Lite",
        task: Task::Classifier,
        model_types: &[],
        has_names: efficientnet_lite::has_names,
        build: efficientnet_lite::build,
    },
    Family {
        name: "DenseNet",
        task: Task::Classifier,
        model_types: &[],
        has_names: densenet::has_names,
        build: densenet::build,
    },
    Family { name: "VGG", task: Task::Classifier, model_types: &[], has_names: vgg::has_names, build: vgg::build },
    Family {
        name: "ResNet",
        task: Task::Classifier,
        model_types: &[],
        has_names: resnet::has_names,
        build: resnet::build,
    },
    Family {
        name: "digits",
        task: Task::Classifier,
        model_types: &["digits-cnn"],
        has_names: digits::has_names,
        build: digits::build,
    },
];

impl Family {
    /// Returns whether the tensor names fit this family.
    pub fn has_names(&self, headers: &Headers) -> bool {
        (self.has_names)(headers)
    }
}

/// The family of a checkpoint: by the `model_type`, or by the names of tensors where there is none.
pub fn family_of(headers: &Headers, config: &Config) -> Option<&'static Family> {
    match config.model_type() {
        Some(model_type) => FAMILIES.iter().find(|family| family.model_types.contains(&model_type)),
        None => FAMILIES.iter().find(|family| (family.has_names)(headers)),
    }
}

/// Builds and checks the graph of a checkpoint; none if no family knows it.
///
/// # Errors
/// - Input: `config.json` is damaged or contradicts the headers.
/// - Input: see [`Graph::lower`].
pub fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Option<Graph>> {
    let Some(family) = family_of(headers, config) else { return Ok(None) };
    let graph = (family.build)(headers, config, extents)?;
    graph.lower()?;
    Ok(Some(graph))
}

/// Builds the graph of a checkpoint on disk; none if no family knows it. See [`build`].
///
/// # Errors
/// - Input: see [`build`].
/// - Io: `config.json` cannot be read.
pub fn graph_of(checkpoint: &Checkpoint, extents: Extents) -> Result<Option<Graph>> {
    let found = parsed(checkpoint).and_then(|config| build(&headers(checkpoint), &config, extents));
    found.map_err(|error| error.at(briquette_core::shown_path(checkpoint.path())))
}

/// Builds the graph of a checkpoint on disk, which a family must know.
///
/// # Errors
/// - Input: no family knows the model.
/// - See [`graph_of`].
pub fn known_graph_of(checkpoint: &Checkpoint, extents: Extents) -> Result<Graph> {
    match graph_of(checkpoint, extents)? {
        Some(graph) => Ok(graph),
        None => {
            let error = unknown(&headers(checkpoint), &parsed(checkpoint)?);
            Err(error.at(briquette_core::shown_path(checkpoint.path())))
        }
    }
}

fn headers(checkpoint: &Checkpoint) -> Headers<'_> {
    Headers::new(checkpoint.tensors(), checkpoint.layout())
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

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

/// A family of networks.
#[derive(Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// Returns whether the tensor names fit this family.
    has_names: fn(&Headers) -> bool,
    /// Builds the graph.
    build: fn(&Headers, &Config, Extents) -> Result<Graph>,
}

/// Every family.
pub const FAMILIES: &[Family] = &[
    Family { name: "BERT", model_types: &["bert"], has_names: bert::has_names, build: bert::build },
    Family {
        name: "RoBERTa",
        model_types: &["roberta", "xlm-roberta", "camembert"],
        has_names: roberta::has_names,
        build: roberta::build,
    },
    Family {
        name: "DistilBERT",
        model_types: &["distilbert"],
        has_names: distilbert::has_names,
        build: distilbert::build,
    },
    Family { name: "MPNet", model_types: &["mpnet"], has_names: mpnet::has_names, build: mpnet::build },
    Family { name: "ELECTRA", model_types: &["electra"], has_names: electra::has_names, build: electra::build },
    Family { name: "ALBERT", model_types: &["albert"], has_names: albert::has_names, build: albert::build },
    Family {
        name: "ModernBERT",
        model_types: &["modernbert"],
        has_names: modernbert::has_names,
        build: modernbert::build,
    },
    Family { name: "GPT-2", model_types: &["gpt2"], has_names: gpt2::has_names, build: gpt2::build },
    Family { name: "GPT-NeoX", model_types: &["gpt_neox"], has_names: gpt_neox::has_names, build: gpt_neox::build },
    Family { name: "OPT", model_types: &["opt"], has_names: opt::has_names, build: opt::build },
    Family {
        name: "Llama",
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
        model_types: &["gemma", "gemma2", "gemma3_text"],
        has_names: gemma::has_names,
        build: gemma::build,
    },
    Family { name: "ViT", model_types: &["vit", "deit", "dinov2"], has_names: vit::has_names, build: vit::build },
    Family { name: "MobileNetV2", model_types: &[], has_names: mobilenet_v2::has_names, build: mobilenet_v2::build },
    Family { name: "MobileNetV3", model_types: &[], has_names: mobilenet_v3::has_names, build: mobilenet_v3::build },
    // Before EfficientNet, which has some of its names.
    Family { name: "ConvNeXt", model_types: &["convnext"], has_names: convnext::has_names, build: convnext::build },
    Family { name: "EfficientNet", model_types: &[], has_names: efficientnet::has_names, build: efficientnet::build },
    Family {
        name: "EfficientNet-Lite",
        model_types: &[],
        has_names: efficientnet_lite::has_names,
        build: efficientnet_lite::build,
    },
    Family { name: "DenseNet", model_types: &[], has_names: densenet::has_names, build: densenet::build },
    Family { name: "VGG", model_types: &[], has_names: vgg::has_names, build: vgg::build },
    Family { name: "ResNet", model_types: &[], has_names: resnet::has_names, build: resnet::build },
    Family { name: "digits", model_types: &["digits-cnn"], has_names: digits::has_names, build: digits::build },
];

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

/// Builds the graph of a checkpoint on disk; see [`build`].
///
/// # Errors
/// - Input: see [`build`].
/// - Io: `config.json` cannot be read.
pub fn graph_of(checkpoint: &Checkpoint, extents: Extents) -> Result<Option<Graph>> {
    let bytes = model_config::read(checkpoint)?;
    let headers = Headers::new(checkpoint.tensors(), checkpoint.layout());
    let found = Config::parse(bytes.as_deref()).and_then(|config| build(&headers, &config, extents));
    found.map_err(|error| error.at(briquette_core::shown_path(checkpoint.path())))
}

/// An error for a model that no family knows.
pub fn unknown(config: &Config) -> Error {
    let known: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
    let found = match config.model_type() {
        Some(model_type) => format!("found model_type {model_type:?}"),
        None => "found names of no known family".into(),
    };
    Error::input(format!("{found}, expected a model of the families {}", known.join(", ")))
}

//! Families of networks: one file and one row each.

mod bert;
mod digits;
mod extents;
mod layers;
mod llama;
mod resnet;

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
        name: "Llama",
        model_types: &["llama", "mistral", "qwen2"],
        has_names: llama::has_names,
        build: llama::build,
    },
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

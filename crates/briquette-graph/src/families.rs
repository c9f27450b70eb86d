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
        [] => family.name.to_string(),
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

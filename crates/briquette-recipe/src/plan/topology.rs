//! The structure of a model's network: its graph, or the names of its tensors where there is no graph.

use crate::Recipe;
use crate::raw::RawLayout;
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorSource, WeightLayout, model_config};
use briquette_graph::families::build;
use briquette_graph::onnx::{self, InputDims};
use briquette_graph::{Config, Extents, Graph, GraphHeaders};

/// Largest number of tensors for which a graph is built. A graph takes about a kilobyte for each tensor.
const MAX_TENSORS: usize = 100_000;

/// The evidence for roles, output axes, siblings and heads of a model.
#[derive(Debug)]
pub enum Topology {
    /// The graph of a known family or of an ONNX model.
    Graph(Box<Graph>),
    /// Names and shapes of tensors, and why there is no graph; no reason if no family fits.
    Names(Option<String>),
}

impl Topology {
    /// Builds the graph of a checkpoint from its headers and `config.json`.
    ///
    /// `layout` is the layout of its Linear weights; PyTorch's if it is absent.
    ///
    /// # Errors
    /// Input or Io: `config.json` cannot be read. A damaged or contradicting `config.json` is no error: names decide.
    pub fn of(checkpoint: &Checkpoint, layout: Option<WeightLayout>) -> Result<Self> {
        let n_tensors = checkpoint.tensors().len();
        if n_tensors > MAX_TENSORS {
            return Ok(Self::Names(Some(format!("{n_tensors} tensors are too many for a graph"))));
        }
        if let Some(file) = checkpoint.network_file() {
            return Ok(match onnx::import(file, &InputDims::default()) {
                Ok(graph) => Self::Graph(Box::new(graph)),
                Err(error) => Self::Names(Some(error.to_string())),
            });
        }
        let bytes = model_config::read(checkpoint)?;
        let tensors = GraphHeaders::new(checkpoint.tensors(), layout);
        let built =
            Config::parse(bytes.as_deref()).and_then(|config| build(&tensors.headers(), &config, Extents::default()));
        Ok(match built {
            Ok(Some(graph)) => Self::Graph(Box::new(graph)),
            Ok(None) => Self::Names(None),
            Err(error) => Self::Names(Some(error.to_string())),
        })
    }

    /// Returns the graph, if there is one.
    pub fn graph(&self) -> Option<&Graph> {
        match self {
            Self::Graph(graph) => Some(graph),
            Self::Names(_) => None,
        }
    }
}

/// Returns the structure of a recipe's model: its graph, or names where there is none.
///
/// # Errors
/// See [`Topology::of`].
pub fn topology_of(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<Topology> {
    Topology::of(checkpoint, layout_of(recipe, checkpoint))
}

/// Returns the layout of Linear weights that the recipe or the checkpoint sets.
pub(super) fn layout_of(recipe: &Recipe, checkpoint: &Checkpoint) -> Option<WeightLayout> {
    recipe.layout.map(RawLayout::said).or_else(|| checkpoint.layout())
}

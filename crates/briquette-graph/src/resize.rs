//! Tensors of a transformer with the sizes of another config.json.
//!
//! The use of each weight's axes in the graph tells what they count: hidden states, heads, inner features. Each count
//! has a key in config.json. Axes that count anything else, such as words and labels, keep their extents.

mod kinds;
mod sizes;

use crate::config::Config;
use crate::families::TensorShapes;
use crate::graph::{Graph, Weight, WeightId};
use briquette_core::{Error, OutputAxis, Result};
use kinds::{AxisKind, weight_kinds};
use sizes::Sizes;
pub use sizes::is_size;

/// Lists the tensors of a network with the sizes of `after`, where `graph` has the sizes of `before`.
///
/// Further layers have the tensors of the last one.
///
/// # Errors
/// - Config: the graph has convolutions beside the patches of images, or `before` does not explain an axis.
/// - Input: a size is missing or invalid.
pub fn resized(graph: &Graph, before: &Config, after: &Config) -> Result<TensorShapes> {
    let (old, new) = (Sizes::of(before, graph)?, Sizes::of(after, graph)?);
    let kinds = weight_kinds(graph)?;
    let shape = |id: usize| new_shape(&graph.weights[id], kinds[id].as_ref(), [&old, &new]);
    let (mut found, mut has_layers) = (TensorShapes::default(), false);
    let layers = NumberedLayers::of(graph);
    for (id, weight) in graph.weights.iter().enumerate() {
        let Some(layers) = layers.as_ref().filter(|layers| layers.place(&weight.name).is_some()) else {
            found.0.push((weight.name.clone(), shape(id)?));
            continue;
        };
        if !std::mem::replace(&mut has_layers, true) {
            for layer in 0..new.layers {
                let like = layer.min(old.layers - 1);
                for (id, weight) in
                    graph.weights.iter().enumerate().filter(|(_, weight)| layers.place(&weight.name) == Some(like))
                {
                    found.0.push((layers.renamed(&weight.name, like, layer), shape(id)?));
                }
            }
        }
    }
    if !has_layers && new.layers != old.layers && !shares_layers(graph) {
        return Err(Error::config("its layers have no numbers in their names; keep their number"));
    }
    Ok(found)
}

/// Whether every block uses the same weights, as in ALBERT.
fn shares_layers(graph: &Graph) -> bool {
    let weights = |index: usize| -> Vec<WeightId> {
        graph.nodes[graph.blocks[index].nodes.clone()]
            .iter()
            .flat_map(|node| node.weights().map(|(_, id)| id))
            .collect()
    };
    (1..graph.blocks.len()).all(|index| weights(index) == weights(0))
}

fn new_shape(weight: &Weight, kinds: Option<&Vec<AxisKind>>, [old, new]: [&Sizes; 2]) -> Result<Vec<usize>> {
    let mut shape = weight.shape.0.clone();
    let Some(kinds) = kinds else { return Ok(shape) };
    let is_turned = weight.layout == OutputAxis::Last && shape.len() == 2;
    for (axis, kind) in kinds.iter().enumerate() {
        let extent = &mut shape[if is_turned { 1 - axis } else { axis }];
        if let Some(expected) = kind.extent(old) {
            if expected != *extent {
                let message =
                    format!("found {extent} {}, expected {expected} by config.json; keep the sizes", kind.words());
                return Err(Error::config(message).at(&weight.name));
            }
            *extent = kind.extent(new).unwrap_or(*extent);
        }
    }
    Ok(shape)
}

/// Blocks whose paths end with their numbers, such as `encoder.layer.3`.
struct NumberedLayers {
    prefix: String,
    n: usize,
}

impl NumberedLayers {
    fn of(graph: &Graph) -> Option<Self> {
        let prefix = graph.blocks.first()?.name.strip_suffix('0')?.to_string();
        let is_numbered = |(index, block): (usize, &crate::graph::Block)| block.name == format!("{prefix}{index}");
        let n = graph.blocks.len();
        (prefix.ends_with('.') && graph.blocks.iter().enumerate().all(is_numbered)).then_some(Self { prefix, n })
    }

    /// The number of the layer that a tensor belongs to.
    fn place(&self, name: &str) -> Option<usize> {
        let (number, _) = name.strip_prefix(&self.prefix)?.split_once('.')?;
        number.parse().ok().filter(|place| *place < self.n)
    }

    fn renamed(&self, name: &str, from: usize, to: usize) -> String {
        let rest = &name[self.prefix.len() + from.to_string().len()..];
        format!("{}{to}{rest}", self.prefix)
    }
}

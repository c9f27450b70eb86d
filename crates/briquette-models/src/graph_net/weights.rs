//! Creates the layers of a graph, and finds them by weight.

use super::exact::ExactNodes;
use super::layer::{ConvShape, GraphLayer};
use super::named_layers::NamedLayers;
use crate::fresh::Initial;
use briquette_core::{Error, Result};
use briquette_graph::op::{Composite, ConvSettings, ElementFunction, Primitive};
use briquette_graph::{Graph, InputSource, Node, Op, Operand, WeightId};
use burn::tensor::Device;
use std::collections::{BTreeMap, BTreeSet};

/// The layer of each weight, by its index in [`NamedLayers`].
#[derive(Debug, Clone, Default)]
pub(super) struct LayerIndex {
    of_weight: BTreeMap<WeightId, usize>,
    shapes: BTreeMap<WeightId, Vec<usize>>,
    tables: BTreeSet<WeightId>,
    /// The nodes and constants of an ONNX model; `None` for families.
    exact: Option<ExactNodes>,
}

impl LayerIndex {
    /// Returns the index of the same layers for another graph of an ONNX model, whose weights have the same names.
    ///
    /// # Errors
    /// Config: the other graph uses weights that this one does not.
    pub(super) fn of_same_layers(&self, own: &Graph, other: &Graph, shapes: &[Vec<usize>]) -> Result<Self> {
        let exact = ExactNodes::of(other, shapes);
        let names: BTreeMap<&str, WeightId> =
            self.of_weight.keys().map(|weight| (own.weights[weight.0].name.as_str(), *weight)).collect();
        let mut found = Self { exact: Some(exact), ..Self::default() };
        for (at, weight) in
            other.weights.iter().enumerate().filter(|(_, weight)| !other.constants.contains_key(&weight.name))
        {
            let Some(known) = names.get(weight.name.as_str()) else {
                let message =
                    "found a weight that an input of another shape does not need; export the model for one shape";
                return Err(Error::config(message).at(format_args!("{:?}", weight.name)));
            };
            let id = WeightId(at);
            found.of_weight.insert(id, self.of_weight[known]);
            found.shapes.insert(id, weight.shape.0.clone());
            if self.tables.contains(known) {
                found.tables.insert(id);
            }
        }
        Ok(found)
    }

    /// Returns whether the graph was built for the shapes of its inputs.
    pub(super) fn is_exact(&self) -> bool {
        self.exact.is_some()
    }

    /// Returns whether a node takes its weights as inputs.
    pub(super) fn is_functional(&self, node: usize) -> bool {
        self.exact.as_ref().is_some_and(|exact| exact.functional.contains(&node))
    }

    /// Returns whether the graph holds the elements of a weight.
    pub(super) fn is_constant(&self, weight: WeightId) -> bool {
        self.exact.as_ref().is_some_and(|exact| exact.constants.contains(&weight))
    }

    /// Returns the layer of a weight.
    ///
    /// # Panics
    /// If the operand is no weight of the graph.
    pub(super) fn of_operand(&self, operand: &Operand) -> usize {
        match operand {
            Operand::Weight(weight) => self.of_weight[weight],
            Operand::Value(value) => panic!("value {} is no weight", value.0),
        }
    }

    /// Returns the layer of a weight; `None` if no needed node uses it.
    pub(super) fn of_weight(&self, weight: WeightId) -> Option<usize> {
        self.of_weight.get(&weight).copied()
    }

    /// Returns whether a weight is an embedding table.
    pub(super) fn is_table(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Weight(weight) if self.tables.contains(weight))
    }

    /// Returns every weight.
    pub(super) fn weights(&self) -> impl Iterator<Item = WeightId> + '_ {
        self.of_weight.keys().copied()
    }

    /// Returns the shape of a weight in the checkpoint.
    pub(super) fn shape(&self, weight: WeightId) -> &[usize] {
        &self.shapes[&weight]
    }
}

/// The layers of a graph, with uninitialized weights.
pub(super) struct BlankLayers {
    pub(super) layers: NamedLayers,
    pub(super) index: LayerIndex,
    /// The paths of parameters whose tensors have another name in the checkpoint, with that name.
    pub(super) renames: Vec<(String, String)>,
}

/// Creates the layers of the nodes in `needed`.
///
/// # Errors
/// Config: an operation cannot be run.
pub(super) fn blank_layers(
    graph: &Graph,
    exact: Option<ExactNodes>,
    needed: &[usize],
    initial: Initial,
    device: &Device,
) -> Result<BlankLayers> {
    let index = LayerIndex { exact, ..LayerIndex::default() };
    let mut to = Blank { graph, initial, device, layers: Vec::new(), index, renames: Vec::new() };
    for &place in needed {
        let node = &graph.nodes[place];
        to.add(place, node).map_err(|error| error.at(format!("operation {:?}", node.name)))?;
    }
    to.layers.shrink_to_fit();
    Ok(BlankLayers { layers: NamedLayers(to.layers), index: to.index, renames: to.renames })
}

struct Blank<'a> {
    graph: &'a Graph,
    initial: Initial,
    device: &'a Device,
    layers: Vec<(String, GraphLayer)>,
    index: LayerIndex,
    renames: Vec<(String, String)>,
}

impl Blank<'_> {
    fn add(&mut self, place: usize, node: &Node) -> Result<()> {
        match &node.op {
            _ if self.index.is_functional(place) => {
                node.weights().try_for_each(|(_, weight)| self.add_parameter(weight))
            }
            Op::Primitive(Primitive::Gather) if self.index.is_exact() => {
                node.weights().try_for_each(|(_, weight)| self.add_parameter(weight))
            }
            Op::Composite(composite) => self.add_composite(composite, node),
            Op::Primitive(Primitive::Conv(settings)) => self.add_conv(settings, node),
            Op::Primitive(primitive) => {
                check_runs(primitive)?;
                node.weights().try_for_each(|(_, weight)| self.add_parameter(weight))
            }
        }
    }

    fn shape(&self, weight: WeightId) -> &[usize] {
        self.graph.weights[weight.0].shape.0.as_slice()
    }

    fn add_composite(&mut self, composite: &Composite, node: &Node) -> Result<()> {
        let device = self.device;
        let weights: Vec<WeightId> = node.weights().map(|(_, weight)| weight).collect();
        let Some(&first) = weights.first() else { return Ok(()) };
        let shape = self.shape(first).to_vec();
        let has_bias = weights.len() > 1;
        if matches!(composite, Composite::SeparateExperts { .. }) {
            return weights.into_iter().try_for_each(|weight| self.add_matrix(weight));
        }
        let layer = match (composite, shape.as_slice()) {
            (Composite::Linear, _) if self.index.tables.contains(&first) => return self.tie_head(first, &weights[1..]),
            (Composite::Linear, &[a, b]) => {
                let is_turned = self.graph.weights[first.0].layout == briquette_core::OutputAxis::Last;
                GraphLayer::Linear(self.initial.linear(if is_turned { [b, a] } else { [a, b] }, has_bias, device))
            }
            (Composite::Embedding, &[n, width]) => {
                self.index.tables.insert(first);
                let padding = self.initial.padding.filter(|_| self.looks_up_words(node));
                GraphLayer::Embedding(self.initial.table([n, width], padding, device))
            }
            (Composite::LayerNorm { eps }, &[width]) => GraphLayer::layer_norm(width, *eps, has_bias, device),
            (Composite::RmsNorm { eps, .. } | Composite::HeadNorm { eps, .. }, &[width]) => {
                GraphLayer::rms_norm(width, *eps, device)
            }
            (Composite::PrependTokens | Composite::Attention(_), _) => {
                return weights.into_iter().try_for_each(|weight| self.add_parameter(weight));
            }
            (Composite::BatchNorm { eps }, &[width]) => GraphLayer::batch_norm(width, *eps, device),
            _ => return Err(Error::config(format!("a {} of weights {shape:?} cannot be run", composite.name()))),
        };
        let fields: &[&str] = match composite {
            Composite::BatchNorm { .. } => &["gamma", "beta", "running_mean", "running_var"],
            Composite::LayerNorm { .. } | Composite::RmsNorm { .. } | Composite::HeadNorm { .. } => &["gamma", "beta"],
            _ => &["weight", "bias"],
        };
        self.push(layer, &weights, fields);
        Ok(())
    }

    fn looks_up_words(&self, embedding: &Node) -> bool {
        let ids = self.graph.inputs.iter().find(|input| input.source == InputSource::TokenIds);
        ids.is_some_and(|ids| embedding.inputs.get(1) == Some(&Operand::Value(ids.value)))
    }

    /// Adds a linear layer of one weight: a matrix of an expert.
    fn add_matrix(&mut self, weight: WeightId) -> Result<()> {
        let shape = <[usize; 2]>::try_from(self.shape(weight));
        let shape = shape.map_err(|_| Error::config("a matrix of an expert has two axes, others cannot be run"))?;
        self.push(GraphLayer::Linear(self.initial.linear(shape, false, self.device)), &[weight], &["weight"]);
        Ok(())
    }

    fn add_conv(&mut self, settings: &ConvSettings, node: &Node) -> Result<()> {
        let weights: Vec<WeightId> = node.weights().map(|(_, weight)| weight).collect();
        let shape = weights.first().map(|&first| self.shape(first).to_vec()).unwrap_or_default();
        if let (&[a, b, c], 1, false) = (shape.as_slice(), settings.stride.len(), settings.transposed) {
            let layer = GraphLayer::conv1d([a, b, c], settings, weights.len() > 1, self.device);
            self.push(layer, &weights, &["weight", "bias"]);
            return Ok(());
        }
        let pair = |list: &[usize]| <[usize; 2]>::try_from(list).ok();
        let known = || {
            let shape: [usize; 4] = shape.as_slice().try_into().ok().filter(|_| !settings.transposed)?;
            let (stride, padding) = (pair(&settings.stride)?, pair(&settings.padding)?);
            let conv = ConvShape { stride, padding, dilation: pair(&settings.dilation)?, groups: settings.groups };
            Some(GraphLayer::conv(shape, &conv, weights.len() > 1, &self.initial, self.device))
        };
        let layer =
            known().ok_or_else(|| Error::config(format!("a convolution of weights {shape:?} cannot be run")))?;
        self.push(layer, &weights, &["weight", "bias"]);
        Ok(())
    }

    /// Marks an embedding table as the head too, and adds the bias of the head.
    fn tie_head(&mut self, table: WeightId, bias: &[WeightId]) -> Result<()> {
        let layer = &mut self.layers[self.index.of_weight[&table]].1;
        if let GraphLayer::Embedding(embedding) = layer {
            *embedding = embedding.clone().as_head();
        }
        bias.iter().try_for_each(|bias| self.add_parameter(*bias))
    }

    /// Adds a weight that belongs to no layer.
    fn add_parameter(&mut self, weight: WeightId) -> Result<()> {
        if self.index.is_constant(weight) {
            return Ok(());
        }
        let shape = self.shape(weight).to_vec();
        let layer = GraphLayer::parameter(&shape, &self.initial, self.device)
            .ok_or_else(|| Error::config(format!("found a weight {shape:?}, expected 1 to 4 axes")))?;
        if !self.index.of_weight.contains_key(&weight) {
            self.index.of_weight.insert(weight, self.layers.len());
            self.index.shapes.insert(weight, shape);
            self.layers.push((self.graph.weights[weight.0].name.clone(), layer));
        }
        Ok(())
    }

    /// Adds a layer with these weights, unless an earlier node has it.
    fn push(&mut self, layer: GraphLayer, weights: &[WeightId], fields: &[&str]) {
        if self.index.of_weight.contains_key(&weights[0]) {
            return;
        }
        let name = self.graph.weights[weights[0].0].name.as_str();
        // A weight such as `attention.in_proj_weight` has a path of its own: `attention` has other layers below it.
        let path = match name.rsplit_once('.') {
            Some((path, "weight" | "gamma")) => path.to_string(),
            _ => name.to_string(),
        };
        for (weight, field) in weights.iter().zip(fields) {
            self.index.of_weight.insert(*weight, self.layers.len());
            self.index.shapes.insert(*weight, self.shape(*weight).to_vec());
            let expected = match *field {
                "gamma" => "weight",
                "beta" => "bias",
                other => other,
            };
            let (found, expected) = (&self.graph.weights[weight.0].name, format!("{path}.{expected}"));
            if *found != expected {
                self.renames.push((expected, found.clone()));
            }
        }
        self.layers.push((path, layer));
    }
}

/// Refuses primitives that the interpreter does not run.
pub(super) fn check_runs(primitive: &Primitive) -> Result<()> {
    use ElementFunction::{Constant, Foreign, Mask};
    let runs = match primitive {
        Primitive::Elementwise(Foreign(name)) => super::foreign::runs(name),
        Primitive::Elementwise(function) => !matches!(function, Constant | Mask),
        Primitive::PerChannel { .. } | Primitive::Gather => false,
        Primitive::Route { .. } | Primitive::Spatial { .. } | Primitive::Unknown { .. } => false,
        Primitive::AdaptivePool(size) => size.len() == 2 || size.iter().all(|extent| *extent == 1),
        Primitive::Pool(window) => window.size.len() == 2,
        _ => true,
    };
    match runs {
        true => Ok(()),
        false => Err(Error::config(format!("{:?} cannot be run", primitive.name()))),
    }
}

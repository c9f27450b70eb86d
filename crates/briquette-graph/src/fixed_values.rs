//! Activations on fixed grids: the values that need one, and the graph whose values are rounded.
//!
//! Inputs of layers with static int8 activations are rounded to a grid. Around convolutions, more values are: the terms of a sum, the
//! parts of a concatenation and the input of a pool, if the result is rounded too. Integer codes then pass from layer to layer.
//! A value that something else reads stays a float there. Queries, keys and values of self-attention have grids of their own.

mod attention;
mod nodes;

use crate::graph::{Graph, Node, Operand, ValueId};
use crate::op::{Composite, ElementFunction, FixedGrid, Op, Primitive, Reduction};
use attention::is_self_attention;
use briquette_core::{Error, Result};
use briquette_formats::{ActivationGrids, Checkpoint, ValueGrid};
use nodes::{rounded_for, with_rounded_layers};
use std::collections::{BTreeMap, BTreeSet};

pub use attention::{AttentionOperands, attention_operands};
pub(crate) use nodes::insert;

/// A value that needs a fixed grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedValue {
    /// The value.
    pub value: ValueId,
    /// The value whose range the grid covers: itself, or the input of a pool or reshape.
    pub range_of: ValueId,
}

/// Returns the values that need a grid, in the order of their computation.
///
/// `is_static` tells from the name of a weight whether the inputs of its layer are rounded.
///
/// # Errors
/// Input: see [`Graph::lower`].
pub fn fixed_values(graph: &Graph, is_static: &dyn Fn(&str) -> bool) -> Result<Vec<FixedValue>> {
    let shapes = graph.lower()?.shapes;
    let mut rounding = ChosenValues::new(graph, is_static);
    for index in (0..graph.nodes.len()).rev() {
        rounding.look_at(index, &shapes);
    }
    let ChosenValues { ranges, .. } = rounding;
    let root = |mut value: ValueId| {
        while let Some(&next) = ranges.get(&value).filter(|next| **next != value) {
            value = next;
        }
        value
    };
    let found = ranges.keys().map(|&value| FixedValue { value, range_of: root(value) });
    Ok(found.collect())
}

/// The fixed grids of a network's activations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FixedGrids {
    /// The grid of each value, by its name in the graph.
    pub values: BTreeMap<String, FixedGrid>,
    /// The names of weights whose layers have rounded inputs.
    pub weights: BTreeSet<String>,
    /// The grid of the inputs of each linear layer, by the name of its weight, if the network rounds them instead of the layers.
    pub layers: BTreeMap<String, FixedGrid>,
}

impl FixedGrids {
    /// Reads the grids of a checkpoint; none if it has no static activations, or is an ONNX model.
    ///
    /// # Errors
    /// See [`ActivationGrids::of`].
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let weights = checkpoint.static_weights().map(str::to_string).collect();
        Ok(Self::new(&ActivationGrids::of(checkpoint)?, weights))
    }

    /// Takes the grids of values in a file. Layers round their own inputs.
    pub fn new(grids: &ActivationGrids, weights: BTreeSet<String>) -> Self {
        Self { values: of_codes(&grids.values), weights, layers: BTreeMap::new() }
    }

    /// Takes all grids of a file, for a training whose layers do not round their inputs.
    pub fn of_training(grids: &ActivationGrids, weights: BTreeSet<String>) -> Self {
        Self { layers: of_codes(&grids.layers), ..Self::new(grids, weights) }
    }

    /// Returns the graph with a node that rounds each value, for the operations that [`fixed_values`] chose it for.
    ///
    /// # Errors
    /// Input: the graph has no value with a name.
    pub fn apply(&self, graph: Graph) -> Result<Graph> {
        let graph = match self.values.is_empty() {
            true => graph,
            false => with_fixed_grids(graph, &self.values, &|name| self.weights.contains(name))?,
        };
        Ok(with_rounded_layers(graph, &self.layers))
    }
}

fn of_codes(grids: &BTreeMap<String, ValueGrid>) -> BTreeMap<String, FixedGrid> {
    let grid = |grid: &ValueGrid| FixedGrid { scale: grid.scale as f32, zero: grid.zero.into(), codes: [0, 255] };
    grids.iter().map(|(name, found)| (name.clone(), grid(found))).collect()
}

/// Returns the graph of a checkpoint, if there is one, with nodes that round the values for which the checkpoint has grids.
///
/// # Errors
/// See [`FixedGrids::of`] and [`FixedGrids::apply`].
pub(crate) fn with_grids_of(checkpoint: &Checkpoint, graph: Option<Graph>) -> Result<Option<Graph>> {
    graph.map(|graph| FixedGrids::of(checkpoint)?.apply(graph)).transpose()
}

/// Returns the graph with a node that rounds each value with a grid, for the operations that read its codes.
///
/// # Errors
/// Input: the graph has no value with a name.
fn with_fixed_grids(
    mut graph: Graph,
    grids: &BTreeMap<String, FixedGrid>,
    is_static: &dyn Fn(&str) -> bool,
) -> Result<Graph> {
    let rounding = ChosenValues::new(&graph, is_static);
    let named = |name: &String| graph.values.iter().position(|value| value == name).map(ValueId);
    let mut found = BTreeMap::new();
    for (name, grid) in grids {
        let message = || Error::input(format!("the network has no value {name:?}, for which there is a grid"));
        found.insert(named(name).ok_or_else(message)?, *grid);
    }
    let is_fixed = |value: ValueId| found.contains_key(&value);
    let readers: Vec<Vec<usize>> = found.keys().map(|value| rounding.readers_of_codes(*value, &is_fixed)).collect();
    let mut new = Vec::new();
    for ((value, grid), readers) in found.iter().zip(readers) {
        new.extend(rounded_for(&mut graph, *value, *grid, &readers));
    }
    new.sort_by_key(|(place, _)| *place);
    insert(&mut graph, new);
    Ok(graph)
}

/// The values that were chosen so far.
struct ChosenValues<'a> {
    graph: &'a Graph,
    is_static: &'a dyn Fn(&str) -> bool,
    /// The nodes that read each value.
    readers: BTreeMap<ValueId, Vec<usize>>,
    outputs: BTreeSet<ValueId>,
    /// The chosen values, each with the value whose range it has.
    ranges: BTreeMap<ValueId, ValueId>,
}

impl<'a> ChosenValues<'a> {
    fn new(graph: &'a Graph, is_static: &'a dyn Fn(&str) -> bool) -> Self {
        let mut readers: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            let values: BTreeSet<ValueId> = node.values().map(|(_, value)| value).collect();
            values.into_iter().for_each(|value| readers.entry(value).or_default().push(index));
        }
        let outputs = graph.outputs.iter().copied().collect();
        Self { graph, is_static, readers, outputs, ranges: BTreeMap::new() }
    }

    /// Chooses the inputs of a node. Later nodes were looked at before.
    fn look_at(&mut self, index: usize, shapes: &[Vec<usize>]) {
        let node = &self.graph.nodes[index];
        if self.is_static_layer(node) {
            let input = node.values().next().map(|(_, input)| self.before_zeros(input));
            input.into_iter().for_each(|input| self.choose(input, input));
            return;
        }
        let Some(is_same) = passes_codes(node) else { return };
        let inputs: Vec<ValueId> = node.values().map(|(_, value)| value).collect();
        let output = node.outputs[0];
        let are_images = inputs.iter().all(|input| shapes[input.0].len() == 4);
        let is_sum = node.op == Op::Primitive(Primitive::Elementwise(ElementFunction::Add));
        let are_equal = !is_sum || inputs.len() == 2 && inputs.iter().all(|input| shapes[input.0] == shapes[output.0]);
        let is_fixed = |value: ValueId| self.ranges.contains_key(&value);
        let reads_codes = |reader: &usize| *reader == index || self.takes_codes(*reader, &is_fixed);
        let have_codes = |input: &ValueId| {
            !self.outputs.contains(input) && self.readers.get(input).is_some_and(|all| all.iter().all(reads_codes))
        };
        if !are_images || !are_equal || !self.ends_in(output, is_sum, &is_fixed) || !inputs.iter().all(have_codes) {
            return;
        }
        if is_same {
            self.ranges.insert(output, inputs[0]);
        }
        inputs.into_iter().for_each(|input| self.choose(input, input));
    }

    /// Returns the value to which zeros are added, if the value is read once and has zeros around an image. They are on every grid.
    fn before_zeros(&self, value: ValueId) -> ValueId {
        let maker = self.graph.nodes.iter().find(|node| node.outputs.contains(&value));
        let padded = maker.filter(|node| adds_zeros(node) && self.is_read_once(value));
        padded.and_then(|node| node.values().next()).map_or(value, |(_, input)| input)
    }

    fn is_read_once(&self, value: ValueId) -> bool {
        !self.outputs.contains(&value) && self.readers.get(&value).is_some_and(|readers| readers.len() == 1)
    }

    fn choose(&mut self, value: ValueId, range_of: ValueId) {
        self.ranges.entry(value).or_insert(range_of);
    }

    /// Returns whether a node is a layer whose inputs are rounded.
    fn is_static_layer(&self, node: &Node) -> bool {
        let is_layer = matches!(node.op, Op::Primitive(Primitive::Conv(_)) | Op::Composite(Composite::Linear));
        let weight = node.inputs.get(1).filter(|_| is_layer);
        matches!(weight, Some(Operand::Weight(weight)) if (self.is_static)(&self.graph.weights[weight.0].name))
    }

    /// Returns whether a node only adds zeros to the input of a layer whose inputs are rounded.
    fn pads_static_layer(&self, node: &Node) -> bool {
        let is_read_by_layer = |reader: &usize| self.is_static_layer(&self.graph.nodes[*reader]);
        adds_zeros(node)
            && self.is_read_once(node.outputs[0])
            && self.readers[&node.outputs[0]].iter().all(is_read_by_layer)
    }

    /// Returns whether a node reads codes, if these values are rounded.
    fn takes_codes(&self, index: usize, is_fixed: &dyn Fn(ValueId) -> bool) -> bool {
        let node = &self.graph.nodes[index];
        let is_sum = node.op == Op::Primitive(Primitive::Elementwise(ElementFunction::Add));
        self.is_static_layer(node)
            || self.pads_static_layer(node)
            || is_self_attention(node) && node.values().all(|(_, operand)| is_fixed(operand))
            || passes_codes(node).is_some()
                && node.values().all(|(_, input)| is_fixed(input))
                && self.ends_in(node.outputs[0], is_sum, is_fixed)
    }

    /// Returns the nodes that read the codes of a value, if these values are rounded.
    fn readers_of_codes(&self, value: ValueId, is_fixed: &dyn Fn(ValueId) -> bool) -> Vec<usize> {
        let all = self.readers.get(&value).into_iter().flatten().copied();
        all.filter(|reader| self.takes_codes(*reader, is_fixed)).collect()
    }

    /// Returns whether a value is rounded, or a ReLU of it that is its only use.
    fn ends_in(&self, value: ValueId, has_relu: bool, is_fixed: &dyn Fn(ValueId) -> bool) -> bool {
        if is_fixed(value) {
            return true;
        }
        let only = self.readers.get(&value).filter(|_| has_relu && !self.outputs.contains(&value));
        let Some(&[reader]) = only.map(Vec::as_slice) else { return false };
        let node = &self.graph.nodes[reader];
        let is_relu = |function: &ElementFunction| matches!(function, ElementFunction::Relu | ElementFunction::Relu6);
        matches!(&node.op, Op::Primitive(Primitive::Elementwise(function)) if is_relu(function))
            && is_fixed(node.outputs[0])
    }
}

/// Returns whether a node adds zeros around the height and the width of images.
fn adds_zeros(node: &Node) -> bool {
    match &node.op {
        Op::Primitive(Primitive::PadSame { size, .. }) => size.len() == 2,
        Op::Primitive(Primitive::Pad { before, after }) => {
            [before, after].iter().all(|zeros| zeros.len() == 4 && zeros[..2] == [0, 0])
        }
        _ => false,
    }
}

/// Returns whether an operation computes codes from codes: of the same grid, or (false) of its own.
fn passes_codes(node: &Node) -> Option<bool> {
    let Op::Primitive(primitive) = &node.op else { return None };
    match primitive {
        Primitive::Pool(window) if window.kind == Reduction::Max => Some(true),
        Primitive::Reshape(_) => Some(true),
        Primitive::Elementwise(ElementFunction::Add) | Primitive::Concat { axis: 1 } => Some(false),
        Primitive::AdaptivePool(size) if *size == [1, 1] => Some(false),
        Primitive::Reduce { axes, kind: Reduction::Mean } if *axes == [2, 3] => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::{Extents, build};
    use crate::op::ConvSettings;
    use crate::{Config, GraphBuilder, Headers};
    use briquette_core::DType;
    use briquette_formats::TensorInfo;

    /// Returns the graph of a ResNet-18 with the widths of torchvision.
    fn resnet() -> Graph {
        let config = Config::parse(Some(br#"{"model_type":"resnet18","num_labels":10}"#)).unwrap();
        let family = crate::family_of(&Headers::new(&[], None), &config).unwrap();
        let tensors = family.tensors(&config, &Headers::new(&[], None)).unwrap().unwrap().0;
        let tensors: Vec<TensorInfo> =
            tensors.into_iter().map(|(name, shape)| TensorInfo::checked(name, DType::F32, shape).unwrap()).collect();
        build(&Headers::new(&tensors, None), &config, Extents::default()).unwrap().unwrap()
    }

    fn names(graph: &Graph, found: &[FixedValue]) -> BTreeMap<String, String> {
        let name = |value: ValueId| graph.values[value.0].clone();
        found.iter().map(|fixed| (name(fixed.value), name(fixed.range_of))).collect()
    }

    fn grids(graph: &Graph, found: &[FixedValue]) -> BTreeMap<String, FixedGrid> {
        let grid = FixedGrid { scale: 0.5, zero: 3, codes: [0, 255] };
        names(graph, found).into_keys().map(|name| (name, grid)).collect()
    }

    #[test]
    fn a_training_rounds_the_inputs_of_chosen_layers_alone() {
        let graph = resnet();
        let grid = FixedGrid { scale: 0.5, zero: 3, codes: [0, 255] };
        let layers = BTreeMap::from([("fc.weight".to_string(), grid), ("conv1.weight".to_string(), grid)]);
        let rounded = with_rounded_layers(graph.clone(), &layers);
        assert_eq!(rounded.nodes.len(), graph.nodes.len() + 1, "a convolution is no linear layer");
        let node = |name: &str| rounded.nodes.iter().find(|node| node.name == name).unwrap();
        assert_eq!(node("flatten.rounded").op, Op::Primitive(Primitive::FakeQuantize(grid)));
        assert_eq!(node("fc").inputs[0], node("flatten.rounded").outputs[0].into());
        rounded.lower().unwrap();
    }

    #[test]
    fn codes_pass_through_sums_pools_and_reshapes() {
        let graph = resnet();
        let found = fixed_values(&graph, &|_| true).unwrap();
        let named = names(&graph, &found);
        // 20 inputs of convolutions and of the linear layer with two of the same value, the other term of eight sums, and pools.
        for (value, range) in [
            ("images", "images"),
            ("relu", "relu"),
            ("maxpool", "relu"),
            ("layer1.0.relu1", "layer1.0.relu1"),
            ("layer1.0.bn2", "layer1.0.bn2"),
            ("layer2.0.downsample.1", "layer2.0.downsample.1"),
            ("layer4.1.relu", "layer4.1.relu"),
            ("avgpool", "avgpool"),
            ("flatten", "avgpool"),
        ] {
            assert_eq!(named.get(value).map(String::as_str), Some(range), "{value}: {named:?}");
        }
        let rounded = with_fixed_grids(graph.clone(), &grids(&graph, &found), &|_| true).unwrap();
        assert_eq!(rounded.nodes.len(), graph.nodes.len() + found.len());
        let shapes = rounded.lower().unwrap().shapes;
        assert_eq!(shapes[rounded.outputs[0].0], graph.lower().unwrap().shapes[graph.outputs[0].0]);
        // Each block has its nodes and those that round their inputs.
        for (old, new) in graph.blocks.iter().zip(&rounded.blocks) {
            let (old, new) = (&graph.nodes[old.nodes.clone()], &rounded.nodes[new.nodes.clone()]);
            let kept: Vec<&str> =
                new.iter().map(|node| &*node.name).filter(|name| !name.ends_with(".rounded")).collect();
            assert_eq!(kept, old.iter().map(|node| &*node.name).collect::<Vec<_>>());
            assert!(new[0].name.ends_with(".rounded") || new.len() > old.len());
        }
    }

    #[test]
    fn values_that_something_else_reads_stay_floats_there() {
        let graph = resnet();
        // Without the second convolution of a block, its sum is one of floats.
        let is_static = |name: &str| name != "layer1.1.conv1.weight";
        let found = fixed_values(&graph, &is_static).unwrap();
        let named = names(&graph, &found);
        assert!(!named.contains_key("layer1.0.relu") && !named.contains_key("layer1.0.bn2"), "{named:?}");
        assert!(named.contains_key("layer1.0.relu1") && named.contains_key("maxpool"));
        let rounded = with_fixed_grids(graph.clone(), &grids(&graph, &found), &is_static).unwrap();
        let reads = |name: &str| {
            let node = rounded.nodes.iter().find(|node| node.name == name).unwrap();
            node.values().map(|(_, value)| rounded.values[value.0].clone()).collect::<Vec<_>>()
        };
        assert_eq!(reads("layer1.0.conv1"), ["maxpool.rounded"]);
        assert_eq!(reads("layer1.0.residual"), ["layer1.0.bn2", "maxpool"]);
        assert_eq!(reads("layer1.1.conv1"), ["layer1.0.relu"]);
    }

    #[test]
    fn values_are_rounded_before_zeros_are_added() {
        let tensor =
            |name: &str, shape: &[usize]| TensorInfo::checked(name.into(), DType::F32, shape.to_vec()).unwrap();
        let tensors = [tensor("a.weight", &[4, 3, 3, 3]), tensor("b.weight", &[4, 1, 3, 3])];
        let headers = Headers::new(&tensors, None);
        let mut to = GraphBuilder::new("small", &headers);
        let x = to.input("images", &[1, 3, 8, 8]);
        let x = to.conv("a", x, ConvSettings::square(1, 1)).unwrap();
        let pad = Primitive::PadSame { size: vec![3; 2], stride: vec![2; 2] };
        let x = to.node("pad", pad, &[x.into()]);
        let y = to.conv("b", x, ConvSettings::square(2, 0).with_groups(4)).unwrap();
        let graph = to.finish(&[y]);
        let found = fixed_values(&graph, &|_| true).unwrap();
        assert_eq!(names(&graph, &found).into_keys().collect::<Vec<_>>(), ["a", "images"]);
        let rounded = with_fixed_grids(graph.clone(), &grids(&graph, &found), &|_| true).unwrap();
        let pad = rounded.nodes.iter().find(|node| node.name == "pad").unwrap();
        assert_eq!(rounded.values[pad.values().next().unwrap().1.0], "a.rounded");
    }

    #[test]
    fn a_grid_without_a_value_is_refused() {
        let graph = resnet();
        let grid = FixedGrid { scale: 1.0, zero: 0, codes: [0, 255] };
        let unknown = BTreeMap::from([("layer9".to_string(), grid)]);
        let error = with_fixed_grids(graph, &unknown, &|_| true).unwrap_err();
        assert_eq!((error.exit_code(), error.message.contains("layer9")), (4, true), "{error}");
    }
}

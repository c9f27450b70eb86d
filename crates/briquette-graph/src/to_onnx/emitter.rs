//! Collects nodes and constants, and gives every value a name.

use super::dims::{SymbolicDim, SymbolicGraph};
use super::weights::{OnnxFloat, OnnxWeight, WeightBytes, WeightForms};
use crate::graph::{Graph, InputSource, NodeId, Operand, ValueId, WeightId};
use crate::order::place;
use briquette_core::rows::from_f32;
use briquette_core::{DType, Error};
use briquette_formats::onnx_write::{OnnxAttribute, OnnxData, OnnxModel, OnnxNode, OnnxTensor, OnnxType};
use std::collections::{BTreeMap, BTreeSet};

/// Attributes of an operator.
pub(super) type Attributes = Vec<(&'static str, OnnxAttribute)>;

/// The operators that no opset below 17 has.
const OPSET_17: [&str; 1] = ["LayerNormalization"];
/// The first opset with scales for blocks of an axis.
pub(super) const OPSET_OF_BLOCKS: i64 = 21;
/// The first opset in which every reduction takes its axes as an input.
const OPSET_OF_AXES: i64 = 18;
const USUAL_OPSET: i64 = 13;

/// A model in progress.
pub(super) struct Emitter<'a> {
    pub(super) symbolic: &'a SymbolicGraph,
    pub(super) forms: &'a dyn WeightForms,
    pub(super) float: OnnxFloat,
    pub(super) model: OnnxModel,
    /// The ONNX name of each value of the graph.
    values: Vec<Option<String>>,
    weights: Vec<OnnxWeight>,
    /// Names of streamed tensors.
    streamed: BTreeMap<OnnxWeight, String>,
    /// Names of constants in memory, by type, shape and bytes.
    constants: BTreeMap<(OnnxType, Vec<usize>, Vec<u8>), String>,
    /// Inputs times the vector with this number, in f32.
    pub(super) scaled_inputs: BTreeMap<(String, usize), String>,
    /// Codes, scale and zero point of inputs of integer products, by the number of the vector that multiplies the input.
    pub(super) rounded_inputs: BTreeMap<(String, Option<usize>), [String; 3]>,
    /// Values that several nodes share, such as masks.
    shared: BTreeMap<String, String>,
    names: BTreeSet<String>,
    /// The values that follow from the target of a decoder with an encoder.
    pub(super) targets: BTreeSet<ValueId>,
    /// The graph's node that is converted.
    scope: String,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(symbolic: &'a SymbolicGraph, float: OnnxFloat, forms: &'a dyn WeightForms) -> Self {
        let family = &symbolic.graph.family;
        let name = if family.is_empty() { "network".into() } else { family.clone() };
        Self {
            symbolic,
            forms,
            float,
            model: OnnxModel { name, opset: USUAL_OPSET, ..OnnxModel::default() },
            values: vec![None; symbolic.graph.values.len()],
            weights: Vec::new(),
            streamed: BTreeMap::new(),
            constants: BTreeMap::new(),
            scaled_inputs: BTreeMap::new(),
            rounded_inputs: BTreeMap::new(),
            shared: BTreeMap::new(),
            names: BTreeSet::new(),
            targets: targets_of(&symbolic.graph),
            scope: String::new(),
        }
    }

    /// Continues the model of a file, which has these weights and had these nodes.
    pub(super) fn of_file(
        symbolic: &'a SymbolicGraph,
        float: OnnxFloat,
        forms: &'a dyn WeightForms,
        model: OnnxModel,
        weights: Vec<OnnxWeight>,
        nodes: &[OnnxNode],
    ) -> Self {
        let inputs = model.inputs.iter().map(|input| input.name.clone());
        let tensors = model.tensors.iter().map(|tensor| tensor.name.clone());
        let values = nodes.iter().flat_map(|node| node.outputs.iter().chain(node.uses())).cloned();
        // A new node has the name of its first result.
        let own = nodes.iter().map(|node| node.name.clone());
        let names = inputs.chain(tensors).chain(values).chain(own).collect();
        Self { model, weights, names, ..Self::new(symbolic, float, forms) }
    }

    /// Ends the model. Returns it with its weights and the name of each value.
    pub(super) fn finish(mut self) -> (OnnxModel, Vec<OnnxWeight>, Vec<Option<String>>) {
        self.enter("");
        if self.model.opset >= OPSET_OF_AXES {
            (0..self.model.nodes.len()).for_each(|at| self.give_axes(at));
        }
        (self.model, self.weights, self.values)
    }

    /// Turns the axes of a new reduction from an attribute into an input.
    fn give_axes(&mut self, at: usize) {
        let node = &mut self.model.nodes[at];
        if node.carried.is_some() || !["ReduceMax", "ReduceMean"].contains(&&*node.op) {
            return;
        }
        let axes = node.attributes.iter().find_map(|(name, value)| match value {
            OnnxAttribute::Ints(axes) if name == "axes" => Some(axes.clone()),
            _ => None,
        });
        let Some(axes) = axes else { return };
        node.attributes.retain(|(name, _)| name != "axes");
        let axes = self.ints(&axes);
        self.model.nodes[at].inputs.push(axes);
    }

    /// Begins a node of the graph: names of values begin with its name.
    pub(super) fn enter(&mut self, name: &str) {
        name.clone_into(&mut self.scope);
    }

    /// An error about an operation without a form in ONNX.
    pub(super) fn refused(&self, node: NodeId, what: &str) -> Error {
        Error::input(format!("{what}, which has no form in ONNX; export to another format"))
            .at(place(&self.symbolic.graph, node.0))
    }

    /// The type of floats.
    pub(super) fn float_type(&self) -> OnnxType {
        match self.float {
            OnnxFloat::F32 => OnnxType::F32,
            OnnxFloat::F16 => OnnxType::F16,
        }
    }

    /// Returns a name that nothing else has.
    pub(super) fn unique(&mut self, wanted: &str) -> String {
        let numbered = (1..).map(|n| format!("{wanted}_{n}"));
        let mut names = std::iter::once(wanted.to_string()).chain(numbered);
        let name = names.find(|name| !self.names.contains(name)).unwrap_or_default();
        self.names.insert(name.clone());
        name
    }

    /// Adds an operator with one output.
    pub(super) fn op(&mut self, op: &'static str, inputs: &[&str], attributes: Attributes) -> String {
        self.ops(op, inputs, attributes, 1).remove(0)
    }

    /// Adds an operator without attributes.
    pub(super) fn plain(&mut self, op: &'static str, inputs: &[&str]) -> String {
        self.op(op, inputs, Vec::new())
    }

    /// Adds an operator with `n` outputs.
    pub(super) fn ops(&mut self, op: &'static str, inputs: &[&str], attributes: Attributes, n: usize) -> Vec<String> {
        self.in_domain("", op, inputs, attributes, n)
    }

    /// Adds an operator of any domain.
    pub(super) fn in_domain(
        &mut self,
        domain: &'static str,
        op: &'static str,
        inputs: &[&str],
        attributes: Attributes,
        n: usize,
    ) -> Vec<String> {
        if OPSET_17.contains(&op) {
            self.model.opset = self.model.opset.max(17);
        }
        let wanted = if self.scope.is_empty() { op.to_string() } else { format!("{}/{op}", self.scope) };
        let outputs: Vec<String> = (0..n).map(|_| self.unique(&wanted)).collect();
        let inputs = inputs.iter().map(|name| (*name).to_string()).collect();
        self.model.nodes.push(OnnxNode::new((domain, op), inputs, outputs.clone(), attributes));
        outputs
    }

    /// Converts to another type.
    pub(super) fn cast(&mut self, x: &str, to: OnnxType) -> String {
        self.op("Cast", &[x], vec![("to", OnnxAttribute::Int(to.number()))])
    }

    /// Permutes axes.
    pub(super) fn transpose(&mut self, x: &str, permutation: &[usize]) -> String {
        let axes = permutation.iter().map(|axis| *axis as i64).collect();
        self.op("Transpose", &[x], vec![("perm", OnnxAttribute::Ints(axes))])
    }

    /// Adds axes of extent 1.
    pub(super) fn unsqueeze(&mut self, x: &str, axes: &[i64]) -> String {
        let axes = self.ints(axes);
        self.plain("Unsqueeze", &[x, &axes])
    }

    /// Cuts an axis into parts.
    pub(super) fn split(&mut self, x: &str, axis: usize, sizes: &[usize]) -> Vec<String> {
        let list: Vec<i64> = sizes.iter().map(|size| *size as i64).collect();
        let list = self.ints(&list);
        self.ops("Split", &[x, &list], vec![("axis", OnnxAttribute::Int(axis as i64))], sizes.len())
    }

    /// Joins values along an axis.
    pub(super) fn concat(&mut self, inputs: &[&str], axis: usize) -> String {
        self.op("Concat", inputs, vec![("axis", OnnxAttribute::Int(axis as i64))])
    }

    /// Reshapes to these extents; 0 copies an extent, -1 is inferred.
    pub(super) fn reshape(&mut self, x: &str, shape: &[i64]) -> String {
        let shape = self.ints(shape);
        self.plain("Reshape", &[x, &shape])
    }

    /// A vector of integers.
    pub(super) fn ints(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(OnnxType::I64, vec![values.len()], bytes)
    }

    /// A single integer.
    pub(super) fn int(&mut self, value: i64) -> String {
        self.constant(OnnxType::I64, Vec::new(), value.to_le_bytes().to_vec())
    }

    /// A number in the model's type of floats.
    pub(super) fn number(&mut self, value: f64) -> String {
        self.number_of(self.float_type(), value)
    }

    /// A number of this type of floats.
    pub(super) fn number_of(&mut self, dtype: OnnxType, value: f64) -> String {
        self.constant(dtype, Vec::new(), float_bytes(dtype, &[value as f32]))
    }

    /// An 8-bit code of this type.
    pub(super) fn code(&mut self, dtype: OnnxType, code: u8) -> String {
        self.constant(dtype, Vec::new(), vec![code])
    }

    /// An array of floats in the model's type.
    pub(super) fn floats(&mut self, values: &[f32], shape: &[usize]) -> String {
        let dtype = self.float_type();
        self.constant(dtype, shape.to_vec(), float_bytes(dtype, values))
    }

    /// An array of f32.
    pub(super) fn floats_32(&mut self, values: &[f32], shape: &[usize]) -> String {
        self.constant(OnnxType::F32, shape.to_vec(), float_bytes(OnnxType::F32, values))
    }

    /// A constant in memory; equal constants are stored once.
    fn constant(&mut self, dtype: OnnxType, shape: Vec<usize>, bytes: Vec<u8>) -> String {
        let key = (dtype, shape, bytes);
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.unique("constant");
        let (_, shape, bytes) = key.clone();
        self.model.tensors.push(OnnxTensor { name: name.clone(), dtype, shape, data: OnnxData::Inline(bytes) });
        self.constants.insert(key, name.clone());
        name
    }

    /// A tensor whose bytes follow from a weight; each is stored once. `suffix` follows the weight's name.
    pub(super) fn streamed(
        &mut self,
        weight: WeightId,
        bytes: WeightBytes,
        suffix: &str,
        dtype: OnnxType,
        shape: Vec<usize>,
    ) -> String {
        let key = OnnxWeight { weight, bytes };
        if let Some(name) = self.streamed.get(&key) {
            return name.clone();
        }
        let name = self.unique(&format!("{}{suffix}", self.symbolic.graph.weights[weight.0].name));
        let data = OnnxData::Streamed(self.weights.len());
        self.model.tensors.push(OnnxTensor { name: name.clone(), dtype, shape, data });
        self.weights.push(key);
        self.streamed.insert(key, name.clone());
        name
    }

    /// A weight as floats, in its own shape.
    pub(super) fn weight(&mut self, weight: WeightId) -> String {
        let shape = self.symbolic.graph.weights[weight.0].shape.0.clone();
        self.streamed(weight, WeightBytes::Floats, "", self.float_type(), shape)
    }

    /// The name of a value or weight.
    ///
    /// # Panics
    /// If the value was not computed yet; nodes are converted in order.
    pub(super) fn operand(&mut self, operand: Operand) -> String {
        match operand {
            Operand::Value(value) => self.values[value.0].clone().expect("nodes are converted in order"),
            Operand::Weight(weight) => self.weight(weight),
        }
    }

    /// The extents of a value or weight.
    pub(super) fn dims(&self, operand: Operand) -> Vec<SymbolicDim> {
        self.symbolic.operand(operand)
    }

    /// Gives a value of the graph its ONNX name.
    pub(super) fn set(&mut self, value: ValueId, name: String) {
        self.values[value.0] = Some(name);
    }

    /// A value that several nodes share; `make` computes it at its first use.
    pub(super) fn shared(&mut self, key: &str, make: impl FnOnce(&mut Self) -> String) -> String {
        if let Some(name) = self.shared.get(key) {
            return name.clone();
        }
        let scope = std::mem::replace(&mut self.scope, key.split(' ').next().unwrap_or(key).to_string());
        let name = make(self);
        self.scope = scope;
        self.shared.insert(key.to_string(), name.clone());
        name
    }
}

/// Returns the values that follow from the tokens of a target.
fn targets_of(graph: &Graph) -> BTreeSet<ValueId> {
    let inputs = graph.inputs.iter().filter(|input| input.source == InputSource::TargetIds);
    let mut found: BTreeSet<ValueId> = inputs.map(|input| input.value).collect();
    for node in &graph.nodes {
        if node.values().any(|(_, value)| found.contains(&value)) {
            found.extend(&node.outputs);
        }
    }
    found
}

/// Floats as bytes of their type.
fn float_bytes(dtype: OnnxType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.n_bits() as usize / 8];
    let to = if dtype == OnnxType::F16 { DType::F16 } else { DType::F32 };
    from_f32(values, to, &mut bytes);
    bytes
}

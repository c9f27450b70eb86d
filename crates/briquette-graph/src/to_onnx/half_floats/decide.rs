//! Decides which weights are stored in f16, and which nodes compute in it.

use crate::to_onnx::{OnnxNetwork, WeightBytes};
use briquette_core::{DType, Result, rows};
use briquette_formats::onnx_write::{OnnxAttribute, OnnxData, OnnxModel, OnnxNode, OnnxType};
use std::collections::{BTreeMap, BTreeSet};

/// The weights, nodes and values that become f16.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    /// Tensors that are stored in f16.
    pub(super) weights: BTreeSet<String>,
    /// Whether each node computes in f16.
    pub(super) nodes: Vec<bool>,
    /// Results that are f16.
    pub(super) values: BTreeSet<String>,
    /// Names that stay f32: outputs of the model, and what graphs inside of nodes use.
    pub(super) wide: BTreeSet<String>,
}

/// How a node takes part.
enum HalfPart {
    /// It computes in f16 in any case.
    Product,
    /// It computes in f16 if its inputs are f16.
    Follower,
}

/// A constant of the model.
struct HalfConstant {
    /// Whether it has rows, as weights and tables have.
    is_matrix: bool,
    /// Whether it is streamed, so that it can be stored in f16.
    is_weight: bool,
}

impl Decisions {
    /// Decides for every node.
    pub(super) fn of(network: &OnnxNetwork, holds: &dyn Fn(&str) -> Result<bool>) -> Result<Self> {
        let (mut held, mut precise) = (BTreeMap::new(), BTreeSet::new());
        loop {
            let found = Self::with_precise(network, &precise, &mut held, holds)?;
            let new = found.inputs_of_means(&network.model);
            if new.is_empty() {
                return Ok(found);
            }
            precise.extend(new);
        }
    }

    /// Returns the nodes in f16 whose results a `ReduceMean` reads. A mean is part of a norm, which needs inputs in f32: onnxruntime
    /// joins a conversion before the operators of a norm with them, and then refuses its weights.
    fn inputs_of_means(&self, model: &OnnxModel) -> Vec<usize> {
        let means = model.nodes.iter().filter(|node| node.op == "ReduceMean");
        let inputs: BTreeSet<&String> = means.filter_map(|node| node.inputs.first()).collect();
        let is_read = |index: &usize| model.nodes[*index].outputs.iter().any(|output| inputs.contains(output));
        (0..model.nodes.len()).filter(|index| self.nodes[*index]).filter(is_read).collect()
    }

    /// Decides for every node in order; `precise` nodes stay in f32.
    fn with_precise(
        network: &OnnxNetwork,
        precise: &BTreeSet<usize>,
        held: &mut BTreeMap<String, bool>,
        holds: &dyn Fn(&str) -> Result<bool>,
    ) -> Result<Self> {
        let model = &network.model;
        let outputs = model.outputs.iter().map(|output| output.name.clone());
        let inner = model.nodes.iter().filter_map(|node| node.carried.as_ref()).flat_map(|carried| &carried.inner);
        let wide = outputs.chain(inner.cloned()).collect();
        let mut to = HalfDecider {
            found: Self { wide, ..Self::default() },
            floats: floats_of(model),
            constants: constants_of(network),
            coded: BTreeSet::new(),
            held,
            holds,
        };
        for (index, node) in model.nodes.iter().enumerate() {
            let is_half = !precise.contains(&index) && to.is_half(node)?;
            to.record(node, is_half);
        }
        to.weights(model)?;
        Ok(to.found)
    }
}

struct HalfDecider<'a> {
    found: Decisions,
    /// Names of values that are f32 before anything becomes f16.
    floats: BTreeSet<String>,
    constants: BTreeMap<String, HalfConstant>,
    /// Results of `DequantizeLinear`, which programs fuse with their products.
    coded: BTreeSet<String>,
    /// Whether f16 holds a constant, for those that were asked for.
    held: &'a mut BTreeMap<String, bool>,
    holds: &'a dyn Fn(&str) -> Result<bool>,
}

impl HalfDecider<'_> {
    fn is_half(&mut self, node: &OnnxNode) -> Result<bool> {
        let Some(part) = part_of(node) else { return Ok(false) };
        let floats: Vec<&String> = float_inputs(node).collect();
        if !floats.iter().any(|name| self.floats.contains(*name))
            || floats.iter().any(|name| self.coded.contains(*name))
        {
            return Ok(false);
        }
        let (constants, values): (Vec<&String>, Vec<&String>) =
            floats.iter().partition(|name| self.constants.contains_key(**name));
        let follows = || {
            let is_half = |name: &&String| self.found.values.contains(*name);
            let is_matrix = |name: &&String| self.constants[*name].is_matrix;
            values.iter().all(is_half) && (!values.is_empty() || constants.iter().any(is_matrix))
        };
        if matches!(part, HalfPart::Follower) && !follows() {
            return Ok(false);
        }
        for name in constants {
            if !self.held(name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn held(&mut self, name: &str) -> Result<bool> {
        if let Some(known) = self.held.get(name) {
            return Ok(*known);
        }
        let held = (self.holds)(name)?;
        self.held.insert(name.to_string(), held);
        Ok(held)
    }

    fn record(&mut self, node: &OnnxNode, is_half: bool) {
        self.found.nodes.push(is_half);
        if let Some(held) = held_of_constant(node) {
            self.constants.insert(node.outputs[0].clone(), HalfConstant { is_matrix: false, is_weight: false });
            self.held.insert(node.outputs[0].clone(), held);
        }
        if &*node.op == "DequantizeLinear" {
            self.coded.extend(node.outputs.iter().cloned());
        }
        let is_float = is_half || (keeps_type(node) && float_inputs(node).any(|name| self.floats.contains(name)));
        if is_float || casts_to_float(node) {
            self.floats.extend(float_outputs(node).cloned());
        }
        if is_half {
            self.found.values.extend(float_outputs(node).cloned());
        }
    }

    /// Chooses the weights of nodes in f16, and all matrices. Vectors of other nodes, such as gains of norms, stay f32.
    fn weights(&mut self, model: &OnnxModel) -> Result<()> {
        let nodes = model.nodes.iter().zip(&self.found.nodes).filter(|(_, is_half)| **is_half);
        let of_products: BTreeSet<String> = nodes.flat_map(|(node, _)| float_inputs(node)).cloned().collect();
        let is_candidate = |(name, constant): &(&String, &HalfConstant)| {
            constant.is_weight
                && (constant.is_matrix || of_products.contains(*name))
                && !self.found.wide.contains(*name)
        };
        let names: Vec<String> = self.constants.iter().filter(is_candidate).map(|(name, _)| name.clone()).collect();
        for name in names {
            if self.held(&name)? {
                self.found.weights.insert(name);
            }
        }
        Ok(())
    }
}

/// Returns the names of f32 tensors, inputs and values whose type the file has.
fn floats_of(model: &OnnxModel) -> BTreeSet<String> {
    let streamed = |data: &OnnxData| matches!(data, OnnxData::Streamed(_));
    let tensors = model.tensors.iter().filter(|tensor| tensor.dtype == OnnxType::F32 && streamed(&tensor.data));
    let types = model.carried.iter().flat_map(|carried| &carried.types);
    let values = types.filter(|(_, dtype)| **dtype == OnnxType::F32).map(|(name, _)| name.clone());
    tensors.map(|tensor| tensor.name.clone()).chain(values).collect()
}

fn constants_of(network: &OnnxNetwork) -> BTreeMap<String, HalfConstant> {
    let mut found = BTreeMap::new();
    for tensor in network.model.tensors.iter().filter(|tensor| tensor.dtype == OnnxType::F32) {
        if let OnnxData::Streamed(index) = tensor.data
            && network.weights[index].bytes == WeightBytes::Stored
        {
            let constant = HalfConstant { is_matrix: tensor.shape.len() > 1, is_weight: true };
            found.insert(tensor.name.clone(), constant);
        }
    }
    found
}

/// Returns whether f16 holds the elements of a small constant that a node has.
fn held_of_constant(node: &OnnxNode) -> Option<bool> {
    if &*node.op != "Constant" || !node.domain.is_empty() {
        return None;
    }
    match node.attribute("value").or_else(|| node.attribute("value_float"))? {
        OnnxAttribute::Float(value) => Some(holds_number(*value)),
        OnnxAttribute::Elements(values) => Some(values.iter().all(|value| holds_number(*value as f32))),
        _ => None,
    }
}

/// Returns whether f16 holds a number with seven significant bits or more. Infinity stays infinity.
pub fn holds_number(value: f32) -> bool {
    value == 0.0
        || !value.is_finite()
        || rows::fits(value, DType::F16) && rows::keeps_bits(f64::from(value.abs()), DType::F16)
}

fn part_of(node: &OnnxNode) -> Option<HalfPart> {
    node.domain.is_empty().then_some(())?;
    match &*node.op {
        "Conv" | "ConvTranspose" | "Einsum" | "Gemm" | "MatMul" => Some(HalfPart::Product),
        "Abs" | "Add" | "AveragePool" | "Clip" | "Concat" | "DepthToSpace" | "Div" | "Dropout" | "Elu" | "Erf"
        | "Expand" | "Flatten" | "Gather" | "GatherElements" | "GatherND" | "Gelu" | "HardSigmoid" | "HardSwish"
        | "Identity" | "LeakyRelu" | "Max" | "MaxPool" | "Min" | "Mish" | "Mul" | "Neg" | "PRelu" | "Pad" | "Relu"
        | "Reshape" | "Resize" | "Selu" | "Sigmoid" | "Slice" | "SpaceToDepth" | "Split" | "Squeeze" | "Sub"
        | "Tanh" | "Tile" | "Transpose" | "Unsqueeze" | "Where" => Some(HalfPart::Follower),
        _ => None,
    }
}

/// Returns whether a node that stays in f32 gives floats if its inputs are floats.
fn keeps_type(node: &OnnxNode) -> bool {
    let op = &*node.op;
    part_of(node).is_some()
        || node.domain.is_empty()
            && (op.starts_with("Reduce")
                || op.starts_with("Global")
                || op.ends_with("Normalization")
                || op.ends_with("Softmax")
                || [
                    "Attention",
                    "Ceil",
                    "Cos",
                    "CumSum",
                    "Exp",
                    "Floor",
                    "GRU",
                    "LSTM",
                    "Log",
                    "Pow",
                    "RNN",
                    "Reciprocal",
                ]
                .contains(&op)
                || ["RotaryEmbedding", "Round", "Sign", "Sin", "Softplus", "Sqrt", "Sum", "Upsample"].contains(&op))
}

fn casts_to_float(node: &OnnxNode) -> bool {
    &*node.op == "Cast" && node.int("to", 0) == OnnxType::F32.number()
}

/// Returns the inputs of an operator that have the type of its result.
pub(super) fn float_inputs(node: &OnnxNode) -> impl Iterator<Item = &String> {
    let places: &[usize] = match &*node.op {
        "DepthToSpace" | "Dropout" | "Expand" | "Flatten" | "Gather" | "GatherElements" | "GatherND" | "Reshape"
        | "Resize" | "Slice" | "SpaceToDepth" | "Split" | "Squeeze" | "Tile" | "Transpose" | "Unsqueeze" => &[0],
        "Pad" => &[0, 2],
        "Where" => &[1, 2],
        op if op.starts_with("Reduce") || op == "CumSum" || op == "Upsample" => &[0],
        _ => &[],
    };
    let all = node.inputs.iter().enumerate();
    all.filter(|(at, name)| (places.is_empty() || places.contains(at)) && !name.is_empty()).map(|(_, name)| name)
}

/// Returns the results of an operator that have the type of its inputs. Others are indices or masks.
pub(super) fn float_outputs(node: &OnnxNode) -> impl Iterator<Item = &String> {
    let n = if matches!(&*node.op, "Dropout" | "MaxPool") { 1 } else { node.outputs.len() };
    node.outputs.iter().take(n).filter(|name| !name.is_empty())
}

//! Weights of quantized models: int8 tensors that `DequantizeLinear` nodes decode.

use super::graph::{AttributeValue, Node, OnnxGraph};
use super::tensor::Tensor;
use crate::InputFile;
use briquette_core::{DType, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Most scales or zero points of a weight.
const MAX_SCALES: usize = 1 << 20;

/// How a `DequantizeLinear` node decodes a weight: `code · scale`, one scale for each output or for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodedWeight {
    /// The name of the tensor of scales, in f32.
    pub scale: String,
    /// Whether one scale serves all outputs.
    pub is_by_tensor: bool,
    /// Whether the last axis of the matrix counts outputs instead of the first.
    pub is_turned: bool,
}

/// Returns the int8 tensors of a graph that only `DequantizeLinear` nodes of one scale read, by name.
///
/// Zero points must be 0. Tensors with other types or zero points, and with scales of blocks or of another axis than the first
/// (of matrices also the second), are left out.
///
/// # Errors
/// Io: the file cannot be read. Input: a zero point is damaged.
pub fn coded_weights(graph: &OnnxGraph, file: &InputFile) -> Result<BTreeMap<String, CodedWeight>> {
    let tensors: BTreeMap<&str, &Tensor> =
        graph.initializers.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let (mut found, mut others) = (BTreeMap::new(), BTreeSet::new());
    for node in &graph.nodes {
        let coded = coded_weight(node, &tensors, file)?;
        let n_known = usize::from(coded.is_some());
        if let Some((name, coded)) = coded
            && found.insert(name.to_string(), coded.clone()).is_some_and(|earlier| earlier != coded)
        {
            others.insert(name);
        }
        others.extend(node.inputs.iter().skip(n_known).map(String::as_str));
    }
    found.retain(|name, _| !others.contains(name.as_str()));
    Ok(found)
}

/// Returns the weight that a node decodes, with its name.
fn coded_weight<'a>(
    node: &'a Node,
    tensors: &BTreeMap<&str, &Tensor>,
    file: &InputFile,
) -> Result<Option<(&'a str, CodedWeight)>> {
    let tensor = |at: usize| node.inputs.get(at).and_then(|name| tensors.get(name.as_str()).copied());
    let (Some(codes), Some(scale), "DequantizeLinear") = (tensor(0), tensor(1), node.op_type.as_str()) else {
        return Ok(None);
    };
    let integer = |name: &str, default: i64| match node.attribute(name) {
        Some(AttributeValue::Int(value)) => *value,
        _ => default,
    };
    let rank = codes.shape.len() as i64;
    let axis = integer("axis", 1);
    let axis = if axis < 0 { axis + rank } else { axis };
    let is_by_tensor = scale.n_elements() == Some(1);
    let is_turned = !is_by_tensor && axis == 1 && rank == 2;
    let axis = usize::try_from(axis).ok().filter(|axis| *axis == 0 || is_turned);
    let is_by_output = axis.is_some_and(|axis| scale.shape.first() == codes.shape.get(axis));
    let has_types = codes.dtype() == Some(DType::I8) && scale.dtype() == Some(DType::F32) && rank >= 2;
    if !has_types || integer("block_size", 0) != 0 || !(is_by_tensor || is_by_output) {
        return Ok(None);
    }
    if node.inputs.get(2).is_some_and(|name| !name.is_empty()) {
        let zeros = tensor(2).map(|zero| zero.constant(file, MAX_SCALES)).transpose()?.flatten();
        if zeros.is_none_or(|zeros| zeros.values.iter().any(|zero| *zero != 0.0)) {
            return Ok(None);
        }
    }
    Ok(Some((node.inputs[0].as_str(), CodedWeight { scale: node.inputs[1].clone(), is_by_tensor, is_turned })))
}

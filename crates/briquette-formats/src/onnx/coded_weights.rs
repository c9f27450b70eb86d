//! Weights of quantized models: the codes that nodes decode, and their scales.

use super::graph::{AttributeValue, Node, OnnxGraph};
use super::tensor::{INT4, Tensor, UINT4};
use crate::InputFile;
use briquette_core::{DType, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Most scales or zero points of a weight.
const MAX_SCALES: usize = 1 << 20;

/// How nodes decode a weight: `(code - zero point) · scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodedWeight {
    /// The name of the tensor of codes.
    pub codes: String,
    /// The name of the tensor of scales.
    pub scale: String,
    /// The name of the tensor of zero points; all are 0 if absent.
    pub zeros: Option<String>,
    /// The extents of the weight.
    pub shape: Vec<usize>,
    /// The order of the codes.
    pub order: CodeOrder,
}

/// The order of codes in a file, and what shares a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeOrder {
    /// int8 codes in the order of the weight, with a scale for each index of the first axis.
    Outputs,
    /// int8 codes in the order of the weight, with one scale.
    Tensor,
    /// int8 codes of a matrix `[in, out]`, with a scale for each output. The weight has that shape too.
    OutputsLast,
    /// Codes of a matrix with a scale for each group of inputs. The shape of the weight is `[out, in]`.
    Groups(CodeGroups),
}

/// Codes of a matrix with a scale for each group of inputs. 4-bit codes are packed in pairs, the first in the low bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeGroups {
    /// Bits of a code, 4 or 8.
    pub bits: u8,
    /// Inputs in a group.
    pub size: usize,
    /// Whether codes and zero points have a sign. Others are above their values by half of their range.
    pub is_signed: bool,
    /// Whether codes, scales and zero points are stored by input, such as codes `[in, out]`.
    pub is_turned: bool,
    /// Whether each row of zero points is padded to whole bytes.
    pub pads_zeros: bool,
}

/// Returns the weights that only `DequantizeLinear`, `MatMulNBits` and `GatherBlockQuantized` nodes decode, by the names that
/// these nodes read. A reshape of codes may be between.
///
/// Codes for which nodes differ in scale or form are left out, as are zero points other than 0 of codes without groups, and
/// groups that do not divide the inputs.
///
/// # Errors
/// Io: the file cannot be read. Input: a zero point is damaged.
pub fn coded_weights(graph: &OnnxGraph, file: &InputFile) -> Result<BTreeMap<String, CodedWeight>> {
    let tensors: BTreeMap<&str, &Tensor> =
        graph.initializers.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let reshapes = graph.nodes.iter().filter_map(|node| reshaped(node, &tensors)).collect();
    let given = Initializers { tensors, reshapes, file };
    let (mut found, mut others, mut by_codes) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
    for node in graph.nodes.iter().filter(|node| reshaped(node, &given.tensors).is_none()) {
        let coded = given.coded_weight(node)?;
        let at = coded.as_ref().map(|(at, _)| *at);
        if let Some((at, coded)) = coded {
            let known = by_codes.entry(coded.codes.clone()).or_insert_with(|| coded.clone());
            if *known != coded {
                others.insert(coded.codes.clone());
            }
            found.insert(node.inputs[at].clone(), coded);
        }
        let reads = node.inputs.iter().enumerate().filter(|(position, _)| Some(*position) != at);
        others.extend(reads.map(|(_, name)| given.source(name).to_string()));
        others.extend(node.names_inside().iter().map(|name| given.source(name).to_string()));
    }
    others.extend(graph.outputs.iter().map(|output| given.source(&output.name).to_string()));
    found.retain(|_, coded| !others.contains(&coded.codes));
    Ok(found)
}

/// Returns the output and the input of a node that reshapes a tensor of bytes.
fn reshaped<'a>(node: &'a Node, tensors: &BTreeMap<&str, &Tensor>) -> Option<(&'a str, &'a str)> {
    let (input, output) = (node.inputs.first()?, node.outputs.first()?);
    let is_codes = tensors.get(input.as_str()).is_some_and(|tensor| tensor.dtype() == Some(DType::U8));
    (node.op_type == "Reshape" && node.domain.is_empty() && is_codes).then_some((output, input))
}

/// The tensors that nodes read.
struct Initializers<'a> {
    tensors: BTreeMap<&'a str, &'a Tensor>,
    /// The tensors of codes by the names of their reshapes.
    reshapes: BTreeMap<&'a str, &'a str>,
    file: &'a InputFile,
}

impl Initializers<'_> {
    /// Returns the name of the tensor whose elements a name has.
    fn source<'n>(&'n self, name: &'n str) -> &'n str {
        self.reshapes.get(name).copied().unwrap_or(name)
    }

    fn tensor(&self, node: &Node, at: usize) -> Option<&Tensor> {
        let name = node.inputs.get(at)?;
        self.tensors.get(self.source(name)).copied()
    }

    /// Returns the weight that a node decodes, and the position of its codes among the inputs.
    fn coded_weight(&self, node: &Node) -> Result<Option<(usize, CodedWeight)>> {
        Ok(match (node.domain.as_str(), node.op_type.as_str()) {
            ("", "DequantizeLinear") if integer(node, "block_size", 0) == 0 => {
                self.dequantized(node)?.map(|found| (0, found))
            }
            ("", "DequantizeLinear") => self.dequantized_groups(node).map(|found| (0, found)),
            ("com.microsoft", "MatMulNBits") => self.product(node).map(|found| (1, found)),
            ("com.microsoft", "GatherBlockQuantized") => self.table(node).map(|found| (0, found)),
            _ => None,
        })
    }

    /// Codes with a scale for each output, or with one.
    fn dequantized(&self, node: &Node) -> Result<Option<CodedWeight>> {
        let (Some(codes), Some(scale)) = (self.tensor(node, 0), self.tensor(node, 1)) else { return Ok(None) };
        let axis = usize::try_from(axis(node, 1, codes.shape.len())).ok();
        let is_of = |at: usize| axis == Some(at) && scale.shape.first() == codes.shape.get(at);
        let order = match (scale.n_elements(), codes.shape.len()) {
            (Some(1), 2..) => CodeOrder::Tensor,
            (_, 2) if is_of(1) => CodeOrder::OutputsLast,
            (_, 2..) if is_of(0) => CodeOrder::Outputs,
            _ => return Ok(None),
        };
        if codes.dtype() != Some(DType::I8) || scale.dtype() != Some(DType::F32) {
            return Ok(None);
        }
        if node.inputs.get(2).is_some_and(|name| !name.is_empty()) {
            let zeros = self.tensor(node, 2).map(|zero| zero.constant(self.file, MAX_SCALES)).transpose()?.flatten();
            if zeros.is_none_or(|zeros| zeros.values.iter().any(|zero| *zero != 0.0)) {
                return Ok(None);
            }
        }
        let (scale, shape) = (scale.name.clone(), codes.shape.clone());
        Ok(Some(CodedWeight { codes: codes.name.clone(), scale, zeros: None, shape, order }))
    }

    /// Codes of a matrix with a scale for each group along an axis.
    fn dequantized_groups(&self, node: &Node) -> Option<CodedWeight> {
        let (codes, &[n_first, n_second]) = self.tensor(node, 0).map(|codes| (codes, codes.shape.as_slice()))? else {
            return None;
        };
        let (bits, is_signed) = match codes.data_type {
            UINT4 => (4, false),
            INT4 => (4, true),
            _ if codes.dtype() == Some(DType::U8) => (8, false),
            _ if codes.dtype() == Some(DType::I8) => (8, true),
            _ => return None,
        };
        let is_turned = match axis(node, 1, 2) {
            0 => true,
            1 => false,
            _ => return None,
        };
        let groups = CodeGroups { bits, size: size(node, "block_size", 0)?, is_signed, is_turned, pads_zeros: false };
        let shape = if is_turned { [n_second, n_first] } else { [n_first, n_second] };
        let zeros = self.zeros(node, 2, codes.data_type)?;
        let n_groups = shape[1] / groups.size;
        let of_scales = if is_turned { [n_groups, shape[0]] } else { [shape[0], n_groups] };
        // Codes without a sign have values from 0 on if there are no zero points.
        let fits = (is_signed || zeros.is_some()) && self.tensor(node, 1)?.shape == of_scales;
        self.groups(node, [0, 1], zeros, shape, groups).filter(|_| fits)
    }

    /// The weight of a product with codes without a sign.
    fn product(&self, node: &Node) -> Option<CodedWeight> {
        let shape = [size(node, "N", 0)?, size(node, "K", 0)?];
        // Inputs in another order.
        if node.inputs.get(4).is_some_and(|name| !name.is_empty()) {
            return None;
        }
        let zeros = self.zeros(node, 3, 2)?;
        self.groups(node, [1, 2], zeros, shape, padded_groups(node, 128)?)
    }

    /// A table of codes without a sign, packed in bytes, with groups of columns.
    fn table(&self, node: &Node) -> Option<CodedWeight> {
        let (codes, scale) = (self.tensor(node, 0)?, self.tensor(node, 2)?);
        let groups = padded_groups(node, 128)?;
        let &[n_rows, n_groups] = scale.shape.as_slice() else { return None };
        if codes.dtype() != Some(DType::U8)
            || axis_of(node, "gather_axis", 0, 2) != 0
            || axis_of(node, "quantize_axis", 1, 2) != 1
        {
            return None;
        }
        let zeros = self.zeros(node, 3, 2)?;
        self.groups(node, [0, 2], zeros, [n_rows, n_groups.checked_mul(groups.size)?], groups)
    }

    /// Returns the tensor of zero points of a node, if it has one; `None` if it is of another type.
    fn zeros(&self, node: &Node, at: usize, data_type: i64) -> Option<Option<&Tensor>> {
        match node.inputs.get(at).filter(|name| !name.is_empty()) {
            Some(_) => self.tensor(node, at).filter(|zeros| zeros.data_type == data_type).map(Some),
            None => Some(None),
        }
    }

    /// Returns a weight `[out, in]` with groups; `None` if a tensor has another size.
    fn groups(
        &self,
        node: &Node,
        [codes, scale]: [usize; 2],
        zeros: Option<&Tensor>,
        [n_out, n_in]: [usize; 2],
        groups: CodeGroups,
    ) -> Option<CodedWeight> {
        let (codes, scale, bits) = (self.tensor(node, codes)?, self.tensor(node, scale)?, usize::from(groups.bits));
        let bits_of_row = n_in.checked_mul(bits)?;
        let is_whole = n_in > 0 && n_in.is_multiple_of(groups.size) && bits_of_row.is_multiple_of(8);
        let n_groups = n_in / groups.size;
        let has = |tensor: &Tensor, n: Option<usize>| n.is_some() && tensor.n_elements() == n;
        let in_bytes = |n: usize| if groups.pads_zeros { (n * bits).div_ceil(8) } else { n };
        let codes_of_row = if groups.pads_zeros { bits_of_row / 8 } else { n_in };
        let has_sizes = has(codes, n_out.checked_mul(codes_of_row))
            && has(scale, n_out.checked_mul(n_groups))
            && zeros.is_none_or(|zeros| has(zeros, n_out.checked_mul(in_bytes(n_groups))));
        let is_turned = groups.is_turned;
        let has_type = match scale.dtype() {
            Some(DType::F32 | DType::F16) => true,
            Some(DType::BF16) => !is_turned,
            _ => false,
        };
        (is_whole && has_sizes && has_type).then(|| CodedWeight {
            codes: codes.name.clone(),
            scale: scale.name.clone(),
            zeros: zeros.map(|zeros| zeros.name.clone()),
            shape: vec![n_out, n_in],
            order: CodeOrder::Groups(groups),
        })
    }
}

/// The groups of an operator of onnxruntime, whose rows are padded to whole bytes.
fn padded_groups(node: &Node, default_size: i64) -> Option<CodeGroups> {
    let bits = u8::try_from(integer(node, "bits", 4)).ok().filter(|bits| [4, 8].contains(bits))?;
    let size = size(node, "block_size", default_size)?;
    Some(CodeGroups { bits, size, is_signed: false, is_turned: false, pads_zeros: true })
}

fn integer(node: &Node, name: &str, default: i64) -> i64 {
    match node.attribute(name) {
        Some(AttributeValue::Int(value)) => *value,
        _ => default,
    }
}

/// Returns an attribute that counts something, if it is positive.
fn size(node: &Node, name: &str, default: i64) -> Option<usize> {
    usize::try_from(integer(node, name, default)).ok().filter(|size| *size > 0)
}

fn axis(node: &Node, default: i64, rank: usize) -> i64 {
    axis_of(node, "axis", default, rank)
}

/// Returns an axis, counted from the first.
fn axis_of(node: &Node, name: &str, default: i64, rank: usize) -> i64 {
    let axis = integer(node, name, default);
    if axis < 0 { axis.saturating_add(rank as i64) } else { axis }
}

#[cfg(test)]
mod tests {
    use super::super::graph::Attribute;
    use super::super::model::Model;
    use super::super::quantized::has_codes;
    use super::*;

    const U8: i64 = 2;

    fn tensor(name: &str, data_type: i64, shape: &[usize]) -> Tensor {
        Tensor { name: name.into(), data_type, shape: shape.to_vec(), ..Tensor::default() }
    }

    fn node(domain: &str, op_type: &str, inputs: &[&str], outputs: &[&str], numbers: &[(&str, i64)]) -> Node {
        let names = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        let attribute =
            |&(name, value): &(&str, i64)| Attribute { name: name.into(), value: AttributeValue::Int(value) };
        Node {
            domain: domain.into(),
            op_type: op_type.into(),
            inputs: names(inputs),
            outputs: names(outputs),
            attributes: numbers.iter().map(attribute).collect(),
            ..Node::default()
        }
    }

    fn product(inputs: &[&str]) -> Node {
        let numbers = [("N", 6), ("K", 32), ("bits", 4), ("block_size", 16)];
        node("com.microsoft", "MatMulNBits", inputs, &["y"], &numbers)
    }

    /// The names of weights that `nodes` decode.
    fn found(nodes: Vec<Node>) -> Vec<String> {
        let initializers = vec![
            tensor("codes", U8, &[6, 2, 8]),
            tensor("scale", 1, &[6, 2]),
            tensor("other", 1, &[6, 2]),
            tensor("zeros", U8, &[6, 1]),
            tensor("pairs", UINT4, &[32, 6]),
            tensor("by_group", 1, &[2, 6]),
            tensor("shifts", UINT4, &[2, 6]),
        ];
        let graph = OnnxGraph { nodes, initializers, ..OnnxGraph::default() };
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = coded_weights(&graph, &InputFile::open(file.path()).unwrap()).unwrap();
        assert!(found.is_empty() || has_codes(&Model { graph, ..Model::default() }));
        found.into_keys().collect()
    }

    #[test]
    fn codes_are_found_by_the_names_that_nodes_read() {
        assert_eq!(found(vec![product(&["x", "codes", "scale"])]), ["codes"]);
        assert_eq!(found(vec![product(&["x", "codes", "scale", "zeros"])]), ["codes"]);
        let reshaped = node("", "Reshape", &["codes", "shape"], &["rows"], &[]);
        let numbers = [("bits", 4), ("block_size", 16), ("gather_axis", 0), ("quantize_axis", 1)];
        let table = node("com.microsoft", "GatherBlockQuantized", &["rows", "ids", "scale"], &["z"], &numbers);
        assert_eq!(found(vec![reshaped, table, product(&["x", "codes", "scale"])]), ["codes", "rows"]);
        let blocks = |inputs| node("", "DequantizeLinear", inputs, &["w"], &[("axis", 0), ("block_size", 16)]);
        assert_eq!(found(vec![blocks(&["pairs", "by_group", "shifts"])]), ["pairs"]);
        // Without zero points, such codes begin at 0; scales of another order fit no group.
        assert!(found(vec![blocks(&["pairs", "by_group"])]).is_empty());
        assert!(found(vec![blocks(&["pairs", "scale", "shifts"])]).is_empty());
    }

    #[test]
    fn codes_that_nodes_read_in_two_ways_or_in_another_order_are_left_out() {
        assert!(found(vec![product(&["x", "codes", "scale"]), product(&["x", "codes", "other"])]).is_empty());
        let cast = node("", "Cast", &["codes"], &["c"], &[("to", 1)]);
        assert!(found(vec![product(&["x", "codes", "scale"]), cast]).is_empty());
        assert!(found(vec![product(&["x", "codes", "scale", "", "order"])]).is_empty());
        assert!(found(vec![product(&["x", "codes", "by_group", "by_group"])]).is_empty());
        let branch = |nodes: Vec<Node>| {
            let graph = Box::new(OnnxGraph { nodes, ..OnnxGraph::default() });
            let branch = Attribute { name: "then_branch".into(), value: AttributeValue::Graph(graph) };
            Node { attributes: vec![branch], ..node("", "If", &["c"], &["z"], &[]) }
        };
        let gather = node("", "Gather", &["codes", "ids"], &["rows"], &[]);
        assert!(found(vec![product(&["x", "codes", "scale"]), branch(vec![gather.clone()])]).is_empty());
        assert!(found(vec![product(&["x", "codes", "scale"]), branch(vec![branch(vec![gather])])]).is_empty());
        assert!(found(vec![branch(vec![product(&["x", "codes", "scale"])])]).is_empty());
    }
}

//! Whether a model is quantized: its nodes decode or multiply codes of weights.

use super::graph::Node;
use super::model::Model;
use super::tensor::{INT4, Tensor, UINT4};
use briquette_core::DType;
use std::collections::BTreeSet;

/// Returns whether nodes decode or multiply codes: integers of 4 or 8 bits with several axes.
pub fn has_codes(model: &Model) -> bool {
    let is_codes = |tensor: &&Tensor| {
        let has_bits =
            matches!(tensor.data_type, UINT4 | INT4) || matches!(tensor.dtype(), Some(DType::I8 | DType::U8));
        has_bits && tensor.shape.len() > 1
    };
    let initializers = model.graph.initializers.iter().filter(is_codes);
    let codes: BTreeSet<&str> = initializers.map(|tensor| tensor.name.as_str()).collect();
    let decodes = |node: &Node| {
        let is_named = ["Dequantize", "Quantize", "QLinear", "Integer"].iter().any(|part| node.op_type.contains(part));
        is_named || node.domain == "com.microsoft"
    };
    let reads = |node: &Node| decodes(node) && node.inputs.iter().any(|name| codes.contains(name.as_str()));
    // A function has other names for what it is given.
    let mut of_functions = model.functions.iter().flat_map(|function| &function.nodes).flat_map(Node::with_inner);
    model.graph.all_nodes().into_iter().any(reads) || (!codes.is_empty() && of_functions.any(decodes))
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Attribute, AttributeValue, OnnxGraph};
    use super::super::model::OnnxFunction;
    use super::*;

    fn node(op_type: &str, inputs: &[&str]) -> Node {
        let inputs = inputs.iter().map(ToString::to_string).collect();
        Node { op_type: op_type.into(), inputs, ..Node::default() }
    }

    #[test]
    fn codes_of_branches_and_functions_make_a_model_quantized() {
        let tensor =
            |name: &str, data_type| Tensor { name: name.into(), data_type, shape: vec![6, 4], ..Tensor::default() };
        let decoding = |codes| node("DequantizeLinear", &[codes, "scale"]);
        let with = |nodes: Vec<Node>, functions: Vec<OnnxFunction>| {
            let graph = OnnxGraph {
                nodes,
                initializers: vec![tensor("codes", 3), tensor("weight", 1)],
                ..OnnxGraph::default()
            };
            has_codes(&Model { graph, functions, ..Model::default() })
        };
        assert!(with(vec![decoding("codes")], Vec::new()));
        assert!(!with(vec![decoding("weight")], Vec::new()));
        let graph = Box::new(OnnxGraph { nodes: vec![decoding("codes")], ..OnnxGraph::default() });
        let branch = Attribute { name: "else_branch".into(), value: AttributeValue::Graph(graph) };
        assert!(with(vec![Node { attributes: vec![branch], ..node("If", &["c"]) }], Vec::new()));
        let function = OnnxFunction { nodes: vec![decoding("a")], ..OnnxFunction::default() };
        assert!(with(vec![node("Dense", &["x", "codes"])], vec![function]));
    }
}

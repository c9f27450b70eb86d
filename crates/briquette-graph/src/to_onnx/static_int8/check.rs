//! Checks that quantized layers read and compute codes.

use briquette_core::{Error, Result};
use briquette_formats::onnx_write::{OnnxModel, OnnxNode};
use std::collections::{BTreeMap, BTreeSet};

/// Checks that `DequantizeLinear` makes each input of each node with one of these matrices, and that `QuantizeLinear` alone reads the output.
///
/// An output of the model may stay in floats.
///
/// # Errors
/// Bug: an input or output is in floats. The message names it.
pub(super) fn check(model: &OnnxModel, matrices: &BTreeSet<String>) -> Result<()> {
    let makers: BTreeMap<&str, &OnnxNode> =
        model.nodes.iter().flat_map(|node| node.outputs.iter().map(move |name| (name.as_str(), node))).collect();
    let outputs: BTreeSet<&str> = model.outputs.iter().map(|output| output.name.as_str()).collect();
    for node in model.nodes.iter().filter(|node| node.inputs.get(1).is_some_and(|name| matrices.contains(name))) {
        let is_codes = |name: &&String| makers.get(name.as_str()).is_some_and(|maker| maker.op == "DequantizeLinear");
        if let Some(name) = node.inputs.iter().find(|name| !is_codes(name)) {
            return Err(Error::bug(format!("the {} reads {name:?} in floats", node.op)).at(&node.name));
        }
        let output = node.outputs[0].as_str();
        let mut readers = model.nodes.iter().filter(|reader| reader.inputs.iter().any(|name| name == output));
        if !outputs.contains(output) && !readers.all(|reader| reader.op == "QuantizeLinear") {
            return Err(Error::bug(format!("the {} computes {output:?} in floats", node.op)).at(&node.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_formats::onnx_write::{OnnxType, OnnxValue};

    fn node(op: &'static str, inputs: &[&str], output: &str) -> OnnxNode {
        let inputs = inputs.iter().map(|name| (*name).to_string()).collect();
        OnnxNode::new(("", op), inputs, vec![output.into()], Vec::new())
    }

    /// Returns a convolution with its pairs; `skipped` is a node that is left out.
    fn model(skipped: &str) -> OnnxModel {
        let nodes = [
            node("QuantizeLinear", &["x", "s", "z"], "xq"),
            node("DequantizeLinear", &["xq", "s", "z"], "xd"),
            node("DequantizeLinear", &["w", "s", "z"], "wd"),
            node("DequantizeLinear", &["b", "s", "z"], "bd"),
            node("Conv", &["xd", "wd", "bd"], "y"),
            node("QuantizeLinear", &["y", "s", "z"], "yq"),
            node("Relu", &["y"], "relu"),
        ];
        let nodes = nodes.into_iter().filter(|node| node.outputs[0] != skipped).collect();
        let output = OnnxValue::new("yq", OnnxType::U8, Vec::new());
        OnnxModel { nodes, outputs: vec![output], ..OnnxModel::default() }
    }

    #[test]
    fn a_missing_pair_is_found() {
        let matrices = BTreeSet::from(["wd".to_string()]);
        assert!(check(&model("relu"), &matrices).is_ok());
        let error = |skipped: &str| check(&model(skipped), &matrices).unwrap_err().to_string();
        assert!(error("xd").contains("the Conv reads \"xd\" in floats"), "{}", error("xd"));
        assert!(error("bd").contains("reads \"bd\" in floats"));
        assert!(error("nothing").contains("computes \"y\" in floats"), "ReLU reads floats");
    }
}

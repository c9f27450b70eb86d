//! Counts the weights of a written model by form.

use briquette_formats::onnx_write::{OnnxData, OnnxModel, OnnxNode};
use briquette_graph::to_onnx::{OnnxNetwork, WeightBytes};
use std::collections::{BTreeMap, BTreeSet};

/// Counts weights by form. Scales belong to their codes.
pub(super) fn counts(network: &OnnxNetwork) -> BTreeMap<&'static str, usize> {
    let products = IntegerProducts::of(&network.model);
    let mut names = vec![""; network.weights.len()];
    for tensor in &network.model.tensors {
        if let OnnxData::Streamed(index) = tensor.data {
            names[index] = &tensor.name;
        }
    }
    let mut found = BTreeMap::new();
    for (weight, name) in network.weights.iter().zip(names) {
        let form = match weight.bytes {
            WeightBytes::Stored | WeightBytes::Floats | WeightBytes::TransposedFloats => "float",
            WeightBytes::HalfFloats => "f16",
            WeightBytes::Codes | WeightBytes::TransposedCodes => products.form(name),
            WeightBytes::Blocks | WeightBytes::TransposedBlocks => "blocks",
            _ => continue,
        };
        *found.entry(form).or_default() += 1;
    }
    found
}

/// Returns the number of pairs that round a value to a fixed grid.
pub(super) fn n_grids(model: &OnnxModel) -> usize {
    model.nodes.iter().filter(|node| node.op == "QuantizeLinear").count()
}

/// The codes that integer products read.
struct IntegerProducts<'a> {
    dynamic: BTreeSet<&'a str>,
    fixed: BTreeSet<&'a str>,
}

impl<'a> IntegerProducts<'a> {
    fn of(model: &'a OnnxModel) -> Self {
        let makers: BTreeMap<&str, &OnnxNode> =
            model.nodes.iter().flat_map(|node| node.outputs.iter().map(move |name| (name.as_str(), node))).collect();
        let codes = |name: &'a str| {
            let maker = makers.get(name).filter(|maker| maker.op == "Transpose");
            maker.map_or(name, |maker| maker.inputs[0].as_str())
        };
        let decoded = |name: &String| {
            let maker = makers.get(name.as_str()).filter(|maker| maker.op == "DequantizeLinear")?;
            Some(maker.inputs[0].as_str())
        };
        let is_rounded = |name: &str| makers.get(name).is_some_and(|maker| maker.op == "QuantizeLinear");
        let (mut dynamic, mut fixed) = (BTreeSet::new(), BTreeSet::new());
        for node in &model.nodes {
            let [first, second, ..] = node.inputs.as_slice() else { continue };
            if node.op == "MatMulInteger" {
                dynamic.insert(codes(second));
            } else if decoded(first).is_some_and(is_rounded) {
                fixed.extend(decoded(second).map(codes));
            }
        }
        Self { dynamic, fixed }
    }

    fn form(&self, name: &str) -> &'static str {
        match (self.dynamic.contains(name), self.fixed.contains(name)) {
            (true, _) => "int8-dynamic",
            (_, true) => "int8-static",
            (false, false) => "int8",
        }
    }
}

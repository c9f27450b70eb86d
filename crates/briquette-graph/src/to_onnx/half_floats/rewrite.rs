//! Writes the nodes of a model with f16 results, and conversions between f16 and f32.

use super::decide::{Decisions, float_inputs, float_outputs};
use briquette_formats::onnx_write::{OnnxAttribute, OnnxModel, OnnxNode, OnnxType};
use std::collections::{BTreeMap, BTreeSet};

/// Rewrites the nodes of a model as decided. An f32 value keeps its name, and so does a weight.
pub(super) fn rewrite(model: &mut OnnxModel, decisions: &Decisions) {
    let names = model.nodes.iter().flat_map(|node| node.uses().chain(&node.outputs).chain([&node.name]));
    let others = model.tensors.iter().map(|tensor| tensor.name.clone());
    let mut to = Rewriter {
        decisions,
        taken: names.cloned().chain(others).collect(),
        halves: BTreeMap::new(),
        wides: BTreeMap::new(),
        nodes: Vec::new(),
    };
    for (node, is_half) in std::mem::take(&mut model.nodes).into_iter().zip(&decisions.nodes) {
        if *is_half { to.half_node(node) } else { to.wide_node(node) }
    }
    model.nodes = to.nodes;
}

struct Rewriter<'a> {
    decisions: &'a Decisions,
    taken: BTreeSet<String>,
    /// The names of values in f16, by their names in the file.
    halves: BTreeMap<String, String>,
    /// The names of weights and results of f16 after their conversion to f32.
    wides: BTreeMap<String, String>,
    nodes: Vec<OnnxNode>,
}

impl Rewriter<'_> {
    fn half_node(&mut self, mut node: OnnxNode) {
        let floats: BTreeSet<String> = float_inputs(&node).cloned().collect();
        for name in node.inputs.iter_mut().filter(|name| !name.is_empty()) {
            *name = if floats.contains(name) { self.half(name) } else { self.wide(name) };
        }
        let results: BTreeSet<String> = float_outputs(&node).cloned().collect();
        for name in node.outputs.iter_mut().filter(|name| results.contains(*name)) {
            let half = self.fresh(name, "f16");
            self.halves.insert(std::mem::replace(name, half.clone()), half);
        }
        self.nodes.push(node);
        for name in results.iter().filter(|name| self.decisions.wide.contains(*name)) {
            self.wide(name);
        }
    }

    fn wide_node(&mut self, mut node: OnnxNode) {
        let reads_shape = node.domain.is_empty() && matches!(&*node.op, "Shape" | "Size");
        for name in node.inputs.iter_mut().filter(|name| !name.is_empty()) {
            let is_half = self.decisions.values.contains(name);
            *name = if reads_shape && is_half { self.half(name) } else { self.wide(name) };
        }
        self.nodes.push(node);
    }

    /// Returns the name of a value in f16.
    fn half(&mut self, name: &str) -> String {
        if self.decisions.weights.contains(name) {
            return name.to_string();
        }
        if let Some(half) = self.halves.get(name) {
            return half.clone();
        }
        let half = self.fresh(name, "f16");
        self.cast(name, &half, OnnxType::F16);
        self.halves.insert(name.to_string(), half.clone());
        half
    }

    /// Returns the name of a value as the file has it.
    fn wide(&mut self, name: &str) -> String {
        let is_weight = self.decisions.weights.contains(name);
        if !is_weight && !self.decisions.values.contains(name) {
            return name.to_string();
        }
        if let Some(wide) = self.wides.get(name) {
            return wide.clone();
        }
        let (half, wide) = match is_weight {
            true => (name.to_string(), self.fresh(name, "f32")),
            false => (self.half(name), name.to_string()),
        };
        self.cast(&half, &wide, OnnxType::F32);
        self.wides.insert(name.to_string(), wide.clone());
        wide
    }

    fn cast(&mut self, from: &str, to: &str, dtype: OnnxType) {
        let to_type = vec![("to", OnnxAttribute::Int(dtype.number()))];
        let node = OnnxNode::new(("", "Cast"), vec![from.into()], vec![to.into()], to_type);
        // The node that the file has may have the name of its value.
        let name = self.fresh(to, "Cast");
        self.nodes.push(OnnxNode { name, ..node });
    }

    /// Returns a name that nothing has.
    fn fresh(&mut self, name: &str, suffix: &str) -> String {
        let mut found = format!("{name}/{suffix}");
        while !self.taken.insert(found.clone()) {
            found.push('_');
        }
        found
    }
}

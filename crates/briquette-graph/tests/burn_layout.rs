//! Checkpoints in burn's layout have the same graph: Linear weights are `[in, out]`, lookup tables stay as they are.

#![allow(clippy::unwrap_used)]

use briquette_core::{OutputAxis, Shape};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, WeightLayout};
use briquette_graph::families::build;
use briquette_graph::{Composite, Config, Extents, Graph, Headers, Op, Operand};
use std::collections::BTreeSet;
use std::path::Path;

/// Returns the names of the weights that only Linear layers use, stored `[out, in]`.
fn linear_weights(graph: &Graph) -> BTreeSet<&str> {
    let used = |by_linear: bool| {
        let nodes = graph.nodes.iter().filter(move |node| (node.op == Op::Composite(Composite::Linear)) == by_linear);
        let inputs = nodes.flat_map(|node| &node.inputs);
        inputs.filter_map(|input| if let Operand::Weight(id) = input { Some(id.0) } else { None }).collect()
    };
    let (by_linear, by_others): (BTreeSet<usize>, BTreeSet<usize>) = (used(true), used(false));
    let weights = by_linear.difference(&by_others).map(|&id| &graph.weights[id]);
    weights
        .filter(|weight| weight.shape.rank() == 2 && weight.layout == OutputAxis::First)
        .map(|weight| weight.name.as_str())
        .collect()
}

#[test]
fn every_family_has_the_same_graph_in_the_layout_of_burn() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families");
    let (mut n_turned, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read(path.join("config.json")).ok();
        let (checkpoint, config) = (Checkpoint::open(&path).unwrap(), Config::parse(text.as_deref()).unwrap());
        let built = |tensors: &[TensorInfo], layout| {
            build(&Headers::new(tensors, layout), &config, Extents { batch: 1, tokens: 4, image: [32, 32] })
        };
        let graph = built(checkpoint.tensors(), None).unwrap().unwrap();
        let linear = linear_weights(&graph);
        let mut turned = checkpoint.tensors().to_vec();
        for info in turned.iter_mut().filter(|info| linear.contains(info.name.as_str())) {
            info.shape = Shape(info.shape.0.iter().rev().copied().collect()).into();
            n_turned += 1;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match built(&turned, Some(WeightLayout::Burn)) {
            Ok(Some(other)) if other.nodes == graph.nodes => {}
            Ok(_) => wrong.push(format!("{name}: another graph")),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(n_turned > 100 && wrong.is_empty(), "{n_turned} turned; {wrong:#?}");
}

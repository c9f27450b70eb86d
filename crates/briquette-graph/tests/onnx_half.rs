//! f16 weights of ONNX files: every operator gets inputs of one type, and numbers that f16 does not hold stay f32.

#![allow(clippy::unwrap_used)]

use briquette_core::Result;
use briquette_formats::onnx_write::{OnnxModel, OnnxNode, OnnxType};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::onnx::{InputDims, import_named};
use briquette_graph::to_onnx::{OnnxNetwork, WeightBytes, file_network, holds_number, with_half_floats};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Operators whose inputs all have one type.
const OF_ONE_TYPE: [&str; 9] = ["Add", "Concat", "Conv", "Div", "Gemm", "MatMul", "Mul", "Pow", "Sub"];

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/onnx");
    let files = [root.clone(), root.join("run")].into_iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let mut found: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "onnx"));
    found.sort();
    found
}

fn network(path: &Path) -> OnnxNetwork {
    let checkpoint = Checkpoint::open(path).unwrap();
    let file = checkpoint.network_file().unwrap();
    let imported = import_named(file, &InputDims::default()).unwrap();
    file_network(file, imported, checkpoint.tensors()).unwrap()
}

fn half(path: &Path, holds: &dyn Fn(&str) -> Result<bool>) -> Result<OnnxNetwork> {
    with_half_floats(network(path), holds)
}

/// Panics if an operator has inputs of different types, or an input that nothing gives.
fn check(model: &OnnxModel) {
    let mut types: BTreeMap<String, OnnxType> = model.carried.as_ref().unwrap().types.clone();
    let given: Vec<&String> = model.inputs.iter().map(|input| &input.name).collect();
    types.retain(|name, _| given.contains(&name));
    types.extend(model.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.dtype)));
    for node in &model.nodes {
        let known: Vec<OnnxType> = node.inputs.iter().filter_map(|name| types.get(name).copied()).collect();
        if OF_ONE_TYPE.contains(&&*node.op) {
            assert!(known.windows(2).all(|pair| pair[0] == pair[1]), "{node:?}: {known:?}");
        }
        let result = match &*node.op {
            "Cast" => OnnxType::numbered(node.int("to", 0)),
            "Where" => node.inputs.get(1).and_then(|name| types.get(name).copied()),
            op if OF_ONE_TYPE.contains(&op) => known.first().copied(),
            "DequantizeLinear" => node.inputs.get(1).and_then(|name| types.get(name).copied()),
            "GatherBlockQuantized" => node.inputs.get(2).and_then(|name| types.get(name).copied()),
            "Constant" | "ConstantOfShape" | "Equal" | "Greater" | "If" | "Less" | "Loop" | "Shape" => None,
            _ => node.inputs.first().and_then(|name| types.get(name).copied()),
        };
        types.extend(node.outputs.iter().filter_map(|name| Some((name.clone(), result?))));
    }
    let names: Vec<&String> = model.nodes.iter().map(|node| &node.name).filter(|name| !name.is_empty()).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "nodes with the same name");
    let outputs: Vec<&str> = model.outputs.iter().map(|output| output.name.as_str()).collect();
    for name in outputs {
        assert_ne!(types.get(name), Some(&OnnxType::F16), "{name}");
    }
}

fn count(nodes: &[OnnxNode], op: &str) -> usize {
    nodes.iter().filter(|node| node.op == op).count()
}

#[test]
fn operators_of_every_fixture_get_inputs_of_one_type() {
    let mut n_half = 0;
    for path in fixtures() {
        match half(&path, &|_| Ok(true)) {
            Ok(found) => {
                check(&found.model);
                n_half += found.weights.iter().filter(|weight| weight.bytes == WeightBytes::HalfFloats).count();
            }
            Err(error) => assert!(error.message.contains("no weight that becomes f16"), "{}: {error}", path.display()),
        }
    }
    assert!(n_half > 30, "{n_half}");
}

#[test]
fn products_compute_in_f16_and_norms_in_f32() {
    let path = fixtures().into_iter().find(|path| path.ends_with("run/encoder.onnx")).unwrap();
    let (before, found) = (network(&path), half(&path, &|_| Ok(true)).unwrap());
    let n_casts = count(&found.model.nodes, "Cast") - count(&before.model.nodes, "Cast");
    assert!(n_casts > 0 && found.model.nodes.len() == before.model.nodes.len() + n_casts);
    for node in &found.model.nodes {
        let is_half = node.outputs[0].ends_with("/f16");
        match &*node.op {
            "MatMul" | "Gemm" => assert!(is_half, "{node:?}"),
            "Softmax" | "LayerNormalization" | "ReduceMean" | "Sqrt" | "Pow" => assert!(!is_half, "{node:?}"),
            _ => {}
        }
    }
    let reads = |op: &str, name: &str| found.model.nodes.iter().any(|node| node.op == op && node.inputs[0] == name);
    let casts = found.model.nodes.iter().filter(|node| node.op == "Cast" && node.inputs[0].ends_with("/f16"));
    casts.for_each(|cast| assert!(!reads("ReduceMean", &cast.outputs[0]), "{cast:?}"));
    // Nodes that stay in f32 keep all that the file has, and their names.
    let kept = found.model.nodes.iter().filter(|node| before.model.nodes.contains(node)).count();
    assert!(kept > 10, "{kept}");
}

#[test]
fn weights_that_f16_does_not_hold_stay_with_their_nodes() {
    let path = fixtures().into_iter().find(|path| path.ends_with("convolutions.onnx")).unwrap();
    let all = half(&path, &|_| Ok(true)).unwrap();
    let is_half = |network: &OnnxNetwork, name: &str| {
        network.model.tensors.iter().any(|tensor| tensor.name == name && tensor.dtype == OnnxType::F16)
    };
    let of = |node: &&OnnxNode| node.op == "Conv" && is_half(&all, &node.inputs[1]);
    let weight = all.model.nodes.iter().find(of).unwrap().inputs[1].clone();
    let found = half(&path, &|name| Ok(name != weight)).unwrap();
    check(&found.model);
    assert!(!is_half(&found, &weight));
    let node = found.model.nodes.iter().find(|node| node.inputs.contains(&weight)).unwrap();
    assert!(!node.outputs[0].ends_with("/f16"), "{node:?}");

    let error = half(&path, &|_| Ok(false)).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
}

#[test]
fn small_numbers_and_bounds_below_the_range_of_f16_are_not_held() {
    assert!([0.0, 1.0, -65504.0, 1e-5, f32::INFINITY].into_iter().all(holds_number));
    assert!([1e-12, 1e-7, 65520.0, f32::MIN, 1e30].into_iter().all(|value| !holds_number(value)));
}

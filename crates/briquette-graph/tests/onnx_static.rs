//! Static int8 ONNX models of convolutional families: pairs around every layer, and no float operators between them.

#![allow(clippy::unwrap_used)]

use briquette_core::Result;
use briquette_formats::onnx_write::{OnnxData, OnnxModel, OnnxNode, OnnxType};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::fixed_values::{FixedGrids, fixed_values};
use briquette_graph::onnx::{InputDims, import_named};
use briquette_graph::op::FixedGrid;
use briquette_graph::to_onnx::static_int8::{self, ActivationScale, LayerCodes, StaticKind, StaticPlan, ValueScale};
use briquette_graph::to_onnx::{LinearForm, OnnxFloat, OnnxNetwork, TableForm, WeightForms, file_network, to_onnx};
use briquette_graph::{Extents, Weight, known_graph_of};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

struct Floats;

impl WeightForms for Floats {
    fn linear(&self, _: &Weight) -> LinearForm {
        LinearForm::Float
    }

    fn table(&self, _: &Weight) -> TableForm {
        TableForm::Float
    }

    fn is_transposed_in_memory(&self, _: &Weight) -> bool {
        true
    }
}

fn plan(name: &str) -> Result<StaticPlan> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families").join(name);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let build = |extents: Extents| known_graph_of(&checkpoint, &extents.into());
    static_int8::plan(to_onnx(&build, OnnxFloat::F32, &Floats).unwrap())
}

/// Finishes a plan with scales of 1 for weights, and a scale of its own for each observed value.
fn finished(plan: StaticPlan) -> OnnxNetwork {
    let scales = plan.scales(&|id| ActivationScale { scale: 1.0 + id.0 as f32, zero: 7 });
    let graph = &plan.network().graph;
    let n_out = |id: briquette_graph::WeightId| graph.weights[id.0].shape.0[0];
    let codes: Vec<LayerCodes> = plan
        .layers
        .iter()
        .map(|layer| LayerCodes { scales: vec![1.0; n_out(layer.weight)], bias: vec![5; n_out(layer.weight)] })
        .collect();
    static_int8::finish(plan, &scales, &codes).unwrap()
}

/// Returns the model of a family whose values are on one grid, with scales of 1 for weights.
fn on_grids(name: &str, grid: FixedGrid) -> OnnxModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families").join(name);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let build = |extents: Extents| {
        let graph = known_graph_of(&checkpoint, &extents.into())?;
        let names = fixed_values(&graph, &|_| true)?.into_iter().map(|fixed| graph.values[fixed.value.0].clone());
        let values = names.map(|name| (name, grid)).collect();
        let weights = graph.weights.iter().map(|weight| weight.name.clone()).collect();
        FixedGrids { values, weights, layers: BTreeMap::new() }.apply(graph)
    };
    let plan = static_int8::paired(to_onnx(&build, OnnxFloat::F32, &Floats).unwrap(), &|_| true).unwrap();
    assert!(!plan.layers.is_empty() && plan.scales.iter().all(|scale| *scale == grid.scale), "{name}");
    let graph = &plan.network().graph;
    let n_out = |layer: &static_int8::StaticLayer| graph.weights[layer.weight.0].shape.0[0];
    let codes = |n: usize| LayerCodes { scales: vec![1.0; n], bias: vec![5; n] };
    let codes: Vec<LayerCodes> = plan.layers.iter().map(|layer| codes(n_out(layer))).collect();
    plan.finish(&codes).model
}

#[test]
fn values_on_grids_have_pairs_and_bounds_replace_functions() {
    let grid = |scale, zero| FixedGrid { scale, zero, codes: [0, 255] };
    let functions = |model: &OnnxModel| ["Relu", "Clip", "BatchNormalization"].map(|op| count(model, op));
    for name in ["resnet", "mobilenet_v2-transformers", "efficientnet_lite", "mobilenet_v3-small", "vgg_bn", "densenet"]
    {
        let model = on_grids(name, grid(0.02, 3));
        check(&model);
        assert!(count(&model, "QuantizeLinear") > 5, "{name}");
    }
    assert_eq!(functions(&on_grids("resnet-basic", grid(0.1, 0))), [0; 3]);
    assert_eq!(functions(&on_grids("mobilenet_v2", grid(6.0 / 255.0, 0))), [0; 3]);
    // A grid with values that the function changes needs the function.
    let [relu, ..] = functions(&on_grids("resnet-basic", grid(0.1, 3)));
    let [_, clip, _] = functions(&on_grids("mobilenet_v2", grid(0.1, 0)));
    assert!(relu > 3 && clip > 10, "{relu} {clip}");
}

fn count(model: &OnnxModel, op: &str) -> usize {
    model.nodes.iter().filter(|node| node.op == op).count()
}

/// Every input is given, constant or computed before, every name has one value, and every tensor is used.
fn check(model: &OnnxModel) {
    let mut known: BTreeSet<&str> = model.inputs.iter().map(|input| input.name.as_str()).collect();
    let used: BTreeSet<&str> = model.nodes.iter().flat_map(|node| &node.inputs).map(String::as_str).collect();
    for tensor in &model.tensors {
        assert!(known.insert(&tensor.name) && used.contains(tensor.name.as_str()), "{}", tensor.name);
        if let OnnxData::Inline(bytes) = &tensor.data {
            assert_eq!(bytes.len() as u64, tensor.n_bytes().unwrap(), "{}", tensor.name);
        }
    }
    for node in &model.nodes {
        let is_known = |name: &String| name.is_empty() || known.contains(name.as_str());
        assert!(node.inputs.iter().all(is_known), "{node:?}");
        node.outputs.iter().for_each(|output| assert!(known.insert(output), "{output} twice"));
    }
    let names: BTreeSet<&str> = model.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names.len(), model.nodes.len(), "nodes with the same name");
    assert!(model.outputs.iter().all(|output| known.contains(output.name.as_str())));
}

#[test]
fn every_convolutional_family_has_a_sound_model() {
    let names = [
        "resnet",
        "resnet-basic",
        "resnet-early",
        "mobilenet_v2",
        "mobilenet_v2-transformers",
        "efficientnet_lite",
        "efficientnet",
        "efficientnet_v2",
        "mobilenet_v3-large",
        "mobilenet_v3-small",
        "vgg",
        "vgg_bn",
        "densenet",
        "convnext",
        "convnext-torchvision",
    ];
    for name in names {
        let plan = plan(name).unwrap();
        let n_layers = plan.layers.iter().filter(|layer| layer.kind != StaticKind::MatMul).count();
        let network = finished(plan);
        check(&network.model);
        let model = &network.model;
        assert_eq!(count(model, "Conv") + count(model, "Gemm"), n_layers, "{name}");
        let is_used = |node: &OnnxNode| model.nodes.iter().any(|other| other.inputs.contains(&node.outputs[0]));
        assert!(model.nodes.iter().filter(|node| node.op == "DequantizeLinear").all(is_used), "{name}");
    }
}

#[test]
fn no_float_operator_is_left_between_the_layers_of_usual_networks() {
    for name in ["resnet", "resnet-basic", "mobilenet_v2", "mobilenet_v2-transformers", "efficientnet_lite"] {
        let network = finished(plan(name).unwrap());
        let left: BTreeSet<&str> = network.model.nodes.iter().map(|node| &*node.op).collect();
        for op in ["BatchNormalization", "Relu", "Clip", "MatMul"] {
            assert!(!left.contains(op), "{name} has a {op}");
        }
        // Each operator but those of pairs reads codes.
        let makers: BTreeMap<&str, &str> = network
            .model
            .nodes
            .iter()
            .flat_map(|node| node.outputs.iter().map(move |name| (name.as_str(), &*node.op)))
            .collect();
        let layers = network
            .model
            .nodes
            .iter()
            .filter(|node| !node.op.ends_with("quantizeLinear") && node.op != "QuantizeLinear");
        for node in layers {
            let reads_codes = makers.get(node.inputs[0].as_str()) == Some(&"DequantizeLinear");
            assert!(reads_codes || node.op == "DequantizeLinear", "{name}: {node:?}");
        }
    }
}

#[test]
fn bounds_from_nodes_are_merged_as_bounds_from_tensors_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/onnx/convolutions.onnx");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let file = checkpoint.onnx_file().unwrap();
    let imported = import_named(file, &InputDims::default()).unwrap();
    let model = finished(static_int8::plan(file_network(file, imported, checkpoint.tensors()).unwrap()).unwrap()).model;
    let left = ["Conv", "Relu", "Clip", "Constant"].map(|op| count(&model, op));
    assert_eq!(left, [3, 0, 0, 0], "the bounds are constants that nothing else reads");
}

#[test]
fn the_last_layer_computes_floats_and_pools_keep_the_scale() {
    let plan = plan("vgg").unwrap();
    let pooled = plan.values.iter().filter(|value| matches!(value.scale, ValueScale::Same(_)));
    assert!(pooled.count() >= 1, "its pools keep the scale");
    let model = finished(plan).model;
    let last = model.nodes.iter().rfind(|node| node.op == "Gemm").unwrap();
    assert_eq!(last.outputs, ["logits"]);
    let codes = model.tensors.iter().find(|tensor| tensor.name == "classifier.6.weight.codes").unwrap();
    assert_eq!((codes.dtype, codes.shape[0]), (OnnxType::I8, 5));
    let bias = model.tensors.iter().find(|tensor| tensor.name == "classifier.6.weight.bias.scale").unwrap();
    // The scale of a bias is the product of the scales of input and weight; weights have 1 here.
    let input = model.tensors.iter().filter(|tensor| tensor.name.ends_with("/scale"));
    let floats = |data: &OnnxData| match data {
        OnnxData::Inline(bytes) => f32::from_le_bytes(bytes[..4].try_into().unwrap()),
        _ => panic!("a scale is in memory"),
    };
    assert!(input.map(|tensor| floats(&tensor.data)).any(|scale| scale == floats(&bias.data)));
}

#[test]
fn other_networks_are_refused_with_the_scheme_that_fits() {
    for (name, what) in [("bert", "attention"), ("vit", "attention"), ("swin", "attention"), ("llama", "attention")] {
        let text = plan(name).unwrap_err().to_string();
        assert!(text.contains(what) && text.ends_with("use --quantize int8-dynamic"), "{text}");
    }
}

//! ONNX models of every family: structure, names and dynamic extents. `bench/interop_onnx.py` runs them.

#![allow(clippy::unwrap_used)]

use briquette_formats::Checkpoint;
use briquette_formats::onnx_write::{OnnxData, OnnxDim, OnnxModel, OnnxType};
use briquette_graph::to_onnx::{LinearForm, OnnxFloat, OnnxNetwork, TableForm, WeightBytes, WeightForms, to_onnx};
use briquette_graph::{Extents, Weight, known_graph_of};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Weights of one form each.
struct Forms(LinearForm, TableForm);

/// int8 layers whose inputs are multiplied by vectors. Layers with one number share theirs.
struct ScaledForms(fn(&str) -> usize);

impl WeightForms for ScaledForms {
    fn linear(&self, _weight: &Weight) -> LinearForm {
        LinearForm::Int8Dynamic
    }

    fn input_scale(&self, weight: &Weight) -> Option<usize> {
        Some((self.0)(&weight.name))
    }

    fn table(&self, _weight: &Weight) -> TableForm {
        TableForm::Float
    }

    fn is_transposed_in_memory(&self, _weight: &Weight) -> bool {
        true
    }
}

impl WeightForms for Forms {
    fn linear(&self, _weight: &Weight) -> LinearForm {
        self.0
    }

    fn table(&self, _weight: &Weight) -> TableForm {
        self.1
    }

    fn is_transposed_in_memory(&self, _weight: &Weight) -> bool {
        true
    }
}

const FLOATS: Forms = Forms(LinearForm::Float, TableForm::Float);

fn families() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families")
}

fn network(name: &str, float: OnnxFloat, forms: &dyn WeightForms) -> briquette_core::Result<OnnxNetwork> {
    let checkpoint = Checkpoint::open(&families().join(name)).unwrap();
    to_onnx(&|extents: Extents| known_graph_of(&checkpoint, &extents.into()), float, forms)
}

fn model(name: &str) -> OnnxModel {
    network(name, OnnxFloat::F32, &FLOATS).unwrap().model
}

/// Every input is given, constant or computed before, and every name has one value.
fn check(model: &OnnxModel) {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let given = model.inputs.iter().map(|input| input.name.as_str());
    for name in given.chain(model.tensors.iter().map(|tensor| tensor.name.as_str())) {
        assert!(known.insert(name), "{name} twice");
    }
    for node in &model.nodes {
        for input in node.inputs.iter().filter(|name| !name.is_empty()) {
            assert!(known.contains(input.as_str()), "{} uses {input}", node.name);
        }
        for output in &node.outputs {
            assert!(known.insert(output), "{output} twice");
        }
    }
    let names: BTreeSet<&str> = model.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names.len(), model.nodes.len(), "nodes with the same name");
    assert!(model.outputs.iter().all(|output| known.contains(output.name.as_str())));
    for tensor in &model.tensors {
        if let OnnxData::Inline(bytes) = &tensor.data {
            assert_eq!(bytes.len() as u64, tensor.n_bytes().unwrap(), "{}", tensor.name);
        }
    }
}

#[test]
fn every_family_has_a_sound_model() {
    for entry in std::fs::read_dir(families()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for float in [OnnxFloat::F32, OnnxFloat::F16] {
            let found = network(&name, float, &FLOATS).unwrap();
            check(&found.model);
            assert!([13, 17].contains(&found.model.opset), "{name}");
        }
    }
}

#[test]
fn inputs_and_outputs_have_the_names_of_transformers_and_dynamic_extents() {
    let names = |name: &str| {
        let model = model(name);
        let of = |values: &[briquette_formats::onnx_write::OnnxValue]| -> Vec<String> {
            values.iter().map(|value| value.name.clone()).collect()
        };
        (of(&model.inputs), of(&model.outputs))
    };
    let strings = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
    let text = strings(&["input_ids", "attention_mask"]);
    let typed = strings(&["input_ids", "attention_mask", "token_type_ids"]);
    assert_eq!(names("camembert"), (text.clone(), strings(&["last_hidden_state", "pooler_output"])));
    assert_eq!(names("bert").0, typed);
    assert_eq!(names("bert").1, ["logits", "last_hidden_state", "pooler_output"]);
    assert_eq!(names("llama"), (text.clone(), strings(&["logits"])));
    assert_eq!(names("llama-base"), (text.clone(), strings(&["last_hidden_state"])));
    assert_eq!(names("t5"), (text, strings(&["last_hidden_state"])));
    assert_eq!(names("resnet"), (strings(&["pixel_values"]), strings(&["logits"])));

    let dims = |name: &str| (model(name).inputs[0].shape.clone(), model(name).outputs[0].shape.clone());
    let (batch, sequence) = (OnnxDim::Named("batch"), OnnxDim::Named("sequence"));
    let vocabulary = OnnxDim::Fixed(40);
    assert_eq!(dims("llama"), (vec![batch.clone(), sequence.clone()], vec![batch.clone(), sequence, vocabulary]));
    let [height, width] = ["height", "width"].map(OnnxDim::Named);
    let images = vec![batch.clone(), OnnxDim::Fixed(3), height, width];
    assert_eq!(dims("vgg"), (images, vec![batch.clone(), OnnxDim::Fixed(5)]));
    // Positions and windows fix the size of images.
    assert_eq!(dims("vit").0, [batch.clone(), OnnxDim::Fixed(3), OnnxDim::Fixed(16), OnnxDim::Fixed(16)]);
    assert_eq!(dims("swin").0, [batch, OnnxDim::Fixed(3), OnnxDim::Fixed(32), OnnxDim::Fixed(32)]);
}

#[test]
fn tied_and_shared_weights_are_stored_once() {
    let tied = network("qwen2", OnnxFloat::F32, &FLOATS).unwrap();
    let of = |found: &OnnxNetwork, name: &str| found.model.tensors.iter().filter(|t| t.name.starts_with(name)).count();
    assert_eq!(of(&tied, "model.embed_tokens.weight"), 1);
    assert_eq!(of(&tied, "lm_head"), 0);
    let head = tied.model.nodes.iter().rfind(|node| node.op == "MatMul").unwrap();
    assert!(head.inputs[1].starts_with("transposed/Transpose"), "{head:?}");
    // ALBERT has one layer, which runs twice.
    let albert = network("albert", OnnxFloat::F32, &FLOATS).unwrap();
    let weights: BTreeSet<_> = albert.weights.iter().collect();
    assert_eq!(weights.len(), albert.weights.len());
    let queries = albert.model.nodes.iter().filter(|node| node.inputs.iter().any(|name| name.contains("query.weight")));
    assert_eq!(queries.count(), 2);
}

#[test]
fn integer_products_share_the_rounded_input_of_queries_keys_and_values() {
    let plain = Forms(LinearForm::Int8Dynamic, TableForm::Float);
    for (forms, has_scales) in [(&plain as &dyn WeightForms, false), (&ScaledForms(|_| 0), true)] {
        let found = network("bert", OnnxFloat::F32, forms).unwrap();
        check(&found.model);
        let count = |op: &str| found.model.nodes.iter().filter(|node| node.op == op).count();
        let n_linear = 2 * 6 + 2;
        assert_eq!(count("MatMulInteger"), n_linear);
        assert_eq!(count("DynamicQuantizeLinear"), n_linear - 2 * 2, "one for each input");
        let scales = found.weights.iter().filter(|weight| weight.bytes == WeightBytes::InputScales).count();
        assert_eq!(scales, if has_scales { n_linear - 4 } else { 0 });
        let codes = |tensor: &&briquette_formats::onnx_write::OnnxTensor| tensor.dtype == OnnxType::I8;
        assert_eq!(found.model.tensors.iter().filter(codes).count(), n_linear);
    }
}

#[test]
fn layers_of_one_input_with_other_vectors_multiply_it_by_their_own() {
    let is_query = |name: &str| usize::from(name.contains("query"));
    let found = network("bert", OnnxFloat::F32, &ScaledForms(is_query)).unwrap();
    check(&found.model);
    let maker = |name: &str| found.model.nodes.iter().find(|node| node.outputs.iter().any(|output| output == name));
    let mut n_checked = 0;
    for product in found.model.nodes.iter().filter(|node| node.op == "MatMulInteger") {
        let scaled = maker(&maker(&product.inputs[0]).unwrap().inputs[0]).unwrap();
        let (scale, codes) = (&scaled.inputs[1], &product.inputs[1]);
        assert!(scaled.op == "Mul" && scale.ends_with(".input_scale"), "{scaled:?}");
        assert_eq!(is_query(codes), is_query(scale), "{codes} with {scale}");
        n_checked += is_query(codes);
    }
    assert_eq!(n_checked, 2);
    let rounded = found.model.nodes.iter().filter(|node| node.op == "DynamicQuantizeLinear").count();
    assert_eq!(rounded, 2 * 6 + 2 - 2, "keys and values share their input");
}

#[test]
fn tables_store_scales_in_f16_unless_a_head_is_tied_to_them() {
    for (name, has_half_scales, n_half) in [("bert", true, 3), ("bert", false, 0), ("qwen2", true, 0)] {
        let forms = Forms(LinearForm::Int8Dynamic, TableForm::Int8 { has_half_scales });
        let found = network(name, OnnxFloat::F32, &forms).unwrap();
        check(&found.model);
        let halves = found.model.tensors.iter().filter(|tensor| tensor.dtype == OnnxType::F16);
        assert_eq!(halves.count(), n_half, "{name}");
    }
}

/// Forms whose codes in groups need ONNX's own operators only.
struct OwnOperators(Forms);

impl WeightForms for OwnOperators {
    fn linear(&self, weight: &Weight) -> LinearForm {
        self.0.linear(weight)
    }
    fn table(&self, weight: &Weight) -> TableForm {
        self.0.table(weight)
    }
    fn is_transposed_in_memory(&self, weight: &Weight) -> bool {
        self.0.is_transposed_in_memory(weight)
    }
    fn has_own_operators(&self) -> bool {
        true
    }
}

#[test]
fn reductions_have_the_axes_that_the_opset_of_blocks_wants() {
    let blocks = LinearForm::Blocks { bits: 4, group: 16, has_zero_points: false };
    let forms = OwnOperators(Forms(blocks, TableForm::Float));
    let [older, newer] = [&forms.0 as &dyn WeightForms, &forms].map(|forms| {
        let found = network("llama", OnnxFloat::F32, forms).unwrap();
        check(&found.model);
        found.model
    });
    assert!(older.opset < 18 && newer.opset == 21, "{} {}", older.opset, newer.opset);
    let inputs = |model: &OnnxModel| -> Vec<(usize, usize)> {
        let means = model.nodes.iter().filter(|node| node.op == "ReduceMean");
        means.map(|node| (node.inputs.len(), node.attributes.len())).collect()
    };
    assert!(!inputs(&older).is_empty() && inputs(&older).iter().all(|each| *each == (1, 1)));
    assert!(inputs(&newer).len() == inputs(&older).len() && inputs(&newer).iter().all(|each| *each == (2, 0)));
}

#[test]
fn codes_in_groups_are_operators_of_onnxruntime_with_packed_shapes() {
    let forms = Forms(LinearForm::Blocks { bits: 4, group: 16, has_zero_points: true }, TableForm::Float);
    let found = network("llama", OnnxFloat::F32, &forms).unwrap();
    check(&found.model);
    let node = found.model.nodes.iter().find(|node| node.op == "MatMulNBits").unwrap();
    assert_eq!((&*node.domain, node.inputs.len()), ("com.microsoft", 4));
    let shape = |at: usize| {
        let tensor = found.model.tensors.iter().find(|tensor| tensor.name == node.inputs[at]).unwrap();
        (tensor.dtype, tensor.shape.clone())
    };
    // 16 outputs and 16 inputs: one group of 8 bytes.
    assert_eq!(shape(1), (OnnxType::U8, vec![16, 1, 8]));
    assert_eq!(shape(2), (OnnxType::F32, vec![16, 1]));
    assert_eq!(shape(3), (OnnxType::U8, vec![16, 1]));
}

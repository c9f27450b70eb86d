//! `export --to onnx` of outputs with static int8: the model has the codes and the grids of the directory.
#![cfg(feature = "model")]

use crate::onnx_static::{DATA, Interpreter, best, digits};
use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, stored_tensors_of, tensors_of};
use briquette::formats::InputFile;
use briquette::formats::onnx::{Model, Node};
use std::collections::{BTreeMap, BTreeSet};

const STATIC: &str = "--quantize int8-static --data digits-data.safetensors --samples 200 --quiet";

fn metric(sandbox: &Sandbox, line: &str, name: &str) -> f64 {
    sandbox.json(line)["metrics"][name].as_f64().unwrap_or_else(|| panic!("{line}: no {name}"))
}

fn nodes(sandbox: &Sandbox, directory: &str) -> Vec<Node> {
    let file = InputFile::open(&sandbox.path(&format!("{directory}/model.onnx"))).unwrap();
    Model::read(&file).unwrap().graph.nodes
}

/// Returns the names of convolutions between codes, and of all others.
fn convolutions(nodes: &[Node]) -> [BTreeSet<&str>; 2] {
    let makers: BTreeMap<&str, &Node> =
        nodes.iter().flat_map(|node| node.outputs.iter().map(move |name| (name.as_str(), node))).collect();
    let is_decoded = |name: &String| makers.get(name.as_str()).is_some_and(|maker| maker.op_type == "DequantizeLinear");
    let is_between = |node: &&Node| {
        let mut readers = nodes.iter().filter(|reader| reader.inputs.contains(&node.outputs[0]));
        node.inputs.len() == 3
            && node.inputs.iter().all(is_decoded)
            && readers.all(|reader| reader.op_type == "QuantizeLinear")
    };
    let (between, others): (Vec<&Node>, _) = nodes.iter().filter(|node| node.op_type == "Conv").partition(is_between);
    [between, others].map(|list| list.into_iter().map(|node| node.outputs[0].as_str()).collect())
}

fn count(nodes: &[Node], op: &str) -> usize {
    nodes.iter().filter(|node| node.op_type == op).count()
}

#[test]
fn the_model_has_the_codes_scales_and_grids_of_the_directory() {
    let sandbox = digits();
    sandbox.ok(&format!("compress digits -o out {STATIC}"));
    let found = sandbox.json("export out --to onnx -o onnx");
    assert_eq!(found["weights"], serde_json::json!({ "int8-static": 4 }), "{found}");
    sandbox.ok("verify onnx");
    let model = Interpreter::open(&sandbox, "onnx/model.onnx");
    let stored = stored_tensors_of(&sandbox.path("out/model.briquette.safetensors"));
    for layer in ["conv1", "conv2", "fc1", "fc2"] {
        let codes: Vec<f64> =
            stored[&format!("{layer}.weight.codes")].bytes.iter().map(|byte| f64::from(*byte as i8)).collect();
        assert_eq!(model.constants[&format!("{layer}.weight.codes")].1, codes, "{layer}");
        let scales: Vec<f64> = stored[&format!("{layer}.weight.scale")].floats().into_iter().map(f64::from).collect();
        // Scales of convolutions take up their batch norms.
        let is_equal = model.constants[&format!("{layer}.weight.scale")].1 == scales;
        assert_eq!(is_equal, layer.starts_with("fc"), "{layer}");
    }
    let grids = std::fs::read(sandbox.path("out/briquette-activations.json")).unwrap();
    let grids: serde_json::Value = serde_json::from_slice(&grids).unwrap();
    assert_eq!(found["n_grids"], grids["values"].as_object().unwrap().len());

    let line = format!("eval onnx --against out --data {DATA} --threads 1");
    assert!(metric(&sandbox, &line, "agreement") == 1.0 && metric(&sandbox, &line, "kl") < 1e-5);
    let data = tensors_of(&sandbox.path(DATA));
    let is_right = |at: &usize| {
        let pixels = data["test_x"].bytes[at * 64..(at + 1) * 64].iter().map(|pixel| f64::from(*pixel) / 16.0);
        best(&model.logits((vec![1, 1, 8, 8], pixels.collect()))) == usize::from(data["test_y"].bytes[*at])
    };
    let n_right = (0..100).filter(is_right).count();
    assert!(n_right >= 97, "{n_right} of 100");
}

#[test]
fn convolutional_families_agree_with_the_directory() {
    for (family, n_fused, n_others) in [
        ("resnet-basic", 8, 0),
        ("mobilenet_v2", 52, 0),
        ("mobilenet_v2-transformers", 52, 0),
        ("efficientnet_lite", 22, 0),
        ("vgg_bn", 3, 1),
        ("mobilenet_v3-small", 22, 28),
        ("densenet", 7, 10),
    ] {
        let sandbox = Sandbox::with(&format!("families/{family}"));
        copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
        let flags = "--quantize int8-static --data images --activation-range minmax --quiet";
        sandbox.ok(&format!("compress {family} -o out {flags}"));
        sandbox.ok("export out --to onnx -o onnx --quiet");
        let cosine = metric(&sandbox, "eval onnx --against out --data images --threads 1", "cosine");
        // Biases are integers in ONNX, so that a few codes of these small networks differ by 1.
        assert!(cosine > 0.9995, "{family}: {cosine}");
        let nodes = nodes(&sandbox, "onnx");
        let [fused, others] = convolutions(&nodes);
        assert_eq!((fused.len(), others.len()), (n_fused, n_others), "{family}: {others:?}");
        if n_others == 0 {
            assert_eq!(["BatchNormalization", "Relu", "Clip"].map(|op| count(&nodes, op)), [0; 3], "{family}");
        }
    }
}

/// Changes the elements of a tensor of f32.
fn edit(tensors: &mut BTreeMap<String, Tensor>, name: &str, change: impl Fn(&mut [f32])) {
    let tensor = &tensors[name];
    let mut values = tensor.floats();
    change(&mut values);
    tensors.insert(name.into(), Tensor::f32(name, &tensor.shape.clone(), values));
}

#[test]
fn batch_norms_may_turn_signs_and_weights_may_be_almost_zero() {
    let sandbox = Sandbox::with("models/resnet18-tiny.pth");
    copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
    let mut tensors = tensors_of(&sandbox.path("resnet18-tiny.pth"));
    edit(&mut tensors, "bn1.weight", |gains| (gains[0], gains[1]) = (-gains[0], 0.0));
    edit(&mut tensors, "bn1.bias", |shifts| (shifts[1], shifts[2]) = (0.4, 0.3));
    let n_rows = tensors["conv1.weight"].shape[0];
    edit(&mut tensors, "conv1.weight", |weights| {
        let n = weights.len() / n_rows;
        weights[2 * n..3 * n].iter_mut().for_each(|weight| *weight *= 1e-20);
    });
    let tensors: Vec<Tensor> = tensors.into_values().collect();
    sandbox.write("resnet18.safetensors", safetensors_of(&tensors));
    sandbox.ok("compress resnet18.safetensors -o out --quantize int8-static --data images --quiet");
    sandbox.ok("export out --to onnx -o onnx --quiet");
    let line = "eval onnx --against out --data images --threads 1";
    assert!(metric(&sandbox, line, "cosine") > 0.9999, "{}", sandbox.json(line));
    let model = Interpreter::open(&sandbox, "onnx/model.onnx");
    let stored = stored_tensors_of(&sandbox.path("out/model.briquette.safetensors"));
    let own: Vec<f64> = stored["conv1.weight.codes"].bytes.iter().map(|byte| f64::from(*byte as i8)).collect();
    let found = &model.constants["conv1.weight.codes"].1;
    let n = own.len() / model.constants["conv1.weight.scale"].1.len();
    let row = |codes: &[f64], at: usize| codes[at * n..(at + 1) * n].to_vec();
    assert_eq!(row(found, 0), row(&own, 0).into_iter().map(|code| -code).collect::<Vec<_>>());
    assert_eq!([row(found, 1), row(found, 2)], [vec![0.0; n], vec![0.0; n]]);
    assert_eq!(row(found, 3), row(&own, 3));
    assert!(model.constants["conv1.weight.scale"].1.iter().all(|scale| *scale > 0.0));
}

#[test]
fn linear_layers_of_an_encoder_round_their_inputs() {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    let flags = "--quantize int8-static --data text.txt --max-length 16 --quiet";
    // Attention between layers with codes rounds its probabilities in Briquette, and not in ONNX.
    let without_attention = "--quantize-roles linear --exclude **.attention.self.*.weight";
    for (out, more, n_expected, n_scales, least) in [
        ("own", without_attention.to_string(), 6, 0, 0.999_999_9),
        ("scaled", format!("{without_attention} --column-scales"), 6, 6, 0.999_999_9),
        ("whole", "--quantize-roles linear --column-scales".into(), 12, 8, 0.9999),
    ] {
        sandbox.ok(&format!("compress bert-tiny -o {out} {flags} {more}"));
        let found = sandbox.json(&format!("export {out} --to onnx -o {out}-onnx"));
        sandbox.ok(&format!("verify {out}-onnx"));
        let nodes = nodes(&sandbox, &format!("{out}-onnx"));
        let decoded: BTreeSet<&String> =
            nodes.iter().filter(|node| node.op_type == "DequantizeLinear").flat_map(|node| &node.outputs).collect();
        let is_layer = |node: &&Node| node.op_type == "MatMul" && node.inputs.iter().all(|name| decoded.contains(name));
        let n_layers = nodes.iter().filter(is_layer).count();
        assert_eq!((n_layers, &found["weights"]["int8-static"]), (n_expected, &n_layers.into()), "{found}");
        // Queries, keys and values of two attentions.
        let n_operands = if n_expected == 12 { 6 } else { 0 };
        assert!(found["n_grids"].as_u64().unwrap() <= n_layers as u64 + n_operands, "{found}");
        assert!(found["n_input_scales"].as_u64().unwrap() >= n_scales, "{found}");
        let line = format!("eval {out}-onnx --against {out} --data text.txt --max-length 16");
        let cosine = metric(&sandbox, &line, "cosine");
        assert!(cosine > least, "{out}: {cosine}");
    }
    // Tables have codes too.
    sandbox.ok(&format!("compress bert-tiny -o all {flags}"));
    let found = sandbox.json("export all --to onnx -o all-onnx");
    assert_eq!((&found["weights"]["int8"], &found["weights"]["int8-static"]), (&3.into(), &12.into()), "{found}");
    assert_eq!(count(&nodes(&sandbox, "all-onnx"), "MatMulInteger"), 0);
}

#[test]
fn other_storage_and_trainings_give_their_own_codes() {
    let sandbox = digits();
    sandbox.ok(&format!("compress digits -o out {STATIC}"));
    sandbox.ok("export out --to briquette --storage entropy -o smaller --quiet");
    for out in ["out", "smaller"] {
        sandbox.ok(&format!("export {out} --to onnx -o {out}-onnx --quiet"));
    }
    let [own, smaller] = ["out-onnx", "smaller-onnx"].map(|out| tensors_of(&sandbox.path(out)));
    assert!(own.len() > 4 && own == smaller, "{:?}", own.keys());
    sandbox.write("recipe.toml", crate::static_int8::TRAINED);
    sandbox.ok("distill recipe.toml --quiet");
    sandbox.ok("export trained --to onnx -o trained-onnx --quiet");
    let line = format!("eval trained-onnx --against trained --data {DATA} --threads 1");
    assert!(metric(&sandbox, &line, "agreement") == 1.0 && metric(&sandbox, &line, "kl") < 1e-5);
    assert_ne!(own, tensors_of(&sandbox.path("trained-onnx")));
}

#[test]
fn other_codes_and_types_are_refused_in_one_line() {
    let sandbox = digits();
    sandbox.ok(&format!("compress digits -o out {STATIC}"));
    for (flags, phrase) in [
        ("--cast f16", "--cast: found f16 for a model with static int8 activations"),
        ("--quantize int8-dynamic", "remove --quantize to keep its codes"),
        ("--quantize int8-static --data digits-data.safetensors", "remove --quantize to keep its codes"),
    ] {
        sandbox.run(&format!("export out --to onnx -o onnx {flags}")).assert_fails(2, &[phrase]);
        assert!(!sandbox.path("onnx").exists(), "{flags}");
    }
    std::fs::remove_file(sandbox.path("out/briquette-activations.json")).unwrap();
    sandbox.run("export out --to onnx -o onnx").assert_fails(4, &["is missing, and layers have static int8"]);
}

//! ONNX models whose weights are in our own format: they run, are trained, lose channels, and become ONNX again with codes.
#![cfg(feature = "model")]

use crate::decoders::with_text;
use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{stored_tensors_of, tensors_of};
use briquette::core::DType;
use briquette::formats::onnx::Model;
use briquette::formats::{Checkpoint, InputFile, TensorSource};
use serde_json::json;

const DATA: &str = "digits-data.safetensors";

/// The digits network as a checkpoint and as `n/model.onnx`, with its data.
fn digits() -> Sandbox {
    let sandbox = Sandbox::with("digits");
    copy(&repository().join("fixtures").join(DATA), &sandbox.path(DATA));
    sandbox.ok("export digits --to onnx -o n");
    sandbox
}

/// The metrics of a model beside the digits checkpoint.
fn metrics(sandbox: &Sandbox, model: &str) -> serde_json::Value {
    sandbox.json(&format!("eval {model} --against digits --data {DATA}"))["metrics"].clone()
}

/// The weights of a model as bytes, by name; matrices `[in, out]` are named as their transposed weights.
fn values(sandbox: &Sandbox, model: &str) -> Vec<(String, usize, f64)> {
    let checkpoint = Checkpoint::open(&sandbox.path(model)).unwrap();
    let mut found = Vec::new();
    for (index, info) in checkpoint.tensors().iter().enumerate().filter(|(_, info)| info.dtype.is_weight()) {
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(index, 0, &mut bytes).unwrap();
        let values: Vec<f64> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect();
        let sum = values.iter().map(|value| value * value).sum();
        found.push((info.name.replace(".transposed", ""), values.len(), sum));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn weights_in_constant_nodes_are_written_with_their_values() {
    let sandbox = Sandbox::new();
    copy(&repository().join("fixtures/onnx/constants.onnx"), &sandbox.path("c.onnx"));
    for flags in ["--quantize int8", "--quantize int8-dynamic", "--prune 0.5", "--quantize int4 --exclude last"] {
        sandbox.ok(&format!("compress c.onnx -o coded --format briquette --force {flags}"));
        sandbox.ok("export coded --to onnx -o onnx --force");
        sandbox.ok("verify onnx");
        sandbox.ok("export coded --to dense -o dense --force");
        let model = Model::read(&InputFile::open(&sandbox.path("onnx/model.onnx")).unwrap()).unwrap();
        let has_values = model.graph.initializers.iter().filter(|tensor| tensor.listed().is_some()).count();
        assert!(has_values >= 2 && model.graph.nodes.iter().all(|node| node.op_type != "Constant"), "{flags}");
        assert!(tensors_of(&sandbox.path("dense")).len() == 2, "{flags}");
    }
    // The export of floats has the values of the output.
    sandbox.ok("compress c.onnx -o coded --format briquette --force --prune 0.5");
    sandbox.ok("export coded --to onnx -o onnx --force");
    assert_eq!(values(&sandbox, "onnx"), values(&sandbox, "coded"));
}

#[test]
fn codes_of_an_onnx_model_run_as_those_of_its_checkpoint() {
    let sandbox = digits();
    sandbox.ok("compress n --quantize int8-dynamic --format briquette -o coded");
    sandbox.ok("compress digits --quantize int8-dynamic -o expected");
    assert!(sandbox.path("coded/network.onnx").exists());
    sandbox.ok("verify coded");
    let network = std::fs::metadata(sandbox.path("coded/network.onnx")).unwrap().len();
    let whole = std::fs::metadata(sandbox.path("n/model.onnx")).unwrap().len();
    assert!(network < whole / 20, "{network} of {whole} bytes");
    assert_eq!(metrics(&sandbox, "coded"), metrics(&sandbox, "expected"));
    // A file without its directory has the settings beside it.
    sandbox.ok("compress n/model.onnx --prune 0.5 --format briquette -o pruned");
    sandbox.ok("compress digits --prune 0.5 -o expected-pruned");
    assert_eq!(metrics(&sandbox, "pruned"), metrics(&sandbox, "expected-pruned"));
    // A damaged network is found when it is opened.
    let path = sandbox.path("coded/network.onnx");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    sandbox.run(&format!("eval coded --data {DATA}")).assert_fails(4, &["network.onnx: found SHA-256"]);
}

#[test]
fn codes_become_operators_of_integers_and_other_nodes_stay() {
    let sandbox = digits();
    sandbox.ok("compress n --quantize int8-dynamic --format briquette -o coded");
    let found = sandbox.json("export coded --to onnx -o x");
    assert_eq!(found["weights"], json!({ "float": 14, "int8-dynamic": 2 }));
    sandbox.ok("verify x");
    let ops = |path: &str| -> Vec<String> {
        let file = InputFile::open(&sandbox.path(path)).unwrap();
        Model::read(&file).unwrap().graph.nodes.into_iter().map(|node| node.op_type).collect()
    };
    let (before, after) = (ops("n/model.onnx"), ops("x/model.onnx"));
    assert_eq!(before.iter().filter(|op| *op == "MatMul").count(), 2);
    assert_eq!(after.iter().filter(|op| *op == "MatMulInteger").count(), 2);
    let kept = |ops: &[String]| ops.iter().filter(|op| ["Conv", "Relu", "MaxPool"].contains(&op.as_str())).count();
    assert_eq!(kept(&before), kept(&after));
    let found = sandbox.json("export n --to onnx --quantize int8-dynamic -o y");
    assert_eq!(found["weights"], json!({ "float": 14, "int8-dynamic": 2 }));
    sandbox.ok("compress n --quantize int4-g16 --format briquette -o small");
    assert_eq!(sandbox.json("export small --to onnx -o z")["weights"], json!({ "blocks": 2, "float": 14 }));
    sandbox
        .run("export small --to onnx --operators standard -o w")
        .assert_fails(2, &["found opset 13, expected 21 or more"]);
    sandbox.ok("compress digits --quantize int4-g16 -o own");
    let found = sandbox.json("export own --to onnx --operators standard -o w");
    assert_eq!((&found["opset"], &found["weights"]["blocks"]), (&json!(21), &json!(2)));
    sandbox.ok("verify w");
}

#[test]
fn weights_of_calls_of_functions_get_codes() {
    let sandbox = Sandbox::with("digits");
    copy(&repository().join("fixtures/onnx/run"), &sandbox.path("m"));
    let found = sandbox.json("export m/calls.onnx --to onnx --quantize int8-dynamic -o x");
    // The input of the other layer has no known shape: it comes from an `If`.
    assert_eq!(found["weights"], json!({ "float": 3, "int8-dynamic": 1 }));
    sandbox.ok("verify x");
    let model = Model::read(&InputFile::open(&sandbox.path("x/model.onnx")).unwrap()).unwrap();
    let n = |op: &str| model.graph.nodes.iter().filter(|node| node.op_type == op).count();
    assert_eq!(["Dense", "MatMul", "MatMulInteger", "Scaled"].map(n), [0, 1, 1, 4]);
}

#[test]
fn static_codes_of_an_onnx_model_are_those_of_its_checkpoint() {
    let sandbox = digits();
    for (model, out) in [("digits", "a"), ("n/model.onnx", "b")] {
        sandbox.ok(&format!("export {model} --to onnx --quantize int8-static --data {DATA} --samples 40 -o {out}"));
        sandbox.ok(&format!("verify {out}"));
    }
    let tensors = |model: &str| {
        let checkpoint = Checkpoint::open(&sandbox.path(&format!("{model}/model.onnx"))).unwrap();
        let read = |(index, info): (usize, &briquette::formats::TensorInfo)| {
            let mut bytes = vec![0; info.n_bytes()];
            checkpoint.read(index, 0, &mut bytes).unwrap();
            (info.name.replace(".transposed", ""), bytes)
        };
        let found = checkpoint.tensors().iter().enumerate().map(read);
        found.filter(|(name, _)| name.ends_with(".codes") || name.ends_with("/scale")).collect::<Vec<_>>()
    };
    let (mut a, mut b) = (tensors("a"), tensors("b"));
    a.sort();
    b.sort();
    assert!(a.len() > 8, "{}", a.len());
    assert_eq!(a, b);
}

#[test]
fn a_shrunk_onnx_model_is_the_shrunk_checkpoint() {
    let sandbox = digits();
    sandbox.ok("compress n/model.onnx --shrink 0.4 -o a");
    sandbox.ok("compress digits --shrink 0.4 -o b");
    assert_eq!(metrics(&sandbox, "a"), metrics(&sandbox, "b"));
    let is_near = |(a, b): (&(String, usize, f64), &(String, usize, f64))| {
        (&a.0, a.1) == (&b.0, b.1) && (a.2 - b.2).abs() <= 1e-6 * b.2.abs()
    };
    let (a, b) = (values(&sandbox, "a"), values(&sandbox, "b"));
    assert!(a.len() == b.len() && a.iter().zip(&b).all(is_near), "{a:?} {b:?}");
    sandbox.ok("export a --to onnx -o c");
    sandbox.ok("verify c");
    assert_eq!(metrics(&sandbox, "c"), metrics(&sandbox, "a"));
    sandbox.run("compress n --fold batch-norm -o d").assert_fails(2, &["found an ONNX model"]);
}

#[test]
fn an_onnx_model_is_distilled_and_its_zeros_stay() {
    let sandbox = digits();
    let recipe = |model: &str, out: &str| {
        format!(
            "[model]\npath = {model:?}\n[output]\npath = {out:?}\n[data]\ntrain = {DATA:?}\n[memory]\nbatch_size = 64\n\
             [[stage]]\nkind = \"prune\"\nsparsity = 0.6\n\
             [[stage]]\nkind = \"distill\"\nloss = [{{ kind = \"logits\" }}]\nepochs = 1\nlearning_rate = 1e-3\n"
        )
    };
    sandbox.write("a.toml", recipe("n/model.onnx", "a"));
    sandbox.write("b.toml", recipe("digits", "b"));
    sandbox.ok("run a.toml --device cpu --quiet");
    sandbox.ok("run b.toml --device cpu --quiet");
    sandbox.ok("verify a");
    let zeros = |model: &str| {
        let found = tensors_of(&sandbox.path(&format!("{model}/model.safetensors")));
        let of = |name: &str| found[name].bytes.as_chunks::<4>().0.iter().filter(|bytes| **bytes == [0; 4]).count();
        ["conv2.weight", if model == "da" { "fc1.weight.transposed" } else { "fc1.weight" }].map(of)
    };
    sandbox.ok("export a --to dense -o da");
    sandbox.ok("export b --to dense -o db");
    assert_eq!(zeros("da"), zeros("db"));
    assert!(zeros("da")[1] > 20_000, "{:?}", zeros("da"));
    let accuracy = |model: &str| metrics(&sandbox, model)["accuracy"].as_f64().unwrap();
    assert!((accuracy("a") - accuracy("b")).abs() < 0.02, "{} {}", accuracy("a"), accuracy("b"));
    sandbox.write(
        "c.toml",
        recipe("n", "c")
            .replace("[[stage]]\nkind = \"distill\"", "[[stage]]\nkind = \"distill\"\nstudent = { hidden_size = 8 }"),
    );
    sandbox.run("run c.toml").assert_fails(2, &["student", "ONNX"]);
}

/// An ONNX model names no blocks, so it has no hidden states between them.
#[test]
fn an_exported_decoder_is_distilled_by_its_logits_alone() {
    let sandbox = with_text("llama-tied");
    sandbox.ok("export llama-tied --to onnx -o n");
    let recipe = |model: &str, keys: &str, loss: &str| {
        format!(
            "[model]\npath = {model:?}\n[output]\npath = \"out\"\n[data]\ntrain = \"text.txt\"\nmax_length = 16\n\
             [memory]\nbatch_size = 8\n[[stage]]\nkind = \"distill\"\n{keys}\nloss = [{{ {loss} }}]\nepochs = 1\n"
        )
    };
    let logits = "kind = \"logits\", by = \"js\", beta = 0.5, temperature = 1";
    sandbox.write("recipe.toml", recipe("llama-tied", "teacher = \"n\"\non_policy = 1", logits));
    sandbox.ok("distill recipe.toml --quiet");
    sandbox.write("recipe.toml", recipe("n", "on_policy = 1", logits));
    sandbox.ok("distill recipe.toml --quiet --force");
    let (hidden, maps) = ("kind = \"hidden\", by = \"mse\"", "kind = \"attention\", by = \"maps\"");
    let cases = [
        ("n", "", hidden, "the student has no hidden states"),
        ("llama-tied", "teacher = \"n\"", hidden, "the teacher has no hidden states"),
        ("n", "", maps, "the student has no attention"),
    ];
    for (model, keys, loss, phrase) in cases {
        sandbox.write("recipe.toml", recipe(model, keys, loss));
        sandbox.run("distill recipe.toml --quiet --force").assert_fails(2, &[phrase, "use another loss"]);
    }
}

/// The table of tokens is also the head there: its codes are looked up and multiplied.
#[test]
fn an_exported_decoder_with_int8_weights_runs() {
    let sandbox = with_text("llama-tied");
    sandbox.ok("compress llama-tied --quantize int8 -o coded --quiet");
    sandbox.ok("export coded --to onnx -o n --quiet");
    let found = sandbox.json("eval n --against coded --data text.txt --max-length 16");
    let kl = found["metrics"]["kl"].as_f64().unwrap();
    assert!(kl < 1e-6, "{kl}");
}

#[test]
fn exported_weights_in_groups_run_as_those_of_their_output() {
    let sandbox = with_text("llama-tied");
    for scheme in ["int4-g32", "int4-g32-asym", "int8-g16", "int8-g16-asym"] {
        sandbox.ok(&format!("compress llama-tied --quantize {scheme} -o coded --quiet --force"));
        for flags in ["", "--operators standard", "--cast f16"] {
            sandbox.ok(&format!("export coded --to onnx {flags} -o n --quiet --force"));
            let found = sandbox.json("eval n --against coded --data text.txt --max-length 16");
            let kl = found["metrics"]["kl"].as_f64().unwrap();
            // Scales and other tensors in f16 have other values.
            let most = if flags.contains("f16") { 1e-4 } else { 1e-6 };
            assert!(kl < most, "{scheme} {flags}: {kl}");
        }
    }
}

#[test]
fn codes_of_nodes_are_decoded_or_refused_but_never_taken_for_weights() {
    let sandbox = with_text("llama-tied");
    for scheme in ["int8", "int8-g32"] {
        sandbox.ok(&format!("compress llama-tied --quantize {scheme} -o coded --quiet --force"));
        sandbox.ok("export coded --to onnx -o n --quiet --force");
        let found = sandbox.json("eval n --against coded --data text.txt --max-length 16 --offload");
        assert!(found["metrics"]["kl"].as_f64().unwrap() < 1e-6, "{scheme}: {found}");
        // The inputs of layers are those of the same weights in floats.
        sandbox.ok("export coded --to dense -o dense --quiet --force");
        sandbox.ok("export dense --to onnx -o floats --quiet --force");
        let [own, expected] = ["n", "floats"].map(|model| {
            sandbox.ok(&format!("calibrate {model} --data text.txt -o {model}.safetensors --quiet --force"));
            let statistics = stored_tensors_of(&sandbox.path(&format!("{model}.safetensors")));
            let values = |bytes: &Vec<u8>| -> f64 {
                bytes.as_chunks::<8>().0.iter().map(|value| f64::from_le_bytes(*value).abs()).sum()
            };
            statistics
                .values()
                .filter(|tensor| tensor.dtype == DType::F64)
                .map(|tensor| values(&tensor.bytes))
                .sum::<f64>()
        });
        assert!((own / expected - 1.0).abs() < 1e-4, "{scheme}: {own} {expected}");
        for line in [
            "compress n --quantize int8 -o x",
            "compress n --prune 0.5 -o x",
            "compress n --bytes 50kB -o x",
            "sensitivity n --data text.txt -o x.json",
            "export n --to onnx --quantize int8-dynamic -o x",
            "export n --to dense -o x",
            "export n --to compressed-tensors -o x",
        ] {
            sandbox
                .run(line)
                .assert_fails(6, &["decode codes of weights", "start from the model that it was made from"]);
        }
    }
}

/// The types of the float tensors of a model whose names `n/model.onnx` has too.
fn float_types(sandbox: &Sandbox, model: &str) -> Vec<DType> {
    let names = |model: &str| Checkpoint::open(&sandbox.path(model)).unwrap();
    let (original, found) = (names("n"), names(model));
    let is_known = |name: &str| original.tensors().iter().any(|info| info.name.as_str() == name);
    let floats = found.tensors().iter().filter(|info| info.dtype.is_weight() && is_known(&info.name));
    floats.map(|info| info.dtype).collect()
}

#[test]
fn cast_weights_get_the_types_of_the_network_again() {
    let sandbox = digits();
    sandbox.ok("export digits --to onnx --cast f16 -o half");
    for (model, flags, dtype) in [
        ("n", "--cast f16", DType::F32),
        ("n", "--quantize int8 --cast bf16", DType::F32),
        ("n", "--quantize int4-g8 --quantize-roles linear --cast f16", DType::F32),
        ("half", "--cast f32", DType::F16),
        ("half", "--quantize int4-g16", DType::F16),
        ("half", "--quantize int8-g16 --quantize-roles linear", DType::F16),
    ] {
        sandbox.ok(&format!("compress {model} --format briquette {flags} -o coded --force"));
        sandbox.ok("export coded --to onnx -o x --force");
        let types = float_types(&sandbox, "x");
        assert!(!types.is_empty() && types.iter().all(|found| *found == dtype), "{model} {flags}: {types:?}");
        let [own, expected] = ["x", "coded"].map(|model| metrics(&sandbox, model)["kl"].as_f64().unwrap());
        assert!((own - expected).abs() < 2e-3, "{model} {flags}: {own} and {expected}");
    }
}

#[test]
fn copies_of_a_file_have_the_settings_beside_it() {
    let sandbox = digits();
    sandbox.ok("compress n/model.onnx --quantize int8 -o copy");
    sandbox.ok("compress n --format onnx --quantize int8 -o expected");
    assert!(sandbox.path("copy/config.json").exists());
    sandbox.ok("verify copy");
    assert_eq!(metrics(&sandbox, "copy"), metrics(&sandbox, "expected"));
    sandbox.ok("export n/model.onnx --to onnx --cast f16 -o exported");
    sandbox.ok("export n --to onnx --cast f16 -o expected-export");
    assert_eq!(metrics(&sandbox, "exported"), metrics(&sandbox, "expected-export"));
}

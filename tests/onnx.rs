//! ONNX models: inspected, pruned and copied by the command line.

use crate::sandbox::{Sandbox, copy, repository};
use briquette::formats::{Checkpoint, TensorSource};
use serde_json::json;

fn with_fixtures() -> Sandbox {
    let sandbox = Sandbox::new();
    copy(&repository().join("fixtures/onnx"), &sandbox.path("m"));
    sandbox
}

/// The places where two files of one size differ.
fn differences(sandbox: &Sandbox, a: &str, b: &str) -> Vec<usize> {
    let (a, b) = (std::fs::read(sandbox.path(a)).unwrap(), std::fs::read(sandbox.path(b)).unwrap());
    assert_eq!(a.len(), b.len());
    (0..a.len()).filter(|&at| a[at] != b[at]).collect()
}

#[test]
fn an_unchanged_model_is_the_same_file() {
    let sandbox = with_fixtures();
    for (model, out) in [("m/convolutions.onnx", "a"), ("m/types.onnx", "b"), ("m/external/all.onnx", "c")] {
        sandbox.ok(&format!("export {model} --to onnx -o {out}"));
        assert!(differences(&sandbox, model, &format!("{out}/model.onnx")).is_empty(), "{model}");
    }
    assert!(differences(&sandbox, "m/external/all.bin", "c/all.bin").is_empty());
}

#[test]
fn a_pruned_model_differs_only_in_the_bytes_of_its_weights() {
    let sandbox = with_fixtures();
    let said = sandbox.ok("compress m/convolutions.onnx --prune 0.5 -o out").stdout;
    assert!(said.contains("Pruning saved no bytes"), "{said}");
    let before = Checkpoint::open(&sandbox.path("m/convolutions.onnx")).unwrap();
    let model = std::fs::read(sandbox.path("m/convolutions.onnx")).unwrap();
    let place = |name: &str| {
        let index = before.tensors().iter().position(|info| info.name.as_str() == name).unwrap();
        let mut bytes = vec![0; before.tensors()[index].n_bytes()];
        before.read(index, 0, &mut bytes).unwrap();
        let start = model.windows(bytes.len()).position(|window| window == bytes).unwrap();
        start..start + bytes.len()
    };
    let weights = ["stem.weight", "depthwise.weight", "last.weight", "head.weight"].map(place);
    let changed = differences(&sandbox, "m/convolutions.onnx", "out/model.onnx");
    assert!(!changed.is_empty() && changed.iter().all(|at| weights.iter().any(|span| span.contains(at))));
    sandbox.ok("verify out");
    sandbox.ok("verify out --against m/convolutions.onnx");
    let found = sandbox.json("inspect out --zeros");
    assert_eq!(found["format"], json!("briquette (onnx)"));
    sandbox.ok("diff m/convolutions.onnx out");
    sandbox.ok("graph out");
}

#[test]
fn a_quantized_model_has_the_dequantized_values_and_external_data_stays_external() {
    let sandbox = with_fixtures();
    sandbox.ok("compress m/external/perceptron.onnx --quantize int8 -o out");
    assert!(differences(&sandbox, "m/external/perceptron.onnx", "out/model.onnx").is_empty(), "the bias is unchanged");
    assert!(!differences(&sandbox, "m/external/weights.bin", "out/weights.bin").is_empty());
    sandbox.ok("verify out --against m/external/perceptron.onnx");
    // Without any tensor in the model itself.
    sandbox.ok("compress m/external/all.onnx --quantize int8 -o all");
    assert!(differences(&sandbox, "m/external/all.onnx", "all/model.onnx").is_empty());
    assert!(!differences(&sandbox, "m/external/all.bin", "all/all.bin").is_empty());
    sandbox.ok("verify all --against m/external/all.onnx");
}

#[test]
fn stages_that_an_onnx_file_cannot_hold_are_refused() {
    let sandbox = with_fixtures();
    sandbox
        .write("w/model.safetensors", std::fs::read(repository().join("fixtures/digits/model.safetensors")).unwrap());
    for (line, phrase) in [
        ("compress m/convolutions.onnx --cast f16 -o out", "an ONNX file keeps the type"),
        ("compress m/convolutions.onnx --bytes 1kB --format onnx -o out", "expected the format briquette"),
        ("compress w --prune 0.5 --format onnx -o out", "expected an ONNX file"),
        ("graph m/convolutions.onnx --dim other=2", "--dim other: no input has an extent of this name"),
        ("graph w --dim batch=2", "only ONNX models have named extents"),
    ] {
        sandbox.run(line).assert_fails(2, &[phrase]);
    }
    assert!(!sandbox.path("out").exists());
    sandbox.ok("compress m/convolutions.onnx --prune 0.5 --format dense -o dense");
    assert!(sandbox.path("dense/model.safetensors").exists());
}

#[test]
fn graphs_name_unknown_operators_and_show_groups() {
    let sandbox = with_fixtures();
    let text = sandbox.ok("graph m/types.onnx").stdout;
    assert!(text.contains("Mystery"), "{text}");
    let found = sandbox.json("graph m/convolutions.onnx --groups --dim batch=2");
    assert_eq!(found["coupling"]["groups"].as_array().unwrap().len(), 2);
    assert_eq!(found["values"][0], json!({ "name": "x", "shape": [2, 3, 16, 16] }));
}

#[cfg(feature = "model")]
#[test]
fn an_exported_network_is_evaluated_and_compressed_like_its_checkpoint() {
    let sandbox = Sandbox::with("digits");
    let data = "digits-data.safetensors";
    copy(&repository().join("fixtures").join(data), &sandbox.path(data));
    sandbox.ok("export digits --to onnx -o out");
    let accuracy =
        |model: &str| sandbox.json(&format!("eval {model} --data {data}"))["metrics"]["accuracy"].as_f64().unwrap();
    let expected = accuracy("digits");
    assert!(expected > 0.9, "{expected}");
    // `config.json` beside the file has the scale of pixels.
    assert_eq!(["out", "out/model.onnx"].map(accuracy), [expected; 2]);
    let losses = |model: &str| -> Vec<f64> {
        let found = sandbox.json(&format!("sensitivity {model} --data {data} --device cpu"));
        let mut tensors = found["tensors"].as_array().unwrap().clone();
        tensors.sort_by_key(|tensor| tensor["name"].to_string());
        tensors.iter().map(|tensor| tensor["loss"].as_f64().unwrap()).collect()
    };
    let (expected, found) = (losses("digits"), losses("out/model.onnx"));
    let is_near = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < 1e-3;
    assert!(expected.len() == found.len() && expected.iter().zip(&found).all(is_near), "{expected:?} {found:?}");
    sandbox.ok(&format!(
        "compress out/model.onnx -o small --format briquette --bytes 12kB --data {data} --device cpu --quiet"
    ));
    sandbox.ok("verify small");
    sandbox.ok("diff out/model.onnx small");
    let n_bytes = std::fs::metadata(sandbox.path("small/model.briquette.safetensors")).unwrap().len();
    assert!(n_bytes <= 12_000, "{n_bytes}");
}

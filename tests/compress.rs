//! Round trips from a model to an output and back, equal bytes on each run, and copied small files.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of, tensors_of, tiny};

const FORMATS: [&str; 4] = ["briquette", "dense", "burnpack", "compressed-tensors"];

/// Returns the files of an output that may not differ between two runs.
fn lasting(sandbox: &Sandbox, output: &str) -> Vec<(String, Vec<u8>)> {
    let files = sandbox.files(output).into_iter();
    files.filter(|(name, _)| !["report.json", "report.html"].contains(&name.as_str())).collect()
}

/// The digits network without its I64 counters; compressed-tensors can store one of its matrices.
fn digits() -> Sandbox {
    Sandbox::with("digits")
}

#[test]
fn lossy_methods_without_an_evaluation_warn() {
    let sandbox = Sandbox::with("digits");
    let remarks = |line: &str| sandbox.json(&format!("compress digits -o out --force {line}"))["remarks"].to_string();
    let int4 = remarks("--quantize int4");
    assert!(int4.contains("Rounded to 4 bits without data") && int4.contains("--round gptq --data TEXT"), "{int4}");
    let pruned = remarks("--prune 0.4 --quantize int8");
    assert!(
        pruned.contains("by magnitude without recovery") && pruned.contains("--prune-method sparsegpt"),
        "{pruned}"
    );
    assert!(!pruned.contains("Rounded to"), "{pruned}");
    assert!(!remarks("--quantize int8").contains("not measured"));
    // Frequent zeros take few bits where codes are entropy-coded.
    assert!(!remarks("--prune 0.7 --quantize int8 --storage entropy").contains("saved no bytes"));
    assert!(remarks("--prune 0.05 --quantize int8").contains("a mask of one bit for each weight would take more"));
    assert!(remarks("--prune 0.4 --format dense").contains("Use the format briquette"));
    sandbox.ok("compress digits -o int4 --quantize int4");
    assert!(!sandbox.json("export int4 --to dense -o dense")["remarks"].to_string().contains("not measured"));
}

#[test]
fn outputs_of_every_method_verify_and_export_to_dense() {
    let sandbox = digits();
    let recipes = [
        "--prune 0.4",
        "--prune 0.9 --scope global",
        "--nm 2:4 --exclude conv1.weight",
        "--prune 0.5 --prune-method random --seed 3",
        "--quantize int8",
        "--quantize int4-g16-asym --exclude conv1.weight --range mse",
        "--quantize int3 --range percentile",
        "--quantize int5 --range hqq",
        "--prune 0.6 --quantize int8-dynamic",
        "--prune 0.97 --quantize int2",
    ];
    for (i, recipe) in recipes.iter().enumerate() {
        round_trip(&sandbox, recipe, "briquette", &format!("b{i}"));
    }
}

#[test]
fn outputs_of_every_format_verify_and_export_to_dense() {
    let sandbox = digits();
    for format in FORMATS {
        for (i, recipe) in ["--prune 0.4 --quantize int8", "--prune 0.7", "--quantize int8-dynamic"].iter().enumerate()
        {
            round_trip(&sandbox, recipe, format, &format!("{format}{i}"));
        }
    }
}

/// Compresses, verifies twice, compares, and exports the output to plain safetensors.
fn round_trip(sandbox: &Sandbox, recipe: &str, format: &str, out: &str) {
    let report = sandbox.json(&format!("compress digits -o {out} --format {format} --allow-untested {recipe}"));
    let (predicted, measured) = (&report["predicted_bytes"], &report["after"]["file_bytes"]);
    if report["prediction_is_exact"].as_bool().unwrap() {
        assert_eq!(predicted, measured, "{recipe} {format}");
    } else {
        assert!(predicted.as_u64() >= measured.as_u64(), "{recipe} {format}");
    }
    sandbox.ok(&format!("verify {out}"));
    assert_eq!(sandbox.json(&format!("verify {out} --against digits"))["against_original"], true);
    let diff = sandbox.json(&format!("diff digits {out}"));
    let is_changed = |tensor: &&serde_json::Value| tensor["is_equal"] == false;
    let n_changed = diff["tensors"].as_array().unwrap().iter().filter(is_changed).count();
    let n_asked = report["tensors"].as_array().unwrap().iter().filter(|tensor| !tensor["error"].is_null()).count();
    assert_eq!(n_changed, n_asked, "{recipe} {format}: changed tensors, tensors with a stage");
    sandbox.ok(&format!("export {out} --to dense -o {out}-dense"));
    assert_eq!(tensors_of(&sandbox.path(&format!("{out}-dense"))), tensors_of(&sandbox.path(out)), "{recipe} {format}");
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let sandbox = digits();
    for (i, recipe) in
        ["--prune 0.5 --scope global --quantize int4-asym", "--prune 0.3 --quantize int8"].iter().enumerate()
    {
        let run = |threads: usize| {
            sandbox.ok(&format!("compress digits -o out{i}-{threads} --threads {threads} {recipe}"));
            lasting(&sandbox, &format!("out{i}-{threads}"))
        };
        let one = run(1);
        assert_eq!(
            one.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["SHA256SUMS", "briquette.json", "config.json", "model.briquette.safetensors"]
        );
        assert!(one == run(2) && one == run(3), "{recipe}");
    }
}

#[test]
fn shards_and_one_file_give_equal_tensors() {
    let (sandbox, sharded) = (digits(), Sandbox::with("digits-sharded"));
    let recipe = "-o out --prune 0.6 --scope global --quantize int8";
    sandbox.ok(&format!("compress digits {recipe}"));
    sharded.ok(&format!("compress digits-sharded {recipe}"));
    assert_eq!(tensors_of(&sandbox.path("out")), tensors_of(&sharded.path("out")));
    sharded
        .ok("compress digits-sharded/model.safetensors.index.json -o named --prune 0.6 --scope global --quantize int8");
    assert_eq!(tensors_of(&sharded.path("named")), tensors_of(&sharded.path("out")));
    sharded.ok("verify out --against digits-sharded");
}

#[test]
fn tied_weights_are_written_once() {
    let sandbox = Sandbox::new();
    let table = Tensor::random("embed.weight", &[40, 64], 5);
    let head = Tensor { name: "lm_head.weight".into(), ..table.clone() };
    sandbox.write("tied.safetensors", safetensors_of(&[table.clone(), head]));
    sandbox.write("one.safetensors", safetensors_of(&[table]));
    let one = sandbox.json("compress one.safetensors -o one --quantize int8");
    let tied = sandbox.json("compress tied.safetensors -o tied --quantize int8");
    assert_eq!(one["after"]["file_bytes"], tied["after"]["file_bytes"]);
    assert_eq!(tied["predicted_bytes"], tied["after"]["file_bytes"]);
    let found = tensors_of(&sandbox.path("tied"));
    assert_eq!(found["embed.weight"].bytes, found["lm_head.weight"].bytes);
    sandbox.ok("verify tied --against tied.safetensors");
    sandbox.ok("export tied --to dense -o dense");
    assert_eq!(tensors_of(&sandbox.path("dense")), found);
}

#[test]
fn small_files_are_copied_and_other_weights_are_not() {
    let sandbox = digits();
    for name in ["tokenizer.json", "1_Pooling/config.json", "notes/a.txt"] {
        sandbox.write(&format!("digits/{name}"), format!("{name}\n"));
    }
    for name in ["pytorch_model.bin", "model.onnx", "onnx/model.onnx", ".cache", "old.gguf", "tf_model.h5"] {
        sandbox.write(&format!("digits/{name}"), "x");
    }
    sandbox.ok("compress digits -o out --quantize int8");
    let files = sandbox.files("out");
    for name in ["config.json", "tokenizer.json", "1_Pooling/config.json", "notes/a.txt"] {
        assert_eq!(files.get(name), sandbox.files("digits").get(name), "{name}");
    }
    let weights: Vec<&String> = files.keys().filter(|name| !name.ends_with('/')).collect();
    assert_eq!(weights.len(), 4 + 5, "{weights:?}");
    sandbox.ok("verify out");
}

#[test]
fn every_command_prints_one_json_document() {
    let sandbox = digits();
    assert_eq!(sandbox.json("inspect digits --zeros")["n_elements"], 46746 + 96 + 2);
    let planned = sandbox.json("plan digits --prune 0.4 --quantize int8");
    let report = sandbox.json("compress digits -o out --prune 0.4 --quantize int8");
    assert_eq!(planned["predicted_bytes"], report["after"]["file_bytes"]);
    assert_eq!(sandbox.json("verify out")["n_tensors"], report["tensors"].as_array().unwrap().len());
    assert!(sandbox.json("diff digits out")["tensors"].is_array());
    assert_eq!(sandbox.json("report out")["after"], report["after"]);
    assert_eq!(sandbox.json("inspect out")["compressed"], "quantized");
    assert!(sandbox.json("recipe schema")["properties"].is_object());
    assert!(sandbox.json("recipe schema report")["properties"].is_object());
    sandbox.ok("verify out");
    assert_eq!(sandbox.ok("compress digits -o quiet --quantize int8 --quiet").stdout, "");
}

#[test]
fn a_plain_checkpoint_is_exported_bit_for_bit() {
    let sandbox = digits();
    let before = tensors_of(&sandbox.path("digits"));
    for format in FORMATS {
        sandbox.ok(&format!("export digits --to {format} -o {format}"));
        assert_eq!(tensors_of(&sandbox.path(format)), before, "{format}");
        sandbox.ok(&format!("verify {format} --against digits"));
    }
    sandbox.ok("export burnpack/model.bpk --to dense -o back");
    assert_eq!(tensors_of(&sandbox.path("back")), before);
    assert_eq!(sandbox.files("back")["model.safetensors"], sandbox.files("dense")["model.safetensors"]);
}

#[test]
fn force_replaces_only_outputs_of_briquette() {
    let sandbox = digits();
    sandbox.ok("compress digits -o out --quantize int8");
    let old = sandbox.files("out");
    sandbox.run("compress digits -o out --quantize int4").assert_fails(6, &["out", "--force"]);
    assert_eq!(sandbox.files("out"), old);
    sandbox.ok("compress digits -o out --quantize int4 --force");
    sandbox.ok("verify out --against digits");
    assert_ne!(sandbox.files("out"), old);
    sandbox.write("mine/precious.txt", "x");
    sandbox.run("compress digits -o mine --quantize int4 --force").assert_fails(6, &["not an output of briquette"]);
    assert_eq!(sandbox.names(), ["digits", "mine", "out"]);
}

#[test]
fn a_pruned_output_may_be_quantized_and_a_quantized_one_may_not() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.safetensors", safetensors_of(&tiny()));
    sandbox.ok("compress tiny.safetensors -o pruned --prune 0.5");
    sandbox.ok("compress pruned -o both --quantize int8 --include **.weight");
    sandbox.ok("verify both --against pruned");
    let (pruned, both) = (tensors_of(&sandbox.path("pruned")), tensors_of(&sandbox.path("both")));
    let zeros = |tensor: &Tensor| tensor.floats().iter().map(|&value| value == 0.0).collect::<Vec<_>>();
    let kept =
        zeros(&pruned["up.weight"]).iter().zip(zeros(&both["up.weight"])).all(|(before, after)| !before || after);
    assert!(kept, "a pruned weight is not zero");
    sandbox.run("compress both -o again --quantize int4").assert_fails(6, &["both", "already quantized"]);
}

/// f64 values beyond f32 are not infinite: unchanged tensors keep them, all others are refused.
#[test]
fn f64_values_beyond_f32_are_kept_in_unchanged_tensors() {
    let wide = |name: &str, shape: &[usize]| {
        let mut values = vec![0.5_f64; shape.iter().product()];
        values[1] = 1e300;
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { name: name.into(), dtype: briquette::core::DType::F64, shape: shape.to_vec(), bytes }
    };
    let sandbox = Sandbox::new();
    let weight = Tensor::random("weight", &[4, 8], 1);
    sandbox.write("bias.safetensors", safetensors_of(&[wide("bias", &[4]), weight.clone()]));
    sandbox.ok("compress bias.safetensors -o out --quantize int8");
    sandbox.ok("verify out --against bias.safetensors");
    assert_eq!(tensors_of(&sandbox.path("out"))["bias"], wide("bias", &[4]));
    sandbox.write("weight.safetensors", safetensors_of(&[wide("wide.weight", &[2, 4]), weight]));
    let refused = sandbox.run("compress weight.safetensors -o none --quantize int8");
    refused.assert_fails(6, &["\"wide.weight\"", "found 1e300 at row 0, column 1, which does not fit f32"]);
    let mut broken = wide("bias", &[4]);
    broken.bytes[..8].copy_from_slice(&f64::INFINITY.to_le_bytes());
    sandbox.write("inf.safetensors", safetensors_of(&[broken]));
    sandbox.run("export inf.safetensors --to dense -o dense").assert_ok();
    sandbox.write("r.toml", "[model]\npath = \"inf.safetensors\"\n[output]\npath = \"none\"\n");
    sandbox.run("run r.toml").assert_fails(6, &["\"bias\"", "found inf at row 0, column 0"]);
}

//! Models in half precision: inputs and outputs stay f32, weights take half the bytes.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};
use serde_json::Value;

/// Creates a sandbox with all tiny models and data for each kind.
fn models() -> Sandbox {
    let sandbox = Sandbox::with("models");
    for name in ["digits", "digits-data.safetensors"] {
        copy(&repository().join("fixtures").join(name), &sandbox.path(name));
    }
    sandbox
}

#[test]
fn every_architecture_gives_similar_results_in_half_precision() {
    let sandbox = models();
    let cases = [
        ("digits --data digits-data.safetensors", "accuracy", 0.01),
        ("models/bert-tiny --data models/sentences.txt --against models/bert-tiny", "cosine", 0.001),
        ("models/llama-tied --data models/text.txt", "perplexity", 0.05),
        ("models/llama-qwen --data models/text.txt", "perplexity", 0.05),
        ("models/resnet18-tiny.pth --arch resnet18 --data models/images", "accuracy", 0.5),
    ];
    for (line, metric, tolerance) in cases {
        let run = |dtype: &str| sandbox.json(&format!("eval {line} --dtype {dtype} --device cpu"));
        let value = |found: &Value| found["metrics"][metric].as_f64().unwrap_or_else(|| panic!("{line}: {found}"));
        let single = run("f32");
        for dtype in ["bf16", "f16"] {
            let found = run(dtype);
            let (a, b) = (value(&single), value(&found));
            assert!((a - b).abs() <= tolerance * a.abs(), "{line} in {dtype}: {a} and {b}");
            assert_eq!(found["after"]["held"].as_object().unwrap().keys().collect::<Vec<_>>(), [dtype], "{line}");
            let bytes = |found: &Value, key: &str| found["after"]["memory"][0][key].as_u64().unwrap();
            assert_eq!(2 * bytes(&found, "predicted_bytes"), bytes(&single, "predicted_bytes"), "{line}");
            let (half, whole) = (bytes(&found, "weights_bytes"), bytes(&single, "weights_bytes"));
            // The graph of a network takes the same memory in every type.
            let saved = bytes(&found, "predicted_bytes") * 9 / 10;
            assert!(whole - half > saved, "{line} in {dtype}: {half} of {whole}");
        }
    }
}

#[test]
fn half_precision_refuses_codes_and_memory_limits_count_its_bytes() {
    let sandbox = models();
    sandbox.ok("compress digits -o out --quantize int8");
    let eval = "--data digits-data.safetensors --device cpu";
    sandbox.run(&format!("eval out {eval} --dtype bf16")).assert_fails(2, &["out", "memory.dtype", "int8", "f32"]);
    sandbox
        .run(&format!("eval digits {eval} --dtype int8"))
        .assert_fails(2, &["memory.dtype", "found \"int8\"", "bf16"]);
    let refused = ["memory.limit", "at most 10000"];
    let recipe = |dtype: &str, limit: u64| {
        format!(
            "[model]\npath = \"digits\"\n[output]\npath = \"half\"\n[data]\neval = \"digits-data.safetensors\"\n[memory]\n\
             dtype = \"{dtype}\"\nlimit = \"{limit}\"\n[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n[[stage]]\nkind = \"evaluate\"\n"
        )
    };
    sandbox.write("recipe.toml", recipe("f16", 10_000));
    sandbox.run("run recipe.toml --quiet").assert_fails(6, &refused);
    let bytes = |dtype: &str| {
        sandbox.write("recipe.toml", recipe(dtype, 1 << 30));
        sandbox.json("plan recipe.toml")["memory"]["runs"][0]["weights_bytes"].as_u64().unwrap()
    };
    assert_eq!(2 * bytes("f16"), bytes("f32"));
    sandbox.write("recipe.toml", recipe("f16", 1 << 30));
    let report = sandbox.json("run recipe.toml");
    assert!(report["evaluation"]["metrics"]["agreement"].as_f64().unwrap() > 0.99);
}

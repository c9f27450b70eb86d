//! Codes on a trellis: chosen, written, read, run and refused.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::tensors_of;
use serde_json::Value;

const GPTQ: &str = "--round gptq --data text.txt --samples 64 --max-length 16 --device cpu --quiet --force";

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    sandbox
}

fn json(sandbox: &Sandbox, path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(sandbox.path(path)).unwrap()).unwrap()
}

fn weights(sandbox: &Sandbox, out: &str) -> Vec<u8> {
    std::fs::read(sandbox.path(&format!("{out}/model.briquette.safetensors"))).unwrap()
}

/// Returns the names of tensors that an output stores on a trellis.
fn on_trellis(sandbox: &Sandbox, out: &str) -> Vec<String> {
    let manifest = json(sandbox, &format!("{out}/briquette.json"));
    let tensors = manifest["tensors"].as_object().unwrap();
    let has = |entry: &Value| entry["coding"]["storage"]["entropy"]["trellis"] == true;
    tensors.iter().filter(|(_, entry)| has(entry)).map(|(name, _)| name.clone()).collect()
}

#[test]
fn codes_on_a_trellis_have_less_error_at_any_thread_count() {
    let sandbox = sandbox();
    let compress = |out: &str, scheme: &str, threads: usize| {
        let flags = format!("{GPTQ} --storage entropy --quantize-roles linear --threads {threads}");
        sandbox.ok(&format!("compress bert-tiny -o {out} --quantize {scheme} {flags}"));
    };
    compress("plain", "step0.08", 2);
    compress("trellis", "step0.04-trellis", 1);
    let first = weights(&sandbox, "trellis");
    compress("trellis", "step0.04-trellis", 3);
    assert!(weights(&sandbox, "trellis") == first, "three threads give other bytes");
    sandbox.ok("verify trellis");
    let manifest = json(&sandbox, "trellis/briquette.json");
    assert_eq!(manifest["version"], 9);
    let names = on_trellis(&sandbox, "trellis");
    assert!(names.len() >= 6 && on_trellis(&sandbox, "plain").is_empty(), "{names:?}");
    let figures = |out: &str| {
        let report = json(&sandbox, &format!("{out}/report.json"));
        let kl = sandbox.json(&format!("eval {out} --data text.txt --max-length 16 --against bert-tiny --device cpu"));
        (report["after"]["file_bytes"].as_f64().unwrap(), 1.0 - kl["metrics"]["cosine"].as_f64().unwrap())
    };
    let ((plain_bytes, plain), (bytes, error)) = (figures("plain"), figures("trellis"));
    // The second table matters in layers as small as these.
    let is_better = bytes < 1.02 * plain_bytes && error < 0.7 * plain;
    assert!(is_better, "{error} in {bytes} bytes, {plain} in {plain_bytes}");
}

#[test]
fn other_forms_of_the_output_have_the_same_values() {
    let sandbox = sandbox();
    let flags = format!("{GPTQ} --storage entropy --quantize-roles linear");
    sandbox.ok(&format!("compress bert-tiny -o out --quantize step0.04-trellis {flags}"));
    let decoded = |out: &str| -> Vec<(String, Vec<u8>)> {
        sandbox.ok(&format!("export {out} --to dense -o dense --quiet --force"));
        tensors_of(&sandbox.path("dense")).into_iter().map(|(name, tensor)| (name, tensor.bytes)).collect()
    };
    let values = decoded("out");
    for (storage, n_on_trellis) in [("auto", 0), ("entropy", on_trellis(&sandbox, "out").len())] {
        sandbox.ok(&format!("export out --to briquette --storage {storage} -o recoded --quiet --force"));
        assert_eq!(on_trellis(&sandbox, "recoded").len(), n_on_trellis, "{storage}");
        sandbox.ok("verify recoded");
        assert!(decoded("recoded") == values, "{storage}");
    }
}

#[test]
fn a_budget_chooses_a_trellis_only_if_asked() {
    let sandbox = sandbox();
    for (flags, has_trellis) in [("", false), ("--experimental trellis", true)] {
        sandbox.ok(&format!("compress bert-tiny -o out --bits 4 {flags} {GPTQ}"));
        sandbox.ok("verify out");
        assert_eq!(!on_trellis(&sandbox, "out").is_empty(), has_trellis, "{flags}");
    }
}

#[test]
fn a_trellis_without_updated_weights_is_refused_in_one_line() {
    let sandbox = sandbox();
    let cases = [
        ("--quantize step0.04-trellis", "set round = \"gptq\""),
        ("--bits 4 --experimental trellis", "a trellis needs round = \"gptq\""),
        ("--bits 4 --experimental trelis --data text.txt", "trellis"),
        ("--bits 4 --choices int8 --experimental trellis --data text.txt", "only step sizes have a trellis"),
        ("--quantize int8-trellis", "unknown scheme"),
    ];
    for (flags, expected) in cases {
        sandbox.run(&format!("compress bert-tiny -o out {flags}")).assert_fails(2, &[expected]);
    }
}

#[test]
fn a_training_with_given_steps_keeps_codes_on_a_trellis() {
    let sandbox = sandbox();
    let recipe = |round: &str| {
        let stages = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"embedding\" }]\nepochs = 2\nlearning_rate = 1e-3\ndropout = false\n\
                      quantization_aware = true\n[[stage]]\nkind = \"quantize\"\nscheme = \"step0.04-trellis\"\nroles = [\"linear\"]\n";
        format!(
            "[model]\npath = \"bert-tiny\"\n[output]\npath = \"out\"\nstorage = \"entropy\"\n[data]\ntrain = \"text.txt\"\neval = \"text.txt\"\n\
             max_length = 16\n[calibration]\ndata = \"text.txt\"\nmax_length = 16\n{stages}{round}[[stage]]\nkind = \"evaluate\"\n"
        )
    };
    sandbox.write("r.toml", recipe("round = \"gptq\"\n"));
    sandbox
        .run("plan r.toml")
        .assert_fails(2, &["stage 1 (distill)", "has the codes that the training chose; remove round"]);
    sandbox.write("r.toml", recipe("").replace("[calibration]\ndata = \"text.txt\"\nmax_length = 16\n", ""));
    let report = sandbox.json("distill r.toml --quiet --device cpu");
    sandbox.ok("verify out");
    assert!(on_trellis(&sandbox, "out").len() >= 6);
    let output = report["evaluation"]["metrics"]["cosine"].as_f64().unwrap();
    let epochs = report["trained"][0]["epochs"].as_array().unwrap();
    let trained = epochs.last().unwrap()["metrics"]["cosine"].as_f64().unwrap();
    assert!((output - trained).abs() < 1e-5, "the output has {output}, the last epoch {trained}");
}

#[test]
fn a_training_with_the_steps_of_a_budget_keeps_codes_on_a_trellis() {
    let sandbox = sandbox();
    sandbox.write(
        "r.toml",
        "[model]\npath = \"bert-tiny\"\n[output]\npath = \"out\"\n[budget]\nbytes = \"24kB\"\nexperimental = [\"trellis\"]\n[data]\n\
         train = \"text.txt\"\neval = \"text.txt\"\nmax_length = 16\n[calibration]\ndata = \"text.txt\"\nmax_length = 16\n[[stage]]\n\
         kind = \"distill\"\nloss = [{ kind = \"embedding\" }]\nepochs = 2\nlearning_rate = 1e-3\ndropout = false\n\
         quantization_aware = true\nfreeze = [\"embeddings.**\"]\n[[stage]]\nkind = \"quantize\"\nscheme = \"step-dynamic\"\nround = \"gptq\"\n\
         [[stage]]\nkind = \"evaluate\"\n",
    );
    let flags = "--quantize step-dynamic --data text.txt --max-length 16 --eval text.txt --device cpu --quiet";
    sandbox.ok(&format!("compress bert-tiny -o plain --bytes 24kB --experimental trellis {flags}"));
    let report = sandbox.json("distill r.toml --quiet --device cpu");
    assert!(report["after"]["file_bytes"].as_u64().unwrap() <= 24_000, "{report}");
    sandbox.ok("verify out");
    let names = on_trellis(&sandbox, "out");
    assert!(names.len() >= 6 && names == on_trellis(&sandbox, "plain"), "{names:?}");
    assert!(report["evaluation"]["metrics"]["cosine"].as_f64().unwrap() > 0.999, "{report}");
    assert!(weights(&sandbox, "out") != weights(&sandbox, "plain"), "the training changed no code");
    let first = weights(&sandbox, "out");
    sandbox.ok("distill r.toml --quiet --device cpu --force");
    assert!(weights(&sandbox, "out") == first, "a second run gives other bytes");

    // Weights that grow take more bytes: GPTQ then chooses codes on a trellis with larger steps.
    let recipe = std::fs::read_to_string(sandbox.path("r.toml")).unwrap();
    sandbox.write("r.toml", recipe.replace("epochs = 2\nlearning_rate = 1e-3", "epochs = 4\nlearning_rate = 1"));
    let report = sandbox.json("distill r.toml --quiet --device cpu --force");
    assert!(report["after"]["file_bytes"].as_u64().unwrap() <= 24_000, "{report}");
    sandbox.ok("verify out");
    assert!(on_trellis(&sandbox, "out").len() >= 6);
}

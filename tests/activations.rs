//! Evaluation rounds activations if the `quantization_config` says so.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};

fn with_model(name: &str) -> Sandbox {
    let sandbox = Sandbox::with(&format!("models/{name}"));
    sandbox.write("text.txt", std::fs::read(repository().join("fixtures/models/text.txt")).unwrap());
    sandbox.write("sentences.txt", std::fs::read(repository().join("fixtures/models/sentences.txt")).unwrap());
    sandbox
}

/// Copies an output without the files that only Briquette writes, and changes its config.
fn without_manifest(sandbox: &Sandbox, from: &str, to: &str, [config, changed]: [&str; 2]) {
    copy(&sandbox.path(from), &sandbox.path(to));
    for ours in ["briquette.json", "SHA256SUMS", "report.json", "report.html"] {
        std::fs::remove_file(sandbox.path(to).join(ours)).unwrap();
    }
    let path = sandbox.path(to).join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(config), "{config}: {text}");
    std::fs::write(path, text.replace(config, changed)).unwrap();
}

#[test]
fn int8_activations_of_compressed_tensors_are_rounded_with_and_without_a_manifest() {
    for (model, flags, metric) in [
        ("llama-tied", "--data text.txt", "perplexity"),
        ("bert-tiny", "--data sentences.txt --against bert-tiny", "cosine"),
    ] {
        let sandbox = with_model(model);
        let make = |scheme: &str, out: &str| {
            let what = format!("--quantize {scheme} --quantize-roles linear --format compressed-tensors --quiet");
            sandbox.ok(&format!("compress {model} -o {out} {what}"));
        };
        let found =
            |out: &str| sandbox.json(&format!("eval {out} {flags} --threads 1"))["metrics"][metric].as_f64().unwrap();
        make("int8-dynamic", "dynamic");
        make("int8-dynamic-sym", "symmetric");
        make("int8", "weights");
        make("int4-g32-dynamic", "narrow");
        make("int4-g32-dynamic-sym", "narrow-symmetric");
        make("int4-g32", "narrow-weights");
        sandbox.ok("export dynamic --to briquette -o ours --quiet");
        without_manifest(&sandbox, "dynamic", "foreign", ["", ""]);
        without_manifest(&sandbox, "symmetric", "foreign-symmetric", ["", ""]);
        let [dynamic, ours, foreign, symmetric, foreign_symmetric, weights] =
            ["dynamic", "ours", "foreign", "symmetric", "foreign-symmetric", "weights"].map(found);
        assert_eq!([dynamic, foreign], [ours; 2], "{model}: the same codes by the same kernels");
        assert_eq!(symmetric, foreign_symmetric, "{model}");
        assert!(dynamic != weights && symmetric != weights && dynamic != symmetric, "{model}: {weights}");
        sandbox.ok("export narrow --to briquette -o ours --force --quiet");
        without_manifest(&sandbox, "narrow", "foreign-narrow", ["", ""]);
        let [narrow, ours, foreign, narrow_symmetric, narrow_weights] =
            ["narrow", "ours", "foreign-narrow", "narrow-symmetric", "narrow-weights"].map(found);
        assert_eq!([narrow, foreign], [ours; 2], "{model}: the same codes by the same kernels");
        assert!(narrow != narrow_weights && narrow_symmetric != narrow, "{model}: {narrow_weights}");
        if model == "llama-tied" {
            // Perplexities that transformers 5.23 and compressed-tensors 0.20 report for these directories, in
            // windows of 64 tokens.
            for (found, theirs) in [
                (dynamic, 884.2356),
                (symmetric, 884.2296),
                (weights, 883.0754),
                (narrow, 949.1118),
                (narrow_symmetric, 947.0648),
                (narrow_weights, 946.7567),
            ] {
                assert!((found / theirs - 1.0_f64).abs() < 3e-4, "{found} and {theirs}");
            }
        }
    }
}

#[test]
fn unsupported_activation_schemes_are_refused() {
    let sandbox = with_model("llama-tied");
    let flags = "--quantize int8-dynamic --quantize-roles linear --format compressed-tensors --quiet";
    sandbox.ok(&format!("compress llama-tied -o dynamic {flags}"));
    let cases = [
        ("tensor", ["\"token\"", "\"tensor\""], 6, "not int8 per token"),
        ("static", ["\"dynamic\": true", "\"dynamic\": false"], 4, "a static scale of activations"),
        ("output", ["\"output_activations\": null", "\"output_activations\": {}"], 6, "not int8 per token"),
    ];
    for (out, change, code, phrase) in cases {
        without_manifest(&sandbox, "dynamic", out, change);
        sandbox.run(&format!("eval {out} --data text.txt --quiet")).assert_fails(code, &[phrase]);
    }
    let dense = sandbox.json("export tensor --to dense -o dense");
    assert!(dense["after"]["file_bytes"].as_u64() > Some(0), "the weights can still be decoded");
}

//! Sensitivities: measured, saved and reused; impossible requests are one line of error.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};
use serde_json::Value;

fn bert() -> Sandbox {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    sandbox
}

const FIND: &str = "sensitivity bert-tiny --data text.txt --max-length 16 --device cpu";

#[test]
fn gradients_and_measured_losses_rank_tensors_alike() {
    let sandbox = bert();
    let found = sandbox.json(&format!("{FIND} --against measured -o s.json"));
    assert_eq!((found["how"].as_str(), found["unit"].as_str()), (Some("gradient"), Some("1 - cosine")));
    assert!(found["rank_correlation"].as_f64().unwrap() > 0.8, "{found}");
    let tensors = found["tensors"].as_array().unwrap();
    assert!(tensors.iter().all(|tensor| tensor["loss"].as_f64().unwrap() > 0.0), "{found}");
    let idle: Vec<&str> =
        tensors.iter().filter(|it| it["is_idle"] == true).map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(idle, ["pooler.dense.weight"], "only the pooler does not run");
    let written: Value = serde_json::from_slice(&std::fs::read(sandbox.path("s.json")).unwrap()).unwrap();
    assert_eq!(written, found);
    let page = std::fs::read_to_string(sandbox.path("s.html")).unwrap();
    assert!(page.contains("Rank correlation with") && page.contains("not used by any layer that ran"), "{page}");
    let text = sandbox.ok(&format!("{FIND} --how relative --against gradient")).stdout;
    assert!(text.contains("rank correlation with gradient"), "{text}");
}

#[test]
fn saved_sensitivities_give_the_same_output() {
    let sandbox = bert();
    sandbox.ok(&format!("{FIND} -o s.json"));
    let line = "compress bert-tiny --quiet --bits 4 --data text.txt --max-length 16 --device cpu";
    sandbox.ok(&format!("{line} -o found"));
    sandbox.ok(&format!("{line} -o read --sensitivity-file s.json"));
    let weights = |output: &str| std::fs::read(sandbox.path(output).join("model.briquette.safetensors")).unwrap();
    assert!(weights("found") == weights("read"));
    sandbox.ok("verify read");
    let first = std::fs::read(sandbox.path("s.json")).unwrap();
    sandbox.ok(&format!("{FIND} -o s.json --force --threads 1"));
    assert!(std::fs::read(sandbox.path("s.json")).unwrap() == first, "one thread gives another file");
}

#[test]
fn decoders_and_classifiers_have_sensitivities() {
    let sandbox = Sandbox::with("models/llama-tied");
    copy(&repository().join("fixtures/models/text.txt"), &sandbox.path("text.txt"));
    let line = "sensitivity llama-tied --data text.txt --max-length 16 --device cpu";
    let found = sandbox.json(&format!("{line} --against measured"));
    assert_eq!(found["unit"], "nats");
    assert!(found["rank_correlation"].as_f64().unwrap() > 0.9, "both losses are the divergence: {found}");
    let metric = sandbox.json(&format!("{line} --how measured --loss metric --against gradient -o m.json"));
    assert_eq!((metric["unit"].as_str(), metric["loss"].as_str()), (Some("ln perplexity"), Some("metric")));
    let page = std::fs::read_to_string(sandbox.path("m.html")).unwrap();
    assert!(page.contains("Method: measured on") && page.contains(", in ln perplexity."), "{page}");
    let sandbox = Sandbox::with("digits");
    copy(&repository().join("fixtures/digits-data.safetensors"), &sandbox.path("data.safetensors"));
    let found = sandbox.json("sensitivity digits --data data.safetensors --device cpu");
    assert_eq!(found["tensors"].as_array().unwrap().len(), 4, "{found}");
    let losses = |flags: &str| {
        let found = sandbox.json(&format!("sensitivity digits --data data.safetensors --device cpu {flags}"));
        let of = |tensor: &Value| tensor["loss"].as_f64().unwrap();
        (found["unit"].clone(), found["tensors"].as_array().unwrap().iter().map(of).collect::<Vec<f64>>())
    };
    let (unit, by_kl) = losses("--how measured");
    assert!(unit == "nats" && by_kl.iter().all(|loss| (1e-7..1.0).contains(loss)), "{unit}: {by_kl:?}");
    let (unit, by_metric) = losses("--how measured --loss metric --samples 360");
    assert!(unit == "accuracy" && by_metric.iter().all(|loss| (1e-9..1.0).contains(loss)), "{unit}: {by_metric:?}");
    assert_eq!(losses("--how measured --loss cosine").0, "1 - cosine");
    sandbox.ok("compress digits -o out --quiet --bytes 9kB --data data.safetensors --device cpu");
    let measured = "--bytes 9kB --data data.safetensors --device cpu --sensitivity measured --loss metric";
    let report = sandbox.json(&format!("compress digits -o by-accuracy --quiet {measured}"));
    let allocation = &report["allocation"];
    assert_eq!((allocation["how"].as_str(), allocation["unit"].as_str()), (Some("measured"), Some("accuracy")));
    sandbox.ok("calibrate digits --data data.safetensors -o stats.safetensors --device cpu");
    let by = |flags: &str| sandbox.json(&format!("sensitivity digits {flags}"))["tensors"].clone();
    assert_ne!(by("--statistics stats.safetensors"), by(""), "statistics do not change the result");
}

#[test]
fn impossible_sensitivities_are_refused_in_one_line() {
    let sandbox = bert();
    sandbox.ok(&format!("{FIND} -o s.json --samples 4"));
    sandbox.write(
        "other/model.safetensors",
        std::fs::read(repository().join("fixtures/digits/model.safetensors")).unwrap(),
    );
    sandbox.write("broken.json", "{}");
    let cases = [
        ("sensitivity bert-tiny --how gradient", 2, "needs data"),
        ("sensitivity bert-tiny --how guess", 2, "expected one of gradient, measured, relative"),
        ("sensitivity bert-tiny --data text.txt -o s.json", 6, "exists already"),
        ("sensitivity bert-tiny --data text.txt -o bert-tiny/s.json", 6, "read as weights"),
        ("sensitivity bert-tiny --include nothing", 2, "nothing"),
        ("sensitivity bert-tiny --samples 3", 2, "--data"),
        ("sensitivity bert-tiny --data text.txt --how measured --loss kl", 2, "--loss: an encoder has no classes"),
        ("sensitivity bert-tiny --data text.txt --how measured --loss metric", 2, "no pairs with a score"),
        ("sensitivity bert-tiny --data text.txt --how measured --loss guess", 2, "expected one of cosine, kl, metric"),
        ("sensitivity bert-tiny --data text.txt --how gradient --loss kl", 2, "only measured sensitivities use it"),
        ("compress bert-tiny -o out --bytes 9kB --data text.txt --loss kl", 2, "--sensitivity"),
        ("compress other -o out --bytes 9kB --sensitivity-file s.json", 4, "sensitivities of another model"),
        ("compress other -o out --bytes 9kB --sensitivity-file broken.json", 4, "broken.json: a file of sensitivities"),
        ("compress other -o out --bytes 9kB --sensitivity-file none.json", 4, "none.json"),
        (
            "compress other -o out --bytes 9kB --sensitivity-file s.json --sensitivity relative",
            2,
            "cannot be used with",
        ),
        ("compress bert-tiny -o out --quantize int8 --sensitivity-file s.json", 2, "--b"),
    ];
    for (line, code, phrase) in cases {
        sandbox.run(line).assert_fails(code, &[phrase]);
        assert!(!sandbox.path("out").exists(), "{line}");
    }
}

//! The figures promised for all-MiniLM-L6-v2, wherever `models/minilm` is there.

use crate::sandbox::{Sandbox, repository};

/// Compresses it, verifies that against the original, and holds the bytes of its weights against a limit in MB.
fn assert_at_most(options: &str, limit: f64) {
    let model = repository().join("models/minilm");
    if !model.exists() {
        eprintln!("skipped: models/minilm is not there");
        return;
    }
    let sandbox = Sandbox::new();
    std::os::unix::fs::symlink(model.canonicalize().unwrap(), sandbox.path("minilm")).unwrap();
    let report = sandbox.json(&format!("compress minilm -o out {options}"));
    sandbox.ok("verify out --against minilm");
    let weights = std::fs::read_dir(sandbox.path("out")).unwrap().map(|entry| entry.unwrap());
    let is_weight = |name: &str| name.ends_with(".safetensors");
    let n_bytes: u64 = weights
        .filter(|entry| is_weight(entry.file_name().to_str().unwrap()))
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert_eq!(report["after"]["file_bytes"], n_bytes);
    assert!(n_bytes as f64 <= limit * 1e6, "{options}: {n_bytes} bytes, expected at most {limit} MB");
}

#[test]
fn int8_takes_at_most_23_3_megabytes() {
    assert_at_most("--quantize int8", 23.3);
}

#[test]
fn four_tenths_pruned_and_int8_takes_at_most_20_4_megabytes() {
    assert_at_most("--prune 0.4 --quantize int8", 20.4);
}

#[test]
fn with_pruned_embeddings_it_takes_at_most_17_4_megabytes() {
    assert_at_most("--prune 0.4 --prune-roles linear,conv,embedding --quantize int8", 17.4);
}

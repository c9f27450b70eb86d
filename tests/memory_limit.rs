//! Compression within a memory limit: the peak stays below it, or the run is refused before it writes.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of};
use serde_json::Value;

/// Returns the peak of allocated memory over all phases of a trace.
pub(crate) fn peak_of(trace: &Value) -> u64 {
    let events = trace["traceEvents"].as_array().unwrap().iter();
    events.filter_map(|event| event["args"]["peak_bytes"].as_u64()).max().unwrap()
}

/// Runs a command with a trace and a limit in MB. Returns the exit code and the peak.
fn run_within(sandbox: &Sandbox, line: &str, limit: u64) -> (i32, u64) {
    let flags = format!("--memory-limit {limit}MB --force --quiet --trace trace.json --threads 2");
    let outcome = sandbox.run(&format!("{line} {flags}"));
    let peak = peak_of(&serde_json::from_slice(&std::fs::read(sandbox.path("trace.json")).unwrap()).unwrap());
    assert!(peak <= limit * 1_000_000, "{line}: {peak} bytes within {limit} MB: {}", outcome.stderr);
    if outcome.code != 0 {
        outcome.assert_fails(6, &["memory.limit: cannot compress tensor \"", "expected at most", "raise the limit"]);
    }
    (outcome.code, peak)
}

/// Writes a model of 38 MB: one large matrix, and small ones.
fn with_a_large_tensor() -> Sandbox {
    let sandbox = Sandbox::new();
    let mut tensors = vec![Tensor::random("large.weight", &[3072, 3000], 1)];
    tensors.extend((0..8).map(|i| Tensor::random(&format!("{i}.weight"), &[128, 256], i)));
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    sandbox
}

#[test]
fn the_peak_of_a_compression_is_never_above_its_limit() {
    let sandbox = with_a_large_tensor();
    let flags = [
        "--quantize int8",
        "--quantize int4-g8 --range mse",
        "--prune 0.5",
        "--prune 0.5 --scope global --quantize int8",
        "--prune-pattern 2:4 --cast f16",
        "--quantize int8 --storage entropy",
        "--cast f16 --layout burn",
        "--prune 0.5 --quantize int8 --layout burn",
        "--prune 0.5 --format dense --layout burn",
    ];
    for flags in flags {
        let line = format!("compress m.safetensors -o out {flags}");
        let found = [12, 24, 48, 96, 192, 384].map(|limit| run_within(&sandbox, &line, limit).0);
        assert!(found.is_sorted_by(|a, b| a >= b), "{line}: {found:?}");
        assert_eq!((found[0], found[5]), (6, 0), "{line}: {found:?}");
    }
}

#[test]
fn a_limit_changes_no_byte_of_the_weights() {
    let sandbox = with_a_large_tensor();
    for flags in ["--prune 0.5 --quantize int8", "--prune 0.6 --scope global", "--quantize int8 --storage entropy"] {
        sandbox.ok(&format!("compress m.safetensors -o free {flags} --force --quiet"));
        sandbox.ok(&format!("compress m.safetensors -o tight {flags} --force --quiet --memory-limit 24MB"));
        let [free, tight] = ["free", "tight"].map(|name| sandbox.files(name));
        for name in ["model.briquette.safetensors", "briquette.json"] {
            assert_eq!(free[name], tight[name], "{flags}");
        }
    }
}

#[test]
fn a_budget_keeps_the_limit_too() {
    let sandbox = with_a_large_tensor();
    for (limit, code) in [(12, 6), (200, 0)] {
        let line = "compress m.safetensors -o out --bytes 6MB";
        assert_eq!(run_within(&sandbox, line, limit).0, code, "{limit}");
    }
}

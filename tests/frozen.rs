//! Outputs of earlier versions still verify and decode to the same values.

use crate::sandbox::{Sandbox, repository};
use crate::weights::{safetensors_of, tensors_of, tiny};
use briquette::core::InputStats;
use briquette::formats::input_stats::StatisticsFile;
use briquette::formats::sums::sha256_of_bytes;
use std::path::Path;
use std::sync::Arc;

/// Directory in `fixtures/frozen`, the options that made it, and SHA-256 of the names and bytes of its tensors.
const OUTPUTS: [(&str, &str, &str); 10] = [
    (
        "v0_1_0_pruned-int8",
        "--prune 0.7 --quantize int8",
        "4047e0457ad2b4204153c056d0aca4a665ed66bc8a7111716605d5f27551a05d",
    ),
    (
        "v0_1_0_int4-g32",
        "--quantize int4-g32-asym --range mse",
        "258494f4f45b1dcf60b8ebdf7971ef686f32f03d5e29eb5fad64da820d6b07de",
    ),
    (
        "v0_1_0_burnpack",
        "--prune 0.5 --quantize int8 --format burnpack",
        "f3c96d26364f24c16d6c28d2e2b6bf4d50ac61853c0145a47acfa4cd08d57d27",
    ),
    (
        "v0_1_0_compressed-tensors",
        "--quantize int4-g32 --format compressed-tensors --allow-untested",
        "d9d49177d04cc81ae4527d7b3bd0e3ab9eba64b9f82f9a439ebf4a176b5ca61b",
    ),
    (
        "v0_1_0_entropy",
        "--prune 0.5 --quantize int4-g16-asym --storage entropy",
        "d99ce391d899bcbf59b8bd06806606714e7df11c7e9b52ba756c348dde1c1501",
    ),
    // An output of version 1, whose hash of `up.weight` does not cover the layout of its rows.
    (
        "v0_1_0_burn-layout",
        "--layout burn --prune 0.5 --quantize int8",
        "c8a1665a56f81aeeca201c4ab4b1800e4251b4982a8c93efff6cf747f1c376b8",
    ),
    // The same with version 5.
    (
        "v0_1_0_burn-layout-hashed",
        "--layout burn --prune 0.5 --quantize int8",
        "c8a1665a56f81aeeca201c4ab4b1800e4251b4982a8c93efff6cf747f1c376b8",
    ),
    // An output of version 6, with scales of one byte.
    (
        "v0_1_0_log-scales",
        "--quantize step0.008-frequency --include embed.weight --storage entropy",
        "1ca09faafeccb19f9b3dc2a55b9e2c6d02a905f370791dbc3f72e0844c4d1d16",
    ),
    // An output of version 7, with scales of columns.
    (
        "v0_1_0_column-scales",
        "--quantize int8-dynamic --column-scales --statistics up.stats.safetensors --include up.weight",
        "6aae289bafe4167677126b057bf90dbc49cfb22e16129e7818a1fff5ec95f6d5",
    ),
    // An output of version 9, with codes on a trellis.
    (
        "v0_1_0_trellis",
        "--quantize step0.02-trellis --round gptq --statistics up.stats.safetensors --include up.weight --storage entropy",
        "de0ea1d4a03cdab01343ae435a2e8700e1294996d5829c0b4d5ec551faa73bc2",
    ),
];

/// Writes statistics of the inputs of `up.weight`, of which every eighth is large.
fn write_statistics(path: &Path) {
    let max: Vec<f32> = (0..32).map(|at| if at % 8 == 3 { 40.0 } else { 1.0 }).collect();
    let sum_squares = max.iter().map(|max| 64.0 * 0.2 * f64::from(*max).powi(2)).collect();
    // Only GPTQ uses the products of inputs.
    let product = |at: usize| if at / 32 == at % 32 { 12.8 } else { 1.6 } * f64::from(max[at / 32] * max[at % 32]);
    let gram = Some(Arc::new((0..32 * 32).map(product).collect()));
    let stats = InputStats { count: 64, sum_squares, max: max.clone(), gram, ..InputStats::empty(32, false) };
    StatisticsFile { layers: [("up".to_string(), stats)].into(), ..Default::default() }.write(path).unwrap();
}

/// A tokenizer with a token for each row of `embed.weight`.
const TOKENIZER: &str = r#"{"model": {"vocab": {"the": 0, "of": 1, "and": 2, "to": 3, "in": 4, "is": 5, "was": 6, "that": 7, "for": 8, "it": 9, "with": 10, "as": 11}}}"#;

fn decoded_hash(directory: &Path) -> String {
    let mut bytes = Vec::new();
    for (name, tensor) in tensors_of(directory) {
        bytes.extend(format!("{name} {} {:?}\n", tensor.dtype, tensor.shape).into_bytes());
        bytes.extend(tensor.bytes);
    }
    sha256_of_bytes(&bytes)
}

#[test]
fn frozen_outputs_verify_and_decode_to_the_same_values() {
    let sandbox = Sandbox::new();
    sandbox.write("tokenizer.json", TOKENIZER);
    sandbox.write("tiny.safetensors", safetensors_of(&tiny()));
    for (name, options, hash) in OUTPUTS {
        let path = repository().join("fixtures/frozen").join(name);
        assert_eq!(decoded_hash(&path), hash, "{name}");
        sandbox.ok(&format!("verify {}", path.display()));
        // Outputs that use statistics cannot be made again without them.
        if !options.contains("--statistics") {
            sandbox.ok(&format!("verify {} --against tiny.safetensors", path.display()));
        }
        sandbox.ok(&format!("export {} --to dense -o {name}", path.display()));
        assert_eq!(decoded_hash(&sandbox.path(name)), hash, "{name} as dense");
    }
}

/// Writes the frozen outputs of a new version: run it once, by hand, after adding entries of that version.
///
/// Outputs of earlier versions are never written again.
#[test]
#[ignore = "writes fixtures/frozen"]
fn freeze() {
    let sandbox = Sandbox::new();
    sandbox.write("tokenizer.json", TOKENIZER);
    sandbox.write("tiny.safetensors", safetensors_of(&tiny()));
    write_statistics(&sandbox.path("up.stats.safetensors"));
    for (name, options, _) in OUTPUTS {
        let path = repository().join("fixtures/frozen").join(name);
        if path.exists() {
            continue;
        }
        sandbox.ok(&format!("compress tiny.safetensors -o {} {options}", path.display()));
        for uncovered in ["report.json", "report.html"] {
            std::fs::remove_file(path.join(uncovered)).unwrap();
        }
        println!("{name} {}", decoded_hash(&path));
    }
}

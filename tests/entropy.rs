//! Entropy-coded storage: equal values in fewer bytes, equal bytes from every way to write them, and equal
//! results when run.

use crate::export::SCHEMES;
use crate::sandbox::{Sandbox, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use serde_json::Value;

fn weights(sandbox: &Sandbox, output: &str) -> Vec<u8> {
    std::fs::read(sandbox.path(output).join("model.briquette.safetensors")).unwrap()
}

fn manifest(sandbox: &Sandbox, output: &str) -> Value {
    serde_json::from_slice(&std::fs::read(sandbox.path(output).join("briquette.json")).unwrap()).unwrap()
}

#[test]
fn entropy_coded_outputs_are_smaller_and_convert_both_ways_without_loss() {
    let sandbox = Sandbox::with("digits");
    let schemes = SCHEMES[..5].iter().chain(&["--prune 0.5 --quantize int2 --cast f16"]);
    for (i, scheme) in schemes.enumerate() {
        let [plain, coded, again, back] = ["plain", "coded", "again", "back"].map(|name| format!("{name}{i}"));
        sandbox.ok(&format!("compress digits -o {plain} {scheme}"));
        let report = sandbox.json(&format!("export {plain} --to briquette --storage entropy -o {coded}"));
        assert_eq!(tensors_of(&sandbox.path(&plain)), tensors_of(&sandbox.path(&coded)), "{scheme}");
        let (before, after) = (weights(&sandbox, &plain).len(), weights(&sandbox, &coded).len());
        // Each tensor adds about a hundred bytes of states, tables and offsets.
        assert!(after < before + 2000, "{scheme}: {before} became {after}");
        assert_eq!(report["after"]["file_bytes"], after, "{scheme}");
        let predicted = report["predicted_bytes"].as_u64().unwrap();
        assert!(predicted >= after as u64 && report["prediction_is_exact"] == false, "{scheme}: {predicted}");
        assert_eq!(manifest(&sandbox, &coded)["version"], 4);
        sandbox.ok(&format!("verify {coded} --against {plain}"));
        sandbox.ok(&format!("compress digits -o {again} {scheme} --storage entropy --threads 1"));
        assert_eq!(weights(&sandbox, &coded), weights(&sandbox, &again), "{scheme}");
        sandbox.ok(&format!("verify {again} --against digits"));
        sandbox.ok(&format!("export {coded} --to briquette -o {back}"));
        sandbox.ok(&format!("export {plain} --to briquette -o {back}-direct"));
        assert_eq!(weights(&sandbox, &back), weights(&sandbox, &format!("{back}-direct")), "{scheme}");
    }
}

/// Tensors with bell-shaped values, and tensors with few distinct values.
fn large() -> Vec<Tensor> {
    let bell = Tensor::random("bell.weight", &[3000, 2200], 5);
    let sum = |values: &[f32]| {
        values.chunks(2200).flat_map(|row| row.iter().zip(row.iter().rev()).map(|(a, b)| a + b)).collect()
    };
    let values: Vec<f32> = sum(&bell.floats());
    vec![
        Tensor::f32("bell.weight", &[3000, 2200], values),
        Tensor::f32("long.weight", &[2, 300_000], (0..600_000_u32).map(|i| (i % 3) as f32)),
        Tensor::f32("same.weight", &[70, 5000], std::iter::repeat_n(1.5, 350_000)),
        Tensor::f32("none.weight", &[0, 16], []),
        Tensor::f32("one.weight", &[1, 1], [0.25]),
    ]
}

#[test]
fn large_tensors_give_the_same_bytes_on_any_number_of_threads() {
    let sandbox = Sandbox::new();
    sandbox.write("large.safetensors", safetensors_of(&large()));
    for scheme in [
        "int8 --quantize-roles linear,unknown,embedding",
        "int4-g20 --range mse --exclude one.weight",
        "int8-dynamic --prune 0.5",
    ] {
        sandbox.ok(&format!("compress large.safetensors -o plain --force --quantize {scheme}"));
        let outputs = [1, 2, 7].map(|threads| {
            let flags = format!("--storage entropy --force --threads {threads}");
            sandbox.ok(&format!("compress large.safetensors -o coded --quantize {scheme} {flags}"));
            sandbox.ok("verify coded");
            weights(&sandbox, "coded")
        });
        assert!(outputs.iter().all(|bytes| *bytes == outputs[0]), "{scheme}");
        assert!(outputs[0].len() < weights(&sandbox, "plain").len(), "{scheme}");
        assert_eq!(tensors_of(&sandbox.path("plain")), tensors_of(&sandbox.path("coded")), "{scheme}");
        if scheme.contains("prune") {
            continue;
        }
        let coding = &manifest(&sandbox, "coded")["tensors"]["same.weight"]["coding"];
        let n_bytes = coding["storage"]["entropy"]["n_bytes"].as_u64().unwrap();
        assert!(n_bytes < 2 * 200, "{scheme}: {n_bytes} bytes for equal codes");
    }
}

#[test]
fn an_entropy_coded_model_evaluates_as_before() {
    let sandbox = Sandbox::with("digits");
    sandbox.write("data.safetensors", std::fs::read(repository().join("fixtures/digits-data.safetensors")).unwrap());
    sandbox.ok("compress digits -o plain --prune 0.5 --quantize int8-dynamic");
    sandbox.ok("export plain --to briquette --storage entropy -o coded");
    let [plain, coded] = ["plain", "coded"]
        .map(|output| sandbox.json(&format!("eval {output} --data data.safetensors --against digits --device cpu")));
    assert!(plain["metrics"]["accuracy"].as_f64().unwrap() > 0.9);
    assert_eq!(plain["metrics"], coded["metrics"]);
    for figure in ["weights_bytes", "predicted_bytes"] {
        let of = |found: &Value| found["after"]["memory"][0][figure].as_u64().unwrap();
        assert_eq!(of(&plain), of(&coded), "{figure}");
    }
}

#[test]
fn unsupported_entropy_coding_is_refused_in_one_line() {
    let sandbox = Sandbox::with("digits");
    let cases = [
        (
            "--quantize int8 --storage entrpy",
            "--storage: found \"entrpy\", expected one of auto, entropy; did you mean \"entropy\"?",
        ),
        ("--quantize int8 --storage entropy --format dense", "expected the format briquette"),
        ("--bytes 20kB --format dense", "--format: found dense with a budget of step sizes"),
    ];
    for (flags, phrase) in cases {
        sandbox.run(&format!("compress digits -o out {flags}")).assert_fails(2, &[phrase]);
    }
    let plan = sandbox.ok("plan digits --prune 0.5 --storage entropy").stdout;
    assert!(plan.contains("No tensor has codes, so nothing is entropy-coded"), "{plan}");
}

#[test]
fn invalid_blocks_are_refused_in_one_line() {
    let sandbox = Sandbox::with("digits");
    sandbox.ok("compress digits -o out --quantize int8 --storage entropy");
    let good = weights(&sandbox, "out");
    let n_header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&good[8..n_header]).unwrap();
    let start = |part: &str| n_header + header[part]["data_offsets"][0].as_u64().unwrap() as usize;
    let (ends, blocks) = (start("fc1.weight.block_ends"), start("fc1.weight.blocks"));
    let lies: [(usize, &[u8], &str); 6] = [
        (ends, &[0xff; 8], "its codes"),
        (ends, &[0; 8], "table of frequencies is cut off"),
        (ends, &[0, 0, 0, 0, 0, 1, 0, 0], "its codes at bytes 0.."),
        (blocks, &[5, 5], "symbols out of order"),
        (blocks + 2, &[0x7e], "expected 4096"),
        (blocks + 700, &[1, 2, 3], "damaged"),
    ];
    for (at, bytes, phrase) in lies {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        sandbox.write("out/model.briquette.safetensors", bad);
        sandbox.run("export out --to dense -o dense").assert_fails(4, &[phrase]);
        sandbox.run("verify out").assert_fails(4, &[]);
    }
    sandbox.write("out/model.briquette.safetensors", good);
    let text = std::fs::read_to_string(sandbox.path("out/briquette.json")).unwrap();
    let n_bytes =
        manifest(&sandbox, "out")["tensors"]["fc1.weight"]["coding"]["storage"]["entropy"]["n_bytes"].to_string();
    std::fs::remove_file(sandbox.path("out/SHA256SUMS")).unwrap();
    for (lie, phrase) in [("18446744073709551615", "larger than the codes without coding"), ("7", "expected U8 [7]")] {
        sandbox.write("out/briquette.json", text.replace(&n_bytes, lie));
        sandbox.run("export out --to dense -o dense").assert_fails(4, &[phrase]);
    }
}

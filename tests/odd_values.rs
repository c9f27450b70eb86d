//! Weights with NaN, values beyond f32, and signed zeros.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of};
use briquette::core::DType;
use half::f16;
use std::collections::BTreeMap;

/// A model with NaN in `a.weight`.
fn with_nan() -> Sandbox {
    let sandbox = Sandbox::new();
    let mut values = Tensor::random("a.weight", &[16, 32], 1).floats();
    values[99] = f32::NAN;
    let tensors = [Tensor::f32("a.weight", &[16, 32], values), Tensor::random("c.weight", &[16, 32], 2)];
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    sandbox
}

#[test]
fn a_budget_names_a_tensor_with_nan_or_leaves_it_as_it_is() {
    let sandbox = with_nan();
    for flags in ["--bytes 20kB", "--bytes 20kB --choices int8", "--bits 5 --choices int8,int4"] {
        for command in [format!("compress m.safetensors -o out {flags}"), format!("plan m.safetensors {flags}")] {
            let phrases = ["tensor \"a.weight\"", "found NaN at row 3, column 3", "--allow-nonfinite"];
            sandbox.run(&command).assert_fails(6, &phrases);
        }
        sandbox.ok(&format!("compress m.safetensors -o out {flags} --allow-nonfinite --force --quiet"));
        sandbox.ok("verify out");
    }
    let outcome = sandbox.run("sensitivity m.safetensors -o s.json");
    outcome.assert_fails(6, &["tensor \"a.weight\"", "found NaN"]);
    assert!(!outcome.stderr.contains("--allow-nonfinite"), "{}", outcome.stderr);
}

#[test]
fn a_comparison_tells_f64_apart_that_are_one_f32() {
    let sandbox = Sandbox::new();
    let of = |value: f64| Tensor {
        name: "a.weight".into(),
        dtype: DType::F64,
        shape: vec![2, 2],
        bytes: [value, 1.0, 2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    for (first, second, n_equal) in [(1e300, 5e300, 0), (1e-300, 2e-300, 0), (0.5, 0.5 + 1e-12, 0), (0.5, 0.5, 1)] {
        sandbox.write("a.safetensors", safetensors_of(&[of(first)]));
        sandbox.write("b.safetensors", safetensors_of(&[of(second)]));
        let found = sandbox.ok("diff a.safetensors b.safetensors");
        assert!(found.stdout.contains(&format!("1 tensors compared, {n_equal} equal")), "{first}: {}", found.stdout);
    }
}

#[test]
fn zeros_of_either_sign_are_zeros_in_every_type() {
    let sandbox = Sandbox::new();
    let values: Vec<f32> = (0..256).map(|at| [-0.0, 0.0, 1.5, -2.0][at % 4]).collect();
    let halves = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
    let half = Tensor { name: "h.weight".into(), dtype: DType::F16, shape: vec![8, 32], bytes: halves };
    sandbox.write("m.safetensors", safetensors_of(&[Tensor::f32("f.weight", &[8, 32], values), half]));
    let found = sandbox.json("inspect m.safetensors --zeros");
    let zeros: BTreeMap<&str, u64> = found["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| (tensor["name"].as_str().unwrap(), tensor["n_zeros"].as_u64().unwrap()))
        .collect();
    assert_eq!(zeros, BTreeMap::from([("f.weight", 128), ("h.weight", 128)]));
    let report = sandbox.json("compress m.safetensors -o out --cast bf16 --format dense");
    assert_eq!(report["after"]["n_zeros"], 256);
}

//! Scales and values beyond a narrow float type: none becomes 0 or infinity silently.

use crate::sandbox::Sandbox;
use crate::weights::{Random, Tensor, safetensors_of, tensors_of};
use briquette::core::DType;
use serde_json::Value;

/// Matrices of usual, tiny and huge weights.
fn of_all_sizes() -> Vec<Tensor> {
    [("usual", 0.5), ("tiny", 1e-9), ("huge", 1e12)].into_iter().map(|(name, size)| scaled(name, size)).collect()
}

fn scaled(name: &str, size: f32) -> Tensor {
    let mut random = Random(7);
    Tensor::f32(&format!("{name}.weight"), &[64, 96], (0..64 * 96).map(|_| size * random.next_float()))
}

/// Returns `‖a - b‖ / ‖a‖` of two tensors.
fn relative_error(a: &Tensor, b: &Tensor) -> f64 {
    let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>().sqrt();
    let (a, b) = (a.floats(), b.floats());
    let apart = sum(&mut a.iter().zip(&b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)));
    apart / sum(&mut a.iter().map(|a| f64::from(*a).powi(2)))
}

fn remarks(report: &Value) -> String {
    report["remarks"].to_string()
}

#[test]
fn scales_beyond_f16_are_stored_as_f32() {
    let sandbox = Sandbox::new();
    let tensors = of_all_sizes();
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    for storage in ["", "storage = \"entropy\"\n"] {
        for keys in [
            "scheme = \"int8\"",
            "scheme = \"int8-asym\"",
            "bits = 8\ngroup = \"tensor\"",
            "scheme = \"int8\"\nrange = \"mse\"",
        ] {
            let recipe = |scale: &str| {
                format!(
                    "[model]\npath = \"m.safetensors\"\n[output]\npath = \"out\"\n{storage}[[stage]]\nkind = \"quantize\"\n{keys}\nscale = \"{scale}\"\n"
                )
            };
            let run = |scale: &str| {
                sandbox.write("r.toml", recipe(scale));
                let report = sandbox.json("run r.toml --force");
                sandbox.ok("verify out --against m.safetensors");
                (report, tensors_of(&sandbox.path("out")))
            };
            let ((_, wide), (report, found)) = (run("f32"), run("f16"));
            for tensor in &tensors {
                let error = relative_error(tensor, &found[&tensor.name]);
                assert!(error < 0.02, "{} {keys}: {error}", tensor.name);
                assert_eq!(found[&tensor.name] == wide[&tensor.name], tensor.name != "usual.weight", "{keys}");
            }
            let remarks = remarks(&report);
            assert!(remarks.contains("tiny.weight, huge.weight: scales are f32, as they do not fit f16"), "{remarks}");
        }
    }
}

#[test]
fn step_sizes_may_exceed_f16() {
    let sandbox = Sandbox::new();
    let mut tensor = scaled("wide", 0.1);
    tensor.bytes[..4].copy_from_slice(&3e9_f32.to_le_bytes());
    sandbox.write("m.safetensors", safetensors_of(std::slice::from_ref(&tensor)));
    sandbox.ok("compress m.safetensors -o out --quantize step0.001");
    sandbox.ok("verify out --against m.safetensors");
    let found = tensors_of(&sandbox.path("out"));
    assert!(relative_error(&tensor, &found["wide.weight"]) < 0.01, "values are cut off at 65504 * 127");
}

#[test]
fn casts_that_round_weights_to_zero_are_skipped() {
    let sandbox = Sandbox::new();
    let small = [scaled("usual", 0.5), scaled("tiny", 1e-10), scaled("tiniest", 1e-40)];
    sandbox.write("m.safetensors", safetensors_of(&small));
    for (flags, own) in [
        ("--cast f16", &["tiny.weight", "tiniest.weight"][..]),
        ("--cast bf16", &["tiniest.weight"]),
        ("--prune 0.6 --cast f16", &["tiny.weight", "tiniest.weight"]),
    ] {
        let report = sandbox.json(&format!("compress m.safetensors -o out --force {flags}"));
        sandbox.ok("verify out --against m.safetensors");
        let found = tensors_of(&sandbox.path("out"));
        let plain = match flags.split_once("--cast") {
            Some((pruned, _)) if !pruned.is_empty() => {
                sandbox.ok(&format!("compress m.safetensors -o plain --force {pruned}"));
                tensors_of(&sandbox.path("plain"))
            }
            _ => tensors_of(&sandbox.path("m.safetensors")),
        };
        for tensor in &small {
            let keeps = own.contains(&tensor.name.as_str());
            assert_eq!(found[&tensor.name].dtype == DType::F32, keeps, "{flags}: {}", tensor.name);
            assert!(!keeps || found[&tensor.name] == plain[&tensor.name], "{flags}: {}", tensor.name);
        }
        if report["prediction_is_exact"] == true {
            assert_eq!(report["predicted_bytes"], report["after"]["file_bytes"], "{flags}");
        }
        let (remarks, names) = (remarks(&report), own.join(", "));
        assert!(remarks.contains(&format!("{names}: not cast, as the weights are too small")), "{remarks}");
    }
}

#[test]
fn f64_weights_that_f32_rounds_to_zero_are_refused() {
    let sandbox = Sandbox::new();
    let values = (1..=32).map(|i| 1e-60 * f64::from(i));
    let bytes: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
    let tensor = Tensor { name: "fc.weight".into(), dtype: DType::F64, shape: vec![4, 8], bytes };
    sandbox.write("m.safetensors", safetensors_of(&[tensor, scaled("usual", 0.5)]));
    for flags in ["--prune 0.5", "--quantize int8", "--quantize int8 --format dense"] {
        let phrases = ["tensor \"fc.weight\"", "3.2e-59", "1e-42", "exclude"];
        sandbox.run(&format!("compress m.safetensors -o out {flags}")).assert_fails(6, &phrases);
        assert!(!sandbox.path("out").exists());
    }
    sandbox.ok("compress m.safetensors -o out --prune 0.5 --exclude fc.weight");
}

#[test]
fn dequantized_weights_beyond_their_type_are_refused() {
    let sandbox = Sandbox::new();
    let halves = [65_504.0_f32, -65_504.0, 40_000.0, 100.0].map(half::f16::from_f32);
    let bytes = halves.iter().cycle().take(32).flat_map(|half| half.to_le_bytes()).collect();
    let tensor = Tensor { name: "fc.weight".into(), dtype: DType::F16, shape: vec![4, 8], bytes };
    sandbox.write("m.safetensors", safetensors_of(&[tensor]));
    let refused = ["tensor \"fc.weight\"", "row 0, column", "infinity in F16", "exclude"];
    for format in ["dense", "briquette"] {
        let line = format!("compress m.safetensors -o out --quantize int2-asym --format {format}");
        sandbox.run(&line).assert_fails(6, &refused);
        assert!(!sandbox.path("out").exists());
    }
    sandbox.ok("compress m.safetensors -o out --quantize int8");
    sandbox.ok("export out --to dense -o dense");
}

#[test]
fn tensors_below_every_step_size_are_named() {
    let sandbox = Sandbox::new();
    sandbox.write("m.safetensors", safetensors_of(&[scaled("usual", 0.5), scaled("tiniest", 1e-44)]));
    let report = sandbox.json("compress m.safetensors -o out --quantize int8");
    let remarks = remarks(&report);
    assert!(remarks.contains("tiniest.weight: all weights became zero") && !remarks.contains("usual"), "{remarks}");
}

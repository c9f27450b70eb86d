//! Casts: alone, together with other stages, and of values that the new type cannot hold.

use crate::sandbox::{Sandbox, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of, tiny};
use briquette::core::{DType, rows};
use std::collections::BTreeMap;

/// A directory with `tiny.safetensors`; f16 can hold the bf16 values of its norm.
fn with_tiny() -> Sandbox {
    let sandbox = Sandbox::new();
    let mut tensors = tiny();
    let norm = tensors.iter_mut().find(|tensor| tensor.dtype == DType::BF16).unwrap();
    let values = Tensor::random("norm.weight", &norm.shape, 9).floats().into_iter();
    norm.bytes = values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect();
    sandbox.write("tiny.safetensors", safetensors_of(&tensors));
    sandbox
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let mut values = vec![0.0; tensor.shape.iter().product()];
    rows::to_f32(&tensor.bytes, tensor.dtype, &mut values);
    values
}

/// Converts a value to another type and back.
fn cast(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => half::f16::from_f32(value).to_f32(),
        DType::BF16 => half::bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Checks that every float has the new type and its value in that type, and that all else is unchanged.
fn assert_cast(before: &BTreeMap<String, Tensor>, after: &BTreeMap<String, Tensor>, dtype: DType) {
    assert_eq!(before.len(), after.len());
    for (name, old) in before {
        let new = &after[name];
        if !old.dtype.is_weight() {
            assert_eq!(old, new);
            continue;
        }
        assert_eq!((new.dtype, &new.shape), (dtype, &old.shape), "{name}");
        let expected: Vec<f32> = values(old).into_iter().map(|value| cast(value, dtype)).collect();
        assert_eq!(values(new), expected, "{name}");
    }
}

#[test]
fn floats_are_rounded_to_their_new_type_in_every_format() {
    let sandbox = with_tiny();
    let before = tensors_of(&sandbox.path("tiny.safetensors"));
    let types = [("f16", DType::F16), ("bf16", DType::BF16), ("f32", DType::F32)];
    for format in ["briquette", "dense", "burnpack", "compressed-tensors"] {
        for (word, dtype) in types {
            let out = format!("{format}-{word}");
            let report = sandbox.json(&format!("compress tiny.safetensors -o {out} --cast {word} --format {format}"));
            assert_eq!(report["prediction_is_exact"], true, "{out}");
            assert_eq!(report["predicted_bytes"], report["after"]["file_bytes"], "{out}");
            sandbox.ok(&format!("verify {out} --against tiny.safetensors"));
            assert_cast(&before, &tensors_of(&sandbox.path(&out)), dtype);
        }
    }
    sandbox.ok("compress dense-f16 -o back --cast f32 --format dense");
    let halves = tensors_of(&sandbox.path("dense-f16"));
    assert_cast(&halves, &tensors_of(&sandbox.path("back")), DType::F32);
}

#[test]
fn a_pruned_weight_keeps_its_zeros_and_a_quantized_one_its_codes() {
    let sandbox = with_tiny();
    sandbox.ok("compress tiny.safetensors -o pruned --prune 0.8");
    let (once, twice) = ("--prune 0.8 --cast f16", "compress pruned -o then --cast f16");
    let report = sandbox.json(&format!("compress tiny.safetensors -o both {once}"));
    assert_eq!(report["predicted_bytes"], report["after"]["file_bytes"]);
    let up = report["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == "up.weight").unwrap();
    assert_eq!(up["encoding"], "f16, bitmask");
    sandbox.ok("verify both --against tiny.safetensors");
    assert_cast(&tensors_of(&sandbox.path("pruned")), &tensors_of(&sandbox.path("both")), DType::F16);
    sandbox.ok(twice);
    sandbox.ok("verify then --against pruned");
    assert_eq!(tensors_of(&sandbox.path("then")), tensors_of(&sandbox.path("both")));
    sandbox.ok("compress tiny.safetensors -o int8 --quantize int8");
    let report = sandbox.json("compress tiny.safetensors -o mixed --quantize int8 --cast bf16");
    assert_eq!(report["stages"].as_array().unwrap()[1], "cast bf16");
    let (int8, mixed) = (tensors_of(&sandbox.path("int8")), tensors_of(&sandbox.path("mixed")));
    assert_eq!(int8["up.weight"], mixed["up.weight"], "a cast changes no codes");
    assert_eq!(mixed["up.bias"].dtype, DType::BF16);
    sandbox.ok("verify mixed --against tiny.safetensors");
}

#[test]
fn tied_and_burn_weights_are_cast_too() {
    let sandbox = Sandbox::new();
    let table = Tensor::random("embed.weight", &[40, 64], 5);
    let head = Tensor { name: "lm_head.weight".into(), ..table.clone() };
    let net = [table, head, Tensor::random("fc.weight", &[24, 7], 6)];
    sandbox.write("net.safetensors", safetensors_of(&net));
    let before = tensors_of(&sandbox.path("net.safetensors"));
    sandbox.ok("compress net.safetensors -o tied --cast f16");
    sandbox.ok("verify tied --against net.safetensors");
    sandbox.write("fc.safetensors", safetensors_of(&net[2..]));
    assert_cast(&before, &tensors_of(&sandbox.path("tied")), DType::F16);
    for (out, format) in [("sparse", "briquette"), ("dense", "dense")] {
        sandbox.ok(&format!("compress fc.safetensors -o {out} --format {format} --layout burn --prune 0.9 --cast f16"));
        sandbox.ok(&format!("verify {out} --against fc.safetensors"));
    }
    assert_eq!(tensors_of(&sandbox.path("sparse")), tensors_of(&sandbox.path("dense")));
}

#[test]
fn casts_to_infinity_are_refused_unless_allowed() {
    let sandbox = Sandbox::new();
    let large = Tensor::f32("a.weight", &[2, 3], [1.0, 2.0, 3.0, 4.0, -70_000.0, 5.0]);
    sandbox.write("large.safetensors", safetensors_of(&[large, Tensor::random("b.weight", &[2, 3], 1)]));
    let before = sandbox.files("");
    sandbox
        .run("compress large.safetensors -o out --cast f16")
        .assert_fails(6, &["a.weight", "-70000", "row 1, column 1", "F16", "bf16", "--allow-nonfinite"]);
    assert_eq!(sandbox.files(""), before);
    sandbox.ok("compress large.safetensors -o wide --cast bf16");
    sandbox.ok("compress large.safetensors -o out --cast f16 --allow-nonfinite");
    sandbox.ok("verify out --against large.safetensors");
    let found = tensors_of(&sandbox.path("out"));
    assert_eq!((found["a.weight"].dtype, found["b.weight"].dtype), (DType::F32, DType::F16));
    assert_eq!(found["a.weight"], tensors_of(&sandbox.path("large.safetensors"))["a.weight"]);
}

#[test]
fn errors_of_a_cast_stage_name_the_unknown_key_or_value() {
    let sandbox = with_tiny();
    let recipe = |stages: &str| format!("[model]\npath = \"tiny.safetensors\"\n[output]\npath = \"out\"\n{stages}");
    let cast = "[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n";
    let cases: [(String, &[&str]); 5] = [
        ("[[stage]]\nkind = \"cast\"\n".into(), &["stage 1 (cast)", "dtype", "missing"]),
        (cast.replace("f16", "fp16"), &["dtype", "\"fp16\"", "did you mean \"f16\""]),
        (format!("{cast}sparsity = 0.5\n"), &["sparsity", "a cast stage has no such key"]),
        (format!("{cast}[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n"), &["put the quantize stage first"]),
        (format!("{cast}{cast}"), &["stage 2 (cast)", "earlier cast stage"]),
    ];
    for (stages, phrases) in cases {
        sandbox.write("r.toml", recipe(&stages));
        sandbox.run("run r.toml").assert_fails(2, phrases);
    }
}

#[test]
fn the_shipped_recipe_runs() {
    let sandbox = Sandbox::with("digits");
    let recipe = std::fs::read_to_string(repository().join("configs/digits-half.toml")).unwrap();
    sandbox.write("configs/half.toml", recipe.replace("../fixtures/digits", "../digits"));
    let report = sandbox.json("run configs/half.toml");
    assert!(report["after"]["file_bytes"].as_u64().unwrap() * 4 < report["before"]["file_bytes"].as_u64().unwrap());
    sandbox.ok("verify out/digits-half --against digits");
}

//! `diff` reports NaN, integers that differ, and tensors that cannot be compared.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of};
use briquette::core::DType;

fn integers(name: &str, dtype: DType, values: &[i64]) -> Tensor {
    let width = dtype.n_bits() / 8;
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect();
    Tensor { name: name.into(), dtype, shape: vec![values.len()], bytes }
}

#[test]
fn tensors_with_nan_come_first() {
    let sandbox = Sandbox::new();
    let floats = |values: [f32; 4]| Tensor::f32("broken", &[2, 2], values);
    let other = |value: f32| Tensor::f32("other", &[1], [value]);
    let inf = f32::INFINITY;
    sandbox.write("a.safetensors", safetensors_of(&[floats([1.0, 2.0, inf, 4.0]), other(1.0)]));
    sandbox.write("b.safetensors", safetensors_of(&[floats([1.0, f32::NAN, inf, 4.0]), other(100.0)]));
    for line in ["diff a.safetensors b.safetensors", "diff b.safetensors a.safetensors"] {
        let table = sandbox.ok(line).stdout;
        let first = table.lines().nth(1).unwrap();
        assert!(first.starts_with("broken") && first.contains("NaN"), "{table}");
        let json = sandbox.json(line);
        assert!(json["tensors"][0]["name"] == "broken" && json["tensors"][0]["error"]["max"].is_null(), "{json}");
    }
    let same = sandbox.json("diff b.safetensors b.safetensors");
    assert!(same["tensors"].as_array().unwrap().iter().all(|tensor| tensor["is_equal"] == true), "{same}");
    assert_eq!(same["tensors"][0]["error"]["max"], 0.0);
}

#[test]
fn integer_tensors_are_compared_by_their_bytes() {
    let sandbox = Sandbox::new();
    let weight = Tensor::f32("weight", &[1], [1.0]);
    let model = |ids: &[i64], other: Tensor| [integers("ids", DType::I64, ids), other, weight.clone()];
    sandbox.write("a.safetensors", safetensors_of(&model(&[1, 2, 3], integers("mixed", DType::I32, &[1]))));
    sandbox.write("b.safetensors", safetensors_of(&model(&[1, 2, 4], Tensor::f32("mixed", &[1], [1.0]))));
    let json = sandbox.json("diff a.safetensors b.safetensors");
    assert_eq!(json["tensors"][0]["name"], "ids");
    assert!(json["tensors"][0]["is_equal"] == false && json["tensors"][0]["error"].is_null(), "{json}");
    assert_eq!(json["other_type"], serde_json::json!(["mixed"]));
    let table = sandbox.ok("diff a.safetensors b.safetensors").stdout;
    for phrase in ["2 tensors compared, 1 equal", "different, but not weights: ids", "different types: mixed"] {
        assert!(table.contains(phrase), "{table}");
    }
    let same = sandbox.ok("diff a.safetensors a.safetensors").stdout;
    assert!(same.contains("3 tensors compared, 3 equal"), "{same}");
}

//! Group sizes that do not divide the columns of a tensor: stems and depthwise convolutions.

use crate::sandbox::{Sandbox, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use serde_json::Value;

/// A stem, a depthwise and a pointwise convolution, and a classifier: 27, 9, 64 and 48 columns.
fn mobile() -> Sandbox {
    let sandbox = Sandbox::new();
    let tensors = [
        Tensor::random("stem.conv.weight", &[16, 3, 3, 3], 1),
        Tensor::random("block.depthwise.weight", &[64, 1, 3, 3], 2),
        Tensor::random("block.pointwise.weight", &[48, 64, 1, 1], 3),
        Tensor::random("classifier.weight", &[10, 48], 4),
    ];
    sandbox.write("m/model.safetensors", safetensors_of(&tensors));
    sandbox
}

const BY_ROW: [&str; 3] = ["stem.conv.weight", "block.depthwise.weight", "classifier.weight"];

/// Returns the name of each tensor of a report or plan with the value of a key.
fn values(found: &Value, key: &str) -> Vec<(String, String)> {
    let tensors = found["tensors"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_string();
    tensors.map(|tensor| (text(&tensor["name"]), text(&tensor[key]))).collect()
}

#[test]
fn a_tensor_with_columns_that_the_group_size_does_not_divide_gets_a_scale_per_row() {
    let sandbox = mobile();
    for (groups, rows) in [("int4-g32", "int4"), ("int3-g32-asym", "int3-asym")] {
        let plan = sandbox.json(&format!("plan m --quantize {groups}"));
        for (name, words) in values(&plan, "quantize") {
            assert_eq!(words.ends_with("per channel"), BY_ROW.contains(&name.as_str()), "{name}: {words}");
        }
        let report = sandbox.json(&format!("compress m -o out --force --quantize {groups}"));
        for remarks in [&plan["remarks"], &report["remarks"]] {
            let is_said =
                |remark: &&Value| remark.as_str().unwrap().starts_with("One scale per row, as the group size");
            let remark = remarks.as_array().unwrap().iter().find(is_said).unwrap().as_str().unwrap();
            assert!(BY_ROW.iter().all(|name| remark.contains(name)) && !remark.contains("pointwise"), "{remark}");
        }
        sandbox.ok("verify out --against m");
        sandbox.ok(&format!("compress m -o rows --force --quantize {rows}"));
        sandbox.ok(&format!("compress m -o dense --force --quantize {groups} --format dense"));
        let [out, rows, dense] = ["out", "rows", "dense"].map(|path| tensors_of(&sandbox.path(path)));
        assert!(BY_ROW.iter().all(|name| out[*name] == rows[*name]), "{groups}: another grid or bit width than rows");
        assert_ne!(out["block.pointwise.weight"], rows["block.pointwise.weight"]);
        assert_eq!(out, dense);
    }
    let text = sandbox.ok("plan m --quantize int4-g32").stdout;
    assert!(text.contains("One scale per row"), "{text}");
}

#[test]
fn choices_of_a_budget_may_have_group_sizes_that_do_not_divide() {
    let sandbox = mobile();
    let report = sandbox.json("compress m -o out --quiet --bits 6 --choices int4-g32,int8");
    assert_eq!(report["allocation"]["tensors"].as_array().unwrap().len(), 4, "{report}");
    sandbox.ok("verify out --against m");
    sandbox.ok("compress m -o small --quiet --bits 5 --choices int4-g32");
    sandbox.ok("verify small --against m");
}

#[test]
fn compressed_tensors_ignores_layers_that_the_group_size_does_not_divide() {
    let sandbox = Sandbox::new();
    let layer = "bert.encoder.layer.0";
    let tensors = [
        Tensor::random(&format!("{layer}.attention.self.query.weight"), &[64, 64], 1),
        Tensor::random(&format!("{layer}.output.dense.weight"), &[64, 48], 2),
    ];
    sandbox.write("m/model.safetensors", safetensors_of(&tensors));
    sandbox.write("m/config.json", "{\"model_type\": \"bert\"}");
    let ignored = format!("{layer}.output.dense");
    for flags in ["--quantize int4-g32", "--bytes 16kB --choices int4-g32"] {
        let report = sandbox.json(&format!("compress m -o out --force --quiet --format compressed-tensors {flags}"));
        let remarks = report["remarks"].to_string();
        assert!(remarks.contains("Not quantized, as the group size does not divide the columns"), "{flags}: {remarks}");
        let config: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/config.json")).unwrap()).unwrap();
        let ignore = config["quantization_config"]["ignore"].as_array().unwrap();
        assert!(ignore.iter().any(|name| *name == ignored.as_str()), "{flags}: {ignore:?}");
        sandbox.ok("verify out --against m");
        let found = tensors_of(&sandbox.path("out"));
        assert_eq!(found[&tensors[1].name], tensors[1], "{flags}: floats changed");
        assert_ne!(found[&tensors[0].name], tensors[0]);
    }
}

#[test]
fn the_shipped_recipe_with_groups_runs() {
    let sandbox = Sandbox::with("digits");
    let recipe = std::fs::read_to_string(repository().join("configs/digits-groups.toml")).unwrap();
    sandbox.write("configs/groups.toml", recipe.replace("../fixtures/digits", "../digits"));
    let report = sandbox.json("run configs/groups.toml");
    let remarks = report["remarks"].to_string();
    assert!(
        ["conv1", "conv2", "fc2"].iter().all(|name| remarks.contains(name)) && !remarks.contains("fc1"),
        "{remarks}"
    );
    sandbox.ok("verify out/digits-groups --against digits");
}

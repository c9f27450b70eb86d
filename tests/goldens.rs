//! Masks and codes equal torch's exactly for the same weights.

use crate::sandbox::{Sandbox, repository};
use crate::weights::{Tensor, stored_tensors_of, tensors_of};
use std::collections::BTreeMap;

fn golden(name: &str) -> BTreeMap<String, Tensor> {
    tensors_of(&repository().join("fixtures/golden").join(name))
}

fn assert_masked_as(options: &str, masks: &str) {
    let sandbox = Sandbox::with("digits");
    let masks = golden(masks);
    assert_eq!(masks.len(), 4);
    sandbox.ok(&format!("compress digits -o out {options}"));
    let (before, after) = (tensors_of(&sandbox.path("digits")), tensors_of(&sandbox.path("out")));
    for (name, weights) in &before {
        let expected: Vec<f32> = match masks.get(name) {
            Some(mask) => weights.floats().iter().zip(&mask.bytes).map(|(w, kept)| w * f32::from(*kept)).collect(),
            None => {
                assert_eq!(&after[name], weights);
                continue;
            }
        };
        let differing =
            after[name].floats().iter().zip(&expected).filter(|(found, expected)| found != expected).count();
        assert_eq!(differing, 0, "{name}: weights with another mask in torch");
    }
}

#[test]
fn layer_masks_equal_l1_unstructured() {
    assert_masked_as("--prune 0.4", "l1_unstructured_0.4.safetensors");
    assert_masked_as("--prune 0.73 --scope layer", "l1_unstructured_0.73.safetensors");
}

#[test]
fn global_masks_equal_global_unstructured() {
    assert_masked_as("--prune 0.6 --scope global", "global_unstructured_0.6.safetensors");
}

/// Checks codes, scales and zero points as stored in the file.
fn assert_coded_as(sandbox: &Sandbox, golden_name: &str) {
    let found = stored_tensors_of(&sandbox.path("out/model.briquette.safetensors"));
    for (name, expected) in golden(golden_name) {
        assert_eq!((found[&name].dtype, &found[&name].bytes), (expected.dtype, &expected.bytes), "{name}");
    }
}

#[test]
fn channel_codes_equal_quantize_per_channel() {
    let sandbox = Sandbox::with("digits");
    sandbox.ok("compress digits -o out --quantize int8");
    assert_coded_as(&sandbox, "int8_per_channel.safetensors");
}

#[test]
fn asymmetric_tensor_codes_equal_quantize_per_tensor() {
    let sandbox = Sandbox::with("digits");
    let stage = "[[stage]]\nkind = \"quantize\"\nbits = 8\ngroup = \"tensor\"\nsymmetric = false\n";
    sandbox.write("asym.toml", format!("[model]\npath = \"digits\"\n[output]\npath = \"out\"\n{stage}"));
    sandbox.ok("run asym.toml");
    assert_coded_as(&sandbox, "int8_per_tensor_asym.safetensors");
}

#[test]
fn every_type_is_copied_unchanged() {
    let sandbox = Sandbox::with("golden/dtypes.safetensors");
    let before = tensors_of(&sandbox.path("dtypes.safetensors"));
    for format in ["briquette", "dense", "compressed-tensors"] {
        sandbox.ok(&format!("export dtypes.safetensors --to {format} -o {format}"));
        assert_eq!(tensors_of(&sandbox.path(format)), before, "{format}");
        sandbox.ok(&format!("verify {format} --against dtypes.safetensors"));
    }
    sandbox
        .run("export dtypes.safetensors --to burnpack -o bpk")
        .assert_fails(2, &["f8_e4m3fn", "burnpack has no type"]);
    sandbox.ok("compress dtypes.safetensors -o pruned --prune 0.5 --include rank4");
    let after = tensors_of(&sandbox.path("pruned"));
    for (name, tensor) in before.iter().filter(|(name, _)| *name != "rank4") {
        assert_eq!(&after[name], tensor);
    }
}

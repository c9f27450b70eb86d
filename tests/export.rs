//! Conversion of compressed models keeps codes and scales.

use crate::sandbox::Sandbox;
use crate::weights::tensors_of;

/// Flags of `compress`; the last makes no codes.
pub(crate) const SCHEMES: [&str; 6] = [
    "--quantize int8",
    "--prune 0.6 --quantize int8-dynamic",
    "--quantize int4-g16 --exclude conv1.weight",
    "--quantize int5-asym --range mse",
    "--prune 0.8 --quantize int3",
    "--prune 0.7",
];

/// Returns the hashes of an output's values.
fn hashes(sandbox: &Sandbox, output: &str) -> Vec<String> {
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(sandbox.path(output).join("briquette.json")).unwrap()).unwrap();
    manifest["tensors"].as_object().unwrap().values().map(|tensor| tensor["hash"].to_string()).collect()
}

fn weight_bytes(sandbox: &Sandbox, output: &str) -> usize {
    let files = sandbox.files(output).into_iter();
    files.filter(|(name, _)| name.ends_with(".safetensors")).map(|(_, bytes)| bytes.len()).sum()
}

#[test]
fn export_keeps_codes_unchanged() {
    let sandbox = Sandbox::with("digits");
    for (i, scheme) in SCHEMES.iter().enumerate() {
        let (first, second) = (format!("a{i}"), format!("b{i}"));
        sandbox.ok(&format!("compress digits -o {first} {scheme}"));
        sandbox.ok(&format!("export {first} --to briquette -o {second}"));
        assert_eq!(hashes(&sandbox, &first), hashes(&sandbox, &second), "{scheme}");
        let (before, after) = (weight_bytes(&sandbox, &first), weight_bytes(&sandbox, &second));
        // A kept weight that was rounded to zero is now stored as a pruned one.
        assert!(after <= before, "{scheme}: {before} became {after}");
        sandbox.ok(&format!("verify {second} --against {first}"));
    }
}

#[test]
fn codes_of_linear_layers_are_kept_in_compressed_tensors() {
    let sandbox = Sandbox::with("digits");
    for (i, scheme) in SCHEMES[..3].iter().enumerate() {
        let (first, second) = (format!("a{i}"), format!("b{i}"));
        sandbox.ok(&format!("compress digits -o {first} {scheme}"));
        let report = sandbox.json(&format!("export {first} --to compressed-tensors --allow-untested -o {second}"));
        assert_eq!(tensors_of(&sandbox.path(&first)), tensors_of(&sandbox.path(&second)), "{scheme}");
        let of = |name: &str| {
            let tensors = report["tensors"].as_array().unwrap();
            tensors.iter().find(|tensor| tensor["name"] == name).unwrap().clone()
        };
        assert!(of("fc1.weight")["encoding"].as_str().unwrap().starts_with("int"), "{scheme}");
        assert!(of("conv2.weight")["why"].as_str().unwrap().starts_with("decoded"), "{scheme}");
        sandbox.ok(&format!("verify {second} --against {first}"));
    }
}

#[test]
fn a_compressed_tensors_model_keeps_its_codes() {
    for golden in ["ct-int8", "ct-int8-tensor", "ct-int4-g32", "ct-int4-g32-asym"] {
        let sandbox = Sandbox::with(&format!("golden/{golden}"));
        let report = sandbox.json(&format!("export {golden} --to briquette -o out"));
        assert_eq!(tensors_of(&sandbox.path(golden)), tensors_of(&sandbox.path("out")), "{golden}");
        let tensors = report["tensors"].as_array().unwrap();
        let n_coded = tensors.iter().filter(|tensor| tensor["encoding"].as_str().unwrap().starts_with("int"));
        assert!(n_coded.count() >= 2, "{golden}");
        sandbox.ok(&format!("verify out --against {golden}"));
    }
}

#[test]
fn a_sparse_tensor_that_no_stage_chooses_stays_sparse() {
    let sandbox = Sandbox::with("digits");
    sandbox.ok("compress digits -o pruned --prune 0.7");
    let report = sandbox.json("compress pruned -o both --quantize int8 --include fc2.weight");
    let tensors = report["tensors"].as_array().unwrap();
    let fc1 = tensors.iter().find(|tensor| tensor["name"] == "fc1.weight").unwrap();
    assert_eq!(fc1["encoding"], "f32, bitmask");
    sandbox.ok("verify both --against pruned");
}

#[test]
fn codes_without_their_manifest_are_refused_as_a_file_and_as_a_directory() {
    let file = "model.briquette.safetensors";
    for options in ["--quantize int8", "--quantize int4-g16 --storage entropy --exclude conv1.weight", "--prune 0.7"] {
        let sandbox = Sandbox::with("digits");
        sandbox.ok(&format!("compress digits -o out {options}"));
        let refused = |model: &str, what: &str| {
            for line in [
                "export MODEL --to dense -o x",
                "compress MODEL -o x --prune 0.5",
                "inspect MODEL",
                "diff digits MODEL",
            ] {
                let line = line.replace("MODEL", model);
                sandbox.run(&line).assert_fails(4, &[file, "briquette.json", what]);
            }
            assert!(!sandbox.path("x").exists());
        };
        refused(&format!("out/{file}"), "use its directory instead: out");
        std::fs::remove_file(sandbox.path("out/briquette.json")).unwrap();
        refused("out", "restore that file");
        refused(&format!("out/{file}"), "restore that file");
        // The same for several shards, none of which is a model by itself.
        std::fs::copy(sandbox.path(&format!("out/{file}")), sandbox.path("out/model-2.briquette.safetensors")).unwrap();
        sandbox.run("export out --to dense -o x").assert_fails(4, &["briquette.json", "restore that file"]);
    }
}

#[test]
fn exports_of_compressed_models_are_not_called_damaged() {
    let sandbox = Sandbox::with("digits");
    sandbox.ok("compress digits -o coded --quantize int8");
    sandbox.ok("export coded --to briquette --storage entropy -o entropy");
    let exported = &["exported from a compressed model", "briquette diff"];
    sandbox.run("verify entropy --against digits").assert_fails(2, exported);
    sandbox.ok("diff entropy coded");
    sandbox.ok("export coded --to dense -o dense");
    sandbox.run("verify dense --against digits").assert_fails(4, exported);
}

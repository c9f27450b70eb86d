//! Tests that compressed-tensors outputs read back without `briquette.json`, with the same values.

use briquette_core::{Error, ErrorKind};
use briquette_formats::{Checkpoint, InputFormat, OutputFormat, TensorSource, limits};
use briquette_pipeline::{Recipe, RunOptions, run, verify};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn options() -> RunOptions {
    RunOptions { threads: 1, ..RunOptions::default() }
}

/// Compresses a model with these stages into `directory/out`.
fn compress(model: &Path, stages: &str, format: &str, directory: &Path) -> Result<PathBuf, Error> {
    compress_sharded(model, stages, format, directory, limits::MAX_SHARD_BYTES)
}

/// Like [`compress`], with shards of at most `max_shard_bytes`.
fn compress_sharded(
    model: &Path,
    stages: &str,
    format: &str,
    directory: &Path,
    max_shard_bytes: u64,
) -> Result<PathBuf, Error> {
    let recipe = directory.join("recipe.toml");
    let output = format!("[output]\npath = \"out\"\nformat = {format:?}\nallow_untested = true\n");
    let text = format!("[model]\npath = {model:?}\n{output}{stages}");
    std::fs::write(&recipe, text).unwrap();
    run(&Recipe { max_shard_bytes, ..Recipe::from_file(&recipe)? }, &options())?;
    Ok(directory.join("out"))
}

fn tensors(path: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut found = BTreeMap::new();
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(index, 0, &mut bytes).unwrap();
        found.insert(info.name.to_string(), (format!("{} {}", info.dtype, info.shape), bytes));
    }
    found
}

fn quantization(out: &Path) -> Value {
    let config: Value = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
    config["quantization_config"].clone()
}

/// Returns the pattern that matches the heads of an unknown model family.
fn heads() -> &'static str {
    r"re:(.*\.)?(lm_head|proj_out|embed_out|output_projection|generator_lm_head|vocab_projector|lm_loss|predictions\.decoder|pred_layer\.proj|lm_head\.decoder)$"
}

#[test]
fn every_scheme_reads_back_without_manifest() {
    let cases = [
        ("scheme = \"int8-dynamic\"", "int-quantized", json!(false)),
        ("scheme = \"int8-dynamic-sym\"", "int-quantized", json!(true)),
        ("scheme = \"int8\"", "pack-quantized", Value::Null),
        ("scheme = \"int4-g16\"", "pack-quantized", Value::Null),
        ("scheme = \"int4-g16-dynamic\"", "int-quantized", json!(false)),
        ("scheme = \"int4-g16-dynamic-sym\"", "int-quantized", json!(true)),
        ("scheme = \"int4-dynamic\"", "int-quantized", json!(false)),
    ];
    for (scheme, format, symmetric) in cases {
        let dir = tempfile::tempdir().unwrap();
        let stages = format!("[[stage]]\nkind = \"quantize\"\nroles = [\"linear\"]\n{scheme}\n");
        let out = compress(&fixture("digits"), &stages, "compressed-tensors", dir.path()).unwrap();
        verify::verify(&out, Some(&fixture("digits")), &options()).unwrap();
        assert_eq!(Checkpoint::open(&out).unwrap().format(), InputFormat::Briquette(OutputFormat::CompressedTensors));
        let config = quantization(&out);
        assert_eq!((&config["format"], &config["ignore"]), (&json!(format), &json!([heads()])), "{scheme}");
        let group = &config["config_groups"]["group_0"];
        assert_eq!((&group["targets"], &group["input_activations"]["symmetric"]), (&json!(["Linear"]), &symmetric));
        let ours = tensors(&out);
        std::fs::remove_file(out.join("briquette.json")).unwrap();
        assert_eq!(Checkpoint::open(&out).unwrap().format(), InputFormat::CompressedTensors, "{scheme}");
        assert_eq!(tensors(&out), ours, "{scheme}");
    }
}

#[test]
fn schemes_of_one_layout_are_told_apart_by_the_names_of_modules() {
    let dir = tempfile::tempdir().unwrap();
    let stages = "[[stage]]\nkind = \"quantize\"\nroles = [\"linear\"]\nscheme = \"int8-dynamic\"\n\
                  overrides = [{ include = [\"fc2.weight\"], scheme = \"int4-dynamic\" }]\n";
    let out = compress(&fixture("digits"), stages, "compressed-tensors", dir.path()).unwrap();
    let ours = tensors(&out);
    assert_eq!(quantization(&out)["config_groups"].as_object().unwrap().len(), 2);
    std::fs::remove_file(out.join("briquette.json")).unwrap();
    assert_eq!(tensors(&out), ours);
}

#[test]
fn skipped_layers_are_ignored_and_a_dense_export_has_no_quantization_config() {
    let dir = tempfile::tempdir().unwrap();
    let stages =
        "[[stage]]\nkind = \"quantize\"\nroles = [\"linear\"]\nscheme = \"int8\"\nexclude = [\"fc2.weight\"]\n";
    let out = compress(&fixture("digits"), stages, "compressed-tensors", dir.path()).unwrap();
    assert_eq!(quantization(&out)["ignore"], json!(["fc2", heads()]));
    let again = tempfile::tempdir().unwrap();
    let dense = compress(&out, "", "dense", again.path()).unwrap();
    let config = |directory: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(directory.join("config.json")).unwrap()).unwrap()
    };
    assert_eq!(config(&dense), config(&fixture("digits")));
    assert_eq!(tensors(&dense), tensors(&out));
}

#[test]
fn quantized_models_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("gptq");
    std::fs::create_dir(&model).unwrap();
    std::fs::copy(fixture("digits/model.safetensors"), model.join("model.safetensors")).unwrap();
    std::fs::write(model.join("config.json"), r#"{"quantization_config":{"quant_method":"gptq"}}"#).unwrap();
    let stages = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n";
    for model in [model, fixture("golden/ct-int8")] {
        let error = compress(&model, stages, "briquette", dir.path()).unwrap_err();
        assert!(error.kind == ErrorKind::Refused && error.to_string().contains("already quantized"), "{error}");
    }
}

#[test]
fn shards_have_the_same_tensors_as_one_file_with_and_without_manifest() {
    for (format, scheme) in [
        ("compressed-tensors", "int4-g16"),
        ("compressed-tensors", "int8-dynamic"),
        ("compressed-tensors", "int4-g16-dynamic"),
        ("briquette", "int8"),
    ] {
        let (one, many) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stages = format!("[[stage]]\nkind = \"quantize\"\nroles = [\"linear\"]\nscheme = {scheme:?}\n");
        let whole = compress(&fixture("digits"), &stages, format, one.path()).map(|out| tensors(&out)).unwrap();
        let out = compress_sharded(&fixture("digits"), &stages, format, many.path(), 10_000).unwrap();
        verify::verify(&out, Some(&fixture("digits")), &options()).unwrap();
        assert_eq!(tensors(&out), whole, "{format} {scheme}");
        assert!(Checkpoint::open(&out).unwrap().files().len() > 2, "{format} {scheme}");
        if format == "compressed-tensors" {
            std::fs::remove_file(out.join("briquette.json")).unwrap();
            let found = Checkpoint::open(&out).unwrap();
            assert_eq!((found.format(), found.files().len() > 2), (InputFormat::CompressedTensors, true));
            assert_eq!(tensors(&out), whole, "{scheme}");
        }
    }
}

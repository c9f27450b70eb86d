//! Checkpoints of the compressed-tensors library decode to the same bits as in the library.

#![allow(clippy::unwrap_used)]

mod common;

use briquette_core::ErrorKind;
use briquette_formats::{Checkpoint, Compressed, InputFormat, TensorSource};
use common::{fixture, tensors};
use std::path::PathBuf;

/// Returns a directory written by the library.
fn golden(name: &str) -> PathBuf {
    fixture(&format!("golden/{name}"))
}

/// Copies a golden directory and changes its configuration.
fn changed(name: &str, from: &str, to: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(golden(name).join("config.json")).unwrap();
    assert!(config.contains(from), "{from}");
    std::fs::write(dir.path().join("config.json"), config.replacen(from, to, 1)).unwrap();
    std::fs::copy(golden(name).join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    dir
}

#[test]
fn each_golden_directory_decodes_bit_for_bit() {
    for name in ["ct-int8", "ct-int8-tensor", "ct-int8-packed", "ct-int4-g32", "ct-int4-g32-asym"] {
        let checkpoint = Checkpoint::open(&golden(name)).unwrap();
        assert_eq!(
            (checkpoint.format(), checkpoint.compressed()),
            (InputFormat::CompressedTensors, Compressed::Quantized)
        );
        assert_eq!(checkpoint.quantized_by(), None);
        let expected = tensors(&golden(&format!("{name}.expected.safetensors")));
        let found = tensors(&golden(name));
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
        for (tensor, expected) in &expected {
            assert_eq!(found.get(tensor), Some(expected), "{name}: {tensor}");
        }
    }
}

#[test]
fn unsupported_settings_are_refused_by_name() {
    let cases = [
        ("ct-int8", "\"format\": \"int-quantized\"", "\"format\": \"float-quantized\"", "float-quantized"),
        ("ct-int4-g32", "\"num_bits\": 4", "\"num_bits\": 3", "3 bits"),
        ("ct-int4-g32", "\"dynamic\": false", "\"dynamic\": false, \"actorder\": \"group\"", "activation order"),
        ("ct-int4-g32", "\"sparsity_config\": {}", "\"sparsity_config\": {\"format\": \"marlin-24\"}", "marlin-24"),
        ("ct-int4-g32", "\"strategy\": \"group\"", "\"strategy\": \"block\"", "block"),
        ("ct-int4-g32", "\"group_size\": 32", "\"group_size\": 16", "fits 0 of the schemes"),
        ("ct-int4-g32", "\"kv_cache_scheme\": null", "\"kv_cache_scheme\": {\"num_bits\": 8}", "kv_cache_scheme"),
        ("ct-int8", "\"dynamic\": true", "\"dynamic\": false", "static"),
        ("ct-int8", "\"quantization_status\": \"compressed\"", "\"quantization_status\": \"frozen\"", "frozen"),
        ("ct-int8", "\"architectures\"", "architectures", "not valid"),
    ];
    for (name, from, to, phrase) in cases {
        let error = Checkpoint::open(changed(name, from, to).path()).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{phrase}: {error}");
    }
}

#[test]
fn other_methods_are_named_and_not_decoded() {
    let gptq = changed("ct-int8", "\"compressed-tensors\"", "\"gptq\"");
    assert_eq!(Checkpoint::open(gptq.path()).unwrap().quantized_by().as_deref(), Some("gptq"));
    let file = golden("ct-int8").join("model.safetensors");
    assert_eq!(Checkpoint::open(&file).unwrap().quantized_by().as_deref(), Some("compressed-tensors"));
    assert_eq!(Checkpoint::open(&golden("../digits")).unwrap().quantized_by(), None);
}

/// Builds a safetensors file from tensors: name, type, shape, bytes.
fn safetensors(tensors: &[(&str, &str, &str, Vec<u8>)]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let (start, end) = (data.len(), data.len() + bytes.len());
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#));
        data.extend_from_slice(bytes);
    }
    let header = format!("{{{}}}", entries.join(","));
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

#[test]
fn the_former_sparse_bitmask_format_is_read() {
    let longs = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let dir = tempfile::tempdir().unwrap();
    let sparsity = r#"{"quantization_config":{"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-bitmask"}}}"#;
    std::fs::write(dir.path().join("config.json"), sparsity).unwrap();
    let file = safetensors(&[
        ("a.weight.shape", "I64", "[2]", longs(&[2, 3])),
        ("a.weight.row_offsets", "I64", "[2]", longs(&[0, 2])),
        ("a.weight.compressed", "F32", "[3]", floats(&[1.0, 2.0, 3.0])),
        ("a.weight.bitmask", "U8", "[2,1]", vec![0b101, 0b010]),
    ]);
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let found = tensors(dir.path());
    assert_eq!(found["a.weight"], ("F32 [2, 3]".to_string(), floats(&[1.0, 0.0, 2.0, 0.0, 3.0, 0.0])));
    assert_eq!((found.len(), Checkpoint::open(dir.path()).unwrap().compressed()), (1, Compressed::Pruned));
}

/// Creates a matrix of int8 codes with one scale per row, of a given type.
fn with_scales(dtype: &str, scales: Vec<u8>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"quantization_config":{"quant_method":"compressed-tensors","format":"int-quantized",
        "config_groups":{"group_0":{"weights":{"num_bits":8,"type":"int","strategy":"channel"}}}}}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let file = safetensors(&[
        ("a.weight", "I8", "[2,3]", vec![1, 0xff, 127, 0x80, 0, 2]),
        ("a.weight_scale", dtype, "[2,1]", scales),
    ]);
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    dir
}

/// Rounds to a 16-bit type.
type ToHalf = fn(f32) -> [u8; 2];

#[test]
fn half_precision_scales_decode_to_half_precision_weights() {
    // Codes times 0.5 and 0.25, which both types represent exactly.
    let expected = [0.5, -0.5, 63.5, -32.0, 0.0, 0.5_f32];
    let halves = |to: ToHalf, values: &[f32]| values.iter().flat_map(|&value| to(value)).collect::<Vec<u8>>();
    let types: [(&str, ToHalf); 2] = [
        ("F16", |value| half::f16::from_f32(value).to_le_bytes()),
        ("BF16", |value| half::bf16::from_f32(value).to_le_bytes()),
    ];
    for (dtype, to) in types {
        let found = tensors(with_scales(dtype, halves(to, &[0.5, 0.25])).path());
        assert_eq!(found["a.weight"], (format!("{dtype} [2, 3]"), halves(to, &expected)), "{dtype}");
        assert_eq!(found.len(), 1);
        for bad in [0.0, -0.5, f32::NAN, f32::INFINITY] {
            let dir = with_scales(dtype, halves(to, &[0.5, bad]));
            let error = Checkpoint::open(dir.path()).unwrap().read(0, 0, &mut [0; 12]).unwrap_err();
            assert!(error.to_string().contains("a scale is not a finite number above 0"), "{dtype} {bad}: {error}");
        }
    }
    let error = Checkpoint::open(with_scales("F64", vec![0; 16]).path()).unwrap_err();
    assert!(error.kind == ErrorKind::Input && error.to_string().contains("scales of F64"), "{error}");
}

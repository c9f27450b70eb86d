//! Checkpoints of the compressed-tensors library decode to the same bits as in the library.

#![allow(clippy::unwrap_used)]

mod common;

use briquette_core::ErrorKind;
use briquette_formats::{ActivationGrids, Checkpoint, Compressed, InputFormat, TensorSource};
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

/// Creates a matrix of codes whose inputs have a fixed grid, with these parts and settings.
fn with_static_inputs(n_bits: u8, inputs: &str, parts: &[(&str, &str, &str, Vec<u8>)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        r#"{{"quantization_config":{{"quant_method":"compressed-tensors","format":"int-quantized","config_groups":{{"group_0":
        {{"weights":{{"num_bits":{n_bits},"type":"int","strategy":"channel"}},"input_activations":{{"num_bits":8,"type":"int",{inputs}}}}}}}}}}}"#
    );
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let scales: Vec<u8> = [0.5_f32, 2.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let mut tensors =
        vec![("a.weight", "I8", "[2,3]", vec![1, 0xff, 7, 0xf8, 0, 2]), ("a.weight_scale", "F32", "[2,1]", scales)];
    tensors.extend(parts.iter().cloned());
    std::fs::write(dir.path().join("model.safetensors"), safetensors(&tensors)).unwrap();
    dir
}

#[test]
fn fixed_grids_of_inputs_are_read_and_never_guessed() {
    let tensor = r#""strategy":"tensor","dynamic":false"#;
    let (with_zeros, symmetric) = (format!("{tensor},\"symmetric\":false"), format!("{tensor},\"symmetric\":true"));
    let scale = |value: f32| ("a.input_scale", "F32", "[1]", value.to_le_bytes().to_vec());
    let half = ("a.input_scale", "F16", "[]", half::f16::from_f32(0.25).to_le_bytes().to_vec());
    let zero = ("a.input_zero_point", "I8", "[1]", vec![0x85]);
    for (inputs, parts, expected) in [
        (&with_zeros, vec![scale(0.25), zero.clone()], (0.25, 5)),
        (&with_zeros, vec![half.clone(), zero.clone()], (0.25, 5)),
        (&symmetric, vec![half], (0.25, 128)),
    ] {
        let dir = with_static_inputs(8, inputs, &parts);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(checkpoint.static_weights().collect::<Vec<_>>(), ["a.weight"]);
        let grid = ActivationGrids::of(&checkpoint).unwrap().layers["a.weight"];
        assert_eq!((grid.scale, grid.zero), expected, "{inputs}");
        assert_eq!(checkpoint.tensors().len(), 1, "the parts are no tensors of the model");
    }
    for (n_bits, inputs, parts, phrase) in [
        (8, &with_zeros, vec![scale(0.25)], "input_zero_point is missing"),
        (8, &symmetric, vec![], "input_scale is missing"),
        (8, &symmetric, vec![scale(0.0)], "found input_scale 0"),
        (8, &symmetric, vec![scale(f32::NAN)], "found input_scale NaN"),
        (8, &symmetric, vec![("a.input_scale", "F32", "[2]", vec![0; 8])], "is not one number"),
        (4, &symmetric, vec![scale(0.25)], "with weights of 4 bits"),
    ] {
        let error = Checkpoint::open(with_static_inputs(n_bits, inputs, &parts).path()).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{phrase}: {error}");
    }
}

//! ONNX models: their tensors, and one clear line for each kind of damage.

#![allow(clippy::unwrap_used)]

mod files;

use briquette_core::{DType, Error};
use briquette_formats::onnx::{
    AttributeValue, Dim, Model, Skeleton, StreamedWeight, TensorData, carried_model, network_of,
};
use briquette_formats::onnx_write::{OnnxAttribute, OnnxType, encode_network};
use briquette_formats::{Checkpoint, InputFile, InputFormat, TensorInfo, TensorSource};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const FIXTURES: [&str; 3] = ["convolutions.onnx", "types.onnx", "external/perceptron.onnx"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/onnx").join(name)
}

/// The bytes of a tensor.
fn bytes_of(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    let index = checkpoint.tensors().iter().position(|info| info.name.as_str() == name).expect(name);
    let mut bytes = vec![0; checkpoint.tensors()[index].n_bytes()];
    checkpoint.read(index, 0, &mut bytes).unwrap();
    bytes
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// The weights of a model, whose elements come from elsewhere.
fn weights(checkpoint: &Checkpoint) -> BTreeMap<String, StreamedWeight> {
    let weight = |(index, info): (usize, &TensorInfo)| {
        OnnxType::try_from(info.dtype).ok()?;
        Some((info.name.to_string(), (index, (*info.shape).clone())))
    };
    checkpoint.tensors().iter().enumerate().filter_map(weight).collect()
}

/// A file with these bytes, in a directory of its own.
fn model_of(bytes: &[u8]) -> Model {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("network.onnx");
    std::fs::write(&path, bytes).unwrap();
    Model::read(&InputFile::open(&path).unwrap()).unwrap()
}

/// Opens a model, reads all of its tensors, and copies its network.
fn open_all(path: &Path) -> Result<Checkpoint, Error> {
    let checkpoint = Checkpoint::open(path)?;
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        checkpoint.read(index, 0, &mut vec![0; info.n_bytes()])?;
    }
    let file = InputFile::open(path)?;
    network_of(&file)?;
    carried_model(&file, &weights(&checkpoint))?;
    Ok(checkpoint)
}

#[test]
fn initializers_are_tensors_in_any_type_that_has_a_fixed_size() {
    let checkpoint = open_all(&fixture("types.onnx")).unwrap();
    assert_eq!(checkpoint.format(), InputFormat::Onnx);
    let names: Vec<(&str, DType)> = checkpoint.tensors().iter().map(|info| (info.name.as_str(), info.dtype)).collect();
    let expected = [
        ("empty", DType::F32),
        ("f16.raw", DType::F16),
        ("bf16.raw", DType::BF16),
        ("f64.raw", DType::F64),
        ("f64.typed", DType::F64),
        ("scalar", DType::F32),
    ];
    assert_eq!(names, expected);
    assert_eq!(floats(&bytes_of(&checkpoint, "scalar")), [2.5]);
    assert_eq!(bytes_of(&checkpoint, "f64.typed"), [1.0_f64, 2.0, 3.0].map(f64::to_le_bytes).concat());
    let left: Vec<&str> = checkpoint.left_out().iter().map(|left| left.key.as_str()).collect();
    assert_eq!(left, ["f16.typed"], "weights stored as integers of variable length are reported");
}

#[test]
fn external_data_is_read_from_the_file_beside_the_model() {
    let checkpoint = open_all(&fixture("external/perceptron.onnx")).unwrap();
    let shapes: Vec<(&str, &[usize])> =
        checkpoint.tensors().iter().map(|info| (info.name.as_str(), info.shape.0.as_slice())).collect();
    assert_eq!(shapes, [("bias", &[6][..]), ("up", &[6, 16]), ("down", &[16, 6])]);
    let file = std::fs::read(fixture("external/weights.bin")).unwrap();
    assert_eq!([bytes_of(&checkpoint, "up"), bytes_of(&checkpoint, "down")].concat(), file[..768]);
    assert_eq!(checkpoint.files().len(), 2);
}

#[test]
fn the_structure_of_a_model_is_read() {
    let model = |name: &str| Model::read(&InputFile::open(&fixture(name)).unwrap()).unwrap();
    let found = model("convolutions.onnx");
    assert_eq!((found.opset(), found.ir_version, found.metadata["origin"].as_str()), (17, 8, "random weights"));
    let operators: Vec<&str> = found.graph.nodes.iter().map(|node| node.op_type.as_str()).collect();
    assert_eq!(operators[..4], ["Conv", "BatchNormalization", "Relu", "Conv"]);
    assert_eq!(found.graph.nodes[0].attribute("pads"), Some(&AttributeValue::Ints(vec![1; 4])));
    assert_eq!(found.graph.nodes[3].attribute("group"), Some(&AttributeValue::Int(8)));
    let extents = [3, 16, 16].map(Dim::Extent);
    assert_eq!(
        found.graph.inputs[0].shape.as_deref(),
        Some(&[&[Dim::Named("batch".into())][..], &extents].concat()[..])
    );

    let found = model("types.onnx");
    assert_eq!((found.functions.len(), found.functions[0].name.as_str(), found.graph.n_sparse), (1, "Twice", 1));
    let file = InputFile::open(&fixture("types.onnx")).unwrap();
    let values = |name: &str| {
        let tensor = found.graph.initializers.iter().find(|tensor| tensor.name == name).unwrap();
        tensor.constant(&file, 8).unwrap().map(|constant| constant.values)
    };
    assert_eq!(values("i64.typed"), Some(vec![1.0, -1.0, 2_f64.powi(40)]));
    assert_eq!(values("i8.typed"), Some(vec![1.0, -1.0, -128.0]));
    assert_eq!(values("u64.typed"), Some(vec![2_f64.powi(63)]));
    assert_eq!(values("f16.typed"), Some(vec![1.0, -2.0, 0.5, 4.0]));
    assert_eq!(values("text"), None);
}

#[test]
fn a_network_has_everything_but_the_elements_of_weights() {
    for name in FIXTURES {
        let file = InputFile::open(&fixture(name)).unwrap();
        let before = Model::read(&file).unwrap();
        let bytes = network_of(&file).unwrap().unwrap();
        let after = model_of(&bytes);
        let operators = |model: &Model| -> Vec<(String, Vec<String>, Vec<String>)> {
            let nodes = model.graph.nodes.iter().cloned();
            nodes.map(|node| (node.op_type, node.inputs, node.outputs)).collect()
        };
        assert_eq!(operators(&before), operators(&after), "{name}");
        assert_eq!((&before.metadata, &before.opsets), (&after.metadata, &after.opsets), "{name}");
        assert_eq!(before.functions.len(), after.functions.len(), "{name}");
        for (old, new) in before.graph.initializers.iter().zip(&after.graph.initializers) {
            assert_eq!((&old.name, &old.shape, old.data_type), (&new.name, &new.shape, new.data_type), "{name}");
            let is_large = old.n_elements().unwrap() > 64;
            assert!(!matches!(new.data, TensorData::External { .. }), "{name}: {}", new.name);
            assert!(!is_large || new.data == TensorData::Absent, "{name}: {}", new.name);
        }
    }
    let path = fixture("convolutions.onnx");
    let network = network_of(&InputFile::open(&path).unwrap()).unwrap().unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let large = checkpoint.tensors().iter().filter(|info| info.n_elements() > 64);
    let (size, n_bytes) =
        (std::fs::metadata(&path).unwrap().len() as usize, large.map(TensorInfo::n_bytes).sum::<usize>());
    assert!(n_bytes > 0 && network.len() + n_bytes <= size, "{} and {n_bytes} of {size}", network.len());
}

#[test]
fn a_tensor_of_an_attribute_is_a_weight_only_in_a_constant() {
    let content =
        |filled: u8| [&[0x08, 10, 0x08, 10, 0x10, 1][..], &field(8, b"w"), &field(9, &[filled; 400])].concat();
    let node = |op: &str, output: &str, filled: u8| {
        let attribute = [field(1, b"value"), field(5, &content(filled)), vec![0xa0, 0x01, 4]].concat();
        field(1, &[field(2, output.as_bytes()), field(4, op.as_bytes()), field(5, &attribute)].concat())
    };
    // All three tensors have one name.
    let graph = [field(5, &content(1)), node("Constant", "c", 2), node("ConstantOfShape", "d", 3)];
    with_model(&model(&graph.concat()), |path| {
        let network = network_of(&InputFile::open(path).unwrap()).unwrap().unwrap();
        let has = |filled: u8| network.windows(400).any(|window| window.iter().all(|byte| *byte == filled));
        assert_eq!([1, 2, 3].map(has), [false, false, true]);
    });
}

#[test]
fn a_carried_model_is_written_as_it_was() {
    for name in FIXTURES {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let file = InputFile::open(&fixture(name)).unwrap();
        let before = Model::read(&file).unwrap();
        let mut carried = carried_model(&file, &weights(&checkpoint)).unwrap();
        let after = model_of(&encode_network(&carried).unwrap());
        assert_eq!(before.graph.nodes.len(), after.graph.nodes.len(), "{name}");
        for (old, new) in before.graph.nodes.iter().zip(&after.graph.nodes) {
            assert_eq!((&old.name, &old.op_type, &old.inputs), (&new.name, &new.op_type, &new.inputs), "{name}");
            assert_eq!(old.attributes.len(), new.attributes.len(), "{name}: {}", old.name);
        }
        assert_eq!(
            (&before.graph.inputs, &before.graph.outputs),
            (&after.graph.inputs, &after.graph.outputs),
            "{name}"
        );
        assert_eq!((before.functions, before.opsets), (after.functions, after.opsets), "{name}");
        // A changed attribute takes the place of the old one.
        let Some(node) = carried.nodes.iter_mut().find(|node| node.op == "Conv") else { continue };
        node.set("group", OnnxAttribute::Int(7));
        let own = node.name.clone();
        let after = model_of(&encode_network(&carried).unwrap());
        let node = after.graph.nodes.iter().find(|node| node.name == own && node.op_type == "Conv").unwrap();
        assert_eq!(node.attribute("group"), Some(&AttributeValue::Int(7)));
        assert_eq!(node.attributes.iter().filter(|attribute| attribute.name == "group").count(), 1);
    }
}

/// The ends of the fields of the outermost message.
fn field_ends(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut ends) = (0, vec![0]);
    let varint = |at: &mut usize| {
        let (mut value, mut shift) = (0_usize, 0);
        loop {
            let byte = bytes[*at];
            *at += 1;
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    };
    while at < bytes.len() {
        let key = varint(&mut at);
        let n = varint(&mut at);
        at += if key & 7 == 2 { n } else { 0 };
        ends.push(at);
    }
    ends
}

/// Writes a model into a directory of its own, beside the external data of the fixtures.
fn with_model(bytes: &[u8], run: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("external/weights.bin"), dir.path().join("weights.bin")).unwrap();
    let path = dir.path().join("m.onnx");
    std::fs::write(&path, bytes).unwrap();
    run(&path);
}

#[test]
fn each_prefix_is_refused_unless_a_later_field_is_what_is_cut() {
    for name in FIXTURES {
        let bytes = std::fs::read(fixture(name)).unwrap();
        let ends = field_ends(&bytes);
        for n in 0..bytes.len() {
            with_model(&bytes[..n], |path| match open_all(path) {
                Ok(_) => assert!(ends.contains(&n), "{name}: {n} bytes"),
                Err(error) => assert!(error.exit_code() == 4, "{name}: {n} bytes: {error}"),
            });
        }
    }
}

#[test]
fn flipped_bytes_never_panic_and_give_input_errors() {
    for name in FIXTURES {
        let good = std::fs::read(fixture(name)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(fixture("external/weights.bin"), dir.path().join("weights.bin")).unwrap();
        let path = dir.path().join("m.onnx");
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= [0x01, 0x80, 0xff][at % 3];
            files::replace(&path, &bytes);
            if let Err(error) = open_all(&path) {
                assert!(error.exit_code() == 4 && !error.message.contains('\n'), "{name}: byte {at}: {error}");
            }
        }
    }
}

/// A field with bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let (mut n, mut found) = (bytes.len(), vec![number << 3 | 2]);
    while n >= 0x80 {
        found.push(n as u8 | 0x80);
        n >>= 7;
    }
    found.push(n as u8);
    found.extend(bytes);
    found
}

/// A model with these fields in its graph.
fn model(graph: &[u8]) -> Vec<u8> {
    [&[0x08, 8][..], &field(7, graph), &field(8, &[0x10, 17])].concat()
}

/// An F32 tensor of a name and an extent with these further fields.
fn tensor(name: &str, extent: u8, fields: &[u8]) -> Vec<u8> {
    field(5, &[&[0x08, extent, 0x10, 1][..], &field(8, name.as_bytes()), fields].concat())
}

fn external(entries: &[(&str, &str)]) -> Vec<u8> {
    let entry =
        |(key, value): &(&str, &str)| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    [entries.iter().flat_map(entry).collect(), vec![0x70, 1]].concat()
}

#[test]
fn hostile_models_are_refused_in_one_line() {
    let raw = |n: usize| field(9, &vec![0; n]);
    let at = |offset: &'static str, length: &'static str| {
        external(&[("location", "weights.bin"), ("offset", offset), ("length", length)])
    };
    let mut nested = Vec::new();
    for _ in 0..40 {
        nested = field(1, &field(5, &field(6, &nested)));
    }
    let dims = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f".repeat(2);
    let huge = field(5, &[dims, vec![0x10, 1], field(8, b"w")].concat());
    let cases: [(Vec<u8>, &str); 17] = [
        ([tensor("w", 1, &raw(4)), tensor("w", 1, &raw(4))].concat(), "is the name of two initializers"),
        (tensor("w", 2, &raw(4)), "found 4 bytes, expected 8"),
        (tensor("", 1, &raw(4)), "has no name"),
        (tensor("w", 1, &[raw(4), field(4, &[0; 4])].concat()), "in two fields"),
        (tensor("w", 4, &external(&[("location", "../x")])), "expected a file in the model's directory"),
        (tensor("w", 4, &external(&[("location", "/etc/passwd")])), "expected a file in the model's directory"),
        (tensor("w", 4, &external(&[("location", "m.onnx")])), "is the model itself"),
        (tensor("w", 4, &external(&[("location", "absent")])), "no such file"),
        (tensor("w", 4, &external(&[])), "has no location"),
        (tensor("w", 4, &at("18446744073709551615", "16")), "cut short"),
        (tensor("w", 4, &at("0", "17")), "found 17 bytes, expected 16"),
        (tensor("w", 4, &at("x", "16")), "expected a number of bytes"),
        ([tensor("v", 4, &at("0", "16")), tensor("w", 4, &at("8", "16"))].concat(), "overlaps tensor \"v\""),
        (nested, "nested more than"),
        (huge, "has no size in bytes"),
        (
            field(5, &[&b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..], &field(8, b"w")].concat()),
            "negative extent",
        ),
        (b"\x0a\x00".repeat(5_000_000), "need more than 40 MiB"),
    ];
    for (graph, phrase) in cases {
        with_model(&model(&graph), |path| {
            let error = open_all(path).map(|_| ()).expect_err(phrase);
            let text = error.to_string();
            assert!(error.exit_code() == 4 && text.contains(phrase) && !text.contains('\n'), "{phrase}: {text}");
            assert!(text.contains("m.onnx") || text.contains("absent"), "{text}");
        });
    }
    let twice = [model(&[]), field(7, &[])].concat();
    with_model(&twice, |path| assert!(open_all(path).unwrap_err().to_string().contains("a second graph")));
    with_model(&model(&[]), |path| assert!(open_all(path).unwrap_err().to_string().contains("found no tensor")));
}

#[test]
fn tied_initializers_with_the_same_external_bytes_are_one_tensor() {
    let place = external(&[("location", "./weights.bin"), ("offset", "16"), ("length", "16")]);
    with_model(&model(&[tensor("v", 4, &place), tensor("w", 4, &place)].concat()), |path| {
        let names: Vec<String> = open_all(path).unwrap().tensors().iter().map(|info| info.name.to_string()).collect();
        assert_eq!(names, ["v"]);
        let skeleton = Skeleton::read(InputFile::open(path).unwrap()).unwrap();
        let files: Vec<&str> = skeleton.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!((files, skeleton.tensors[0].2), (vec!["model.onnx", "weights.bin"], 16));
    });
}

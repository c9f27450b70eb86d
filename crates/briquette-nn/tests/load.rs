//! Tests loading and exporting whole modules.

use crate::fixture::{Digits, accuracy, fixture, values};
use briquette_core::{Coding, ErrorKind, Storage};
use briquette_formats::{Checkpoint, InputFile, Manifest, TensorSource};
use briquette_nn::{Compression, Export, NameMap, Prune, Quantize, load_into, parameters, sparsity};
use burn::module::{Module, Param};
use burn::nn::LinearLayout;
use burn::tensor::Device;

fn digits() -> Digits {
    let device = Device::flex();
    let checkpoint = Checkpoint::open(&fixture("digits")).unwrap();
    load_into(Digits::new(&device), &checkpoint, &NameMap::torch()).unwrap().valid()
}

#[test]
fn safetensors_shards_and_pytorch_give_the_same_module() {
    let model = digits();
    assert!(accuracy(&model, &Device::flex()) > 0.98);
    for name in ["digits-sharded", "digits.pt"] {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let other = load_into(Digits::new(&Device::flex()), &checkpoint, &NameMap::torch()).unwrap();
        assert_eq!(values(other.fc1.weight.val()), values(model.fc1.weight.val()), "{name}");
        assert_eq!(values(other.bn2.running_var.value()), values(model.bn2.running_var.value()), "{name}");
    }
}

#[test]
fn mismatches_are_listed_in_one_line() {
    let checkpoint = Checkpoint::open(&fixture("digits")).unwrap();
    let names = NameMap::torch().rename("^fc1", "dense").rename("^conv1.bias", "conv2.bias");
    let error = load_into(Digits::new(&Device::flex()), &checkpoint, &names).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Input);
    let line = error.to_string();
    for part in [
        "2 missing in the file: dense.weight, dense.bias",
        "not in the module: conv1.bias",
        "of another shape: conv2.bias",
    ] {
        assert!(line.contains(part), "{line}");
    }
    let lenient = names.optional("fc1.*").unwrap().ignore("**").unwrap();
    assert!(
        load_into(Digits::new(&Device::flex()), &checkpoint, &lenient).is_err(),
        "wrong shapes are always an error"
    );
}

/// The network of an ONNX model multiplies codes by scales itself. In other networks, codes alone are no weights.
#[test]
fn integers_fill_floats_only_if_the_names_allow_it() {
    let bytes = std::fs::read(fixture("digits/model.safetensors")).unwrap();
    let n_header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, data) = bytes[8..].split_at(n_header);
    let mut header: serde_json::Value = serde_json::from_slice(header).unwrap();
    header["old"] = header["fc2.bias"].clone();
    let codes: Vec<i8> = (-5..5).collect();
    header["fc2.bias"] =
        serde_json::json!({ "dtype": "I8", "shape": [10], "data_offsets": [data.len(), data.len() + codes.len()] });
    let header = header.to_string().into_bytes();
    let parts = [&(header.len() as u64).to_le_bytes()[..], &header, data, bytemuck::cast_slice(&codes)];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, parts.concat()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let names = NameMap::torch().ignore("old").unwrap();
    let error = load_into(Digits::new(&Device::flex()), &checkpoint, &names).unwrap_err();
    assert!(error.to_string().contains("fc2.bias (found I8 [10], expected [10] of Float)"), "{error}");
    let model = load_into(Digits::new(&Device::flex()), &checkpoint, &names.with_integers()).unwrap();
    let expected: Vec<f32> = codes.iter().map(|code| f32::from(*code)).collect();
    assert_eq!(values(model.fc2.bias.unwrap().val()), expected);
}

#[test]
fn a_plain_module_round_trips_in_both_layouts() {
    let (model, dir) = (digits(), tempfile::tempdir().unwrap());
    for (name, names) in [("torch", NameMap::torch()), ("burn", NameMap::burn())] {
        let out = dir.path().join(name);
        let exported = Export::to(&out).names(names.clone()).write(&model).unwrap();
        assert_eq!(exported.n_tensors, parameters(&model).len());
        let back = load_into(Digits::new(&Device::flex()), &Checkpoint::open(&out).unwrap(), &names).unwrap();
        assert_eq!(values(back.fc1.weight.val()), values(model.fc1.weight.val()), "{name}");
        assert_eq!(values(back.bn1.gamma.val()), values(model.bn1.gamma.val()), "{name}");
        assert_eq!(Export::to(&out).write(&model).unwrap_err().kind, ErrorKind::Refused);
        Export::to(&out).replace().write(&model).unwrap();
    }
}

#[test]
fn an_export_has_the_running_statistics_of_the_last_step() {
    let (device, dir) = (Device::flex().autodiff(), tempfile::tempdir().unwrap());
    let model = Digits::new(&device);
    model.forward(burn::tensor::Tensor::random([4, 1, 8, 8], burn::tensor::Distribution::Default, &device));
    let out = dir.path().join("out");
    Export::to(&out).write(&model).unwrap();
    let back = load_into(Digits::new(&Device::flex()), &Checkpoint::open(&out).unwrap(), &NameMap::torch()).unwrap();
    let found = values(back.bn1.running_var.value());
    assert_eq!(found, values(model.valid().bn1.running_var.value()));
    assert!(found.iter().any(|variance| *variance != 1.0), "a batch updated the statistics");
}

#[test]
fn column_layout_layers_load_and_export() {
    #[derive(Module, Debug)]
    struct Two {
        wide: burn::nn::Linear,
        square: burn::nn::Linear,
    }
    let two = |layout: LinearLayout, device: &Device| {
        let linear = |n_out| burn::nn::LinearConfig::new(8, n_out).with_layout(layout).init(device);
        Two { wide: linear(12), square: linear(8) }
    };
    let (device, dir) = (Device::flex(), tempfile::tempdir().unwrap());
    let plain = two(LinearLayout::Row, &device);
    Export::to(dir.path().join("plain")).write(&plain).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("plain")).unwrap();
    let initialised = two(LinearLayout::Col, &device);
    initialised.wide.weight.val();
    initialised.square.weight.val();
    for module in [two(LinearLayout::Col, &device), initialised] {
        assert_eq!(parameters(&module), parameters(&plain));
        let loaded = load_into(module, &checkpoint, &NameMap::torch()).unwrap();
        for (a, b) in [(&loaded.wide, &plain.wide), (&loaded.square, &plain.square)] {
            assert_eq!(a.weight.val().into_data(), b.weight.val().into_data());
        }
    }
    let rules = Compression::new().quantize(Quantize::new("*.weight", "int8").unwrap());
    let model = rules.attach(two(LinearLayout::Col, &device)).unwrap();
    let decided = briquette_nn::decisions(&model).unwrap();
    assert_eq!(decided["wide.weight"].quant.as_ref().unwrap().affines.len(), 12, "a scale for each output");
    Export::to(dir.path().join("codes")).write(&model).unwrap();
    let back = Checkpoint::open(&dir.path().join("codes")).unwrap();
    let layer = |layout| briquette_nn::layers::LinearConfig::new(8, 12).with_layout(layout).init(&device);
    let rename = NameMap::torch().rename("^", "wide").ignore("square.**").unwrap();
    let x = burn::tensor::Tensor::<2>::ones([3, 8], &device);
    let [row, col] = [LinearLayout::Row, LinearLayout::Col].map(|layout| {
        let layer = briquette_nn::load_compressed(layer(layout), &back, &rename.clone().ignore("wide.bias").unwrap());
        let layer = layer.unwrap();
        assert_eq!(layer.dims(), [8, 12]);
        layer.forward(x.clone()).into_data()
    });
    assert_eq!(row, col);
}

#[derive(Module, Debug)]
struct Tied {
    table: burn::nn::Embedding,
    square: burn::nn::Linear,
    head: burn::nn::Linear,
}

/// Returns a module with a table, a square layer, and a head that is the transposed table.
fn tied() -> Tied {
    let device = Device::flex();
    let mut net = Tied {
        table: burn::nn::EmbeddingConfig::new(20, 8).init(&device),
        square: burn::nn::LinearConfig::new(8, 8).init(&device),
        head: burn::nn::LinearConfig::new(8, 20).with_bias(false).init(&device),
    };
    net.head.weight = Param::from_tensor(net.table.weight.val().transpose());
    net
}

#[test]
fn tied_weights_are_exported_once_and_square_ones_are_transposed_correctly() {
    let (net, dir) = (tied(), tempfile::tempdir().unwrap());
    for scheme in [None, Some("int8"), Some("int4")] {
        let rules = scheme.map(|scheme| Compression::new().quantize(Quantize::new("**.weight", scheme).unwrap()));
        let model = rules.map_or(net.clone(), |rules| rules.attach(net.clone()).unwrap());
        let out = dir.path().join(scheme.unwrap_or("dense"));
        Export::to(&out).write(&model).unwrap();
        let checkpoint = Checkpoint::open(&out).unwrap();
        let manifest = Manifest::read(&InputFile::open(&out.join("briquette.json")).unwrap()).unwrap();
        let entry = &manifest.tensors["head.weight"];
        assert_eq!(entry.tied_to.as_deref(), Some("table.weight"), "{scheme:?}");
        let back = load_into(tied(), &checkpoint, &NameMap::torch()).unwrap();
        assert_eq!(values(back.square.weight.val()), values(model.square.weight.val()), "{scheme:?}");
        assert_eq!(values(back.head.weight.val()), values(model.head.weight.val()), "{scheme:?}");
    }
    let [with, without] = [net.clone(), Tied { head: tied().head.clone(), ..net }].map(|net| {
        let out = dir.path().join("again");
        Export::to(&out).replace().write(&net).unwrap().n_bytes
    });
    assert!(with + 4 * 160 <= without + 64, "{with} bytes tied, {without} apart");
}

#[test]
fn small_files_of_the_original_are_copied() {
    let (from, dir) = (fixture("digits"), tempfile::tempdir().unwrap());
    let out = dir.path().join("out");
    Export::to(&out).like(&from).write(&digits()).unwrap();
    assert_eq!(std::fs::read(out.join("config.json")).unwrap(), std::fs::read(from.join("config.json")).unwrap());
    let sums = std::fs::read_to_string(out.join("SHA256SUMS")).unwrap();
    assert!(sums.lines().any(|line| line.ends_with("config.json")), "{sums}");
    let inside = Export::to(from.join("out")).like(&from).write(&digits()).unwrap_err();
    assert_eq!(inside.kind, ErrorKind::Refused);
}

#[test]
fn a_compressed_module_equals_its_decoded_export() {
    let dir = tempfile::tempdir().unwrap();
    let schemes = ["int8", "int4", "int4-g8-asym", "int3"];
    for (scheme, sparse) in schemes.into_iter().flat_map(|scheme| [(scheme, 0.0), (scheme, 0.3), (scheme, 0.95)]) {
        let mut rules = Compression::new().quantize(Quantize::new("fc?.weight", scheme).unwrap());
        rules = rules.quantize(Quantize::new("conv2.weight", "int8").unwrap());
        if sparse > 0.0 {
            rules = rules.prune(Prune::new("*.weight", sparse).unwrap().globally());
        }
        let model = rules.attach(digits()).unwrap();
        for (layout, names) in [("torch", NameMap::torch()), ("burn", NameMap::burn())] {
            let out = dir.path().join(format!("{scheme}-{sparse}-{layout}"));
            Export::to(&out).names(names.clone()).write(&model).unwrap();
            let checkpoint = Checkpoint::open(&out).unwrap();
            let back = load_into(Digits::new(&Device::flex()), &checkpoint, &names).unwrap();
            let bits = |model: &Digits| {
                let all =
                    [values(model.fc1.weight.val()), values(model.fc2.weight.val()), values(model.conv2.weight.val())];
                all.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            assert_eq!(bits(&back), bits(&model), "{scheme} {sparse} {layout}");
            let index = checkpoint.tensors().iter().position(|tensor| tensor.name == "fc1.weight").unwrap();
            let coding: Coding = checkpoint.stored().unwrap().tensors[index].coding;
            if sparse == 0.0 || sparse > 0.9 {
                assert_eq!(coding.storage == Storage::Bitmask, sparse > 0.9, "{scheme} {sparse}");
            }
        }
    }
}

#[test]
fn sparsity_counts_effective_weights() {
    let rules = Compression::new().prune(Prune::new("*.weight", 0.5).unwrap());
    let model = rules.attach(digits()).unwrap();
    let found = sparsity(&model).unwrap();
    assert_eq!((found["fc1.weight"].n_zeros, found["fc1.weight"].n_weights), (20_480, 40_960));
    assert_eq!(found["fc1.bias"].n_zeros, 0);
    let plain = sparsity(&model.clone().materialize()).unwrap();
    assert_eq!(plain, found);
    let all: briquette_nn::Sparsity = found.into_values().sum();
    assert!(all.ratio() > 0.49);
}

#[test]
fn records_of_plain_modules_load() {
    let (model, dir) = (digits(), tempfile::tempdir().unwrap());
    let path = dir.path().join("model.bpk");
    model.clone().into_record().save(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let back = load_into(Digits::new(&Device::flex()), &checkpoint, &NameMap::burn()).unwrap();
    assert_eq!(values(back.fc1.weight.val()), values(model.fc1.weight.val()));
    assert_eq!(values(back.bn2.gamma.val()), values(model.bn2.gamma.val()));
}

#[test]
fn small_files_outside_the_output_or_with_taken_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let absolute = dir.path().join("absolute.txt");
    let out = dir.path().join("out");
    let export = |name: &std::path::Path| Export::to(&out).file(name, b"text".to_vec());
    let wrong =
        ["../escaped.txt", "a/../../b", "..", "", "/etc/escaped", "SHA256SUMS", "briquette.json", "model.safetensors"];
    for name in wrong.map(std::path::Path::new).into_iter().chain([absolute.as_path()]) {
        let error = export(name).write(&digits()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Config, "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{name:?} left something behind");
    }
    let twice = export("a.txt".as_ref()).file("a.txt", b"other".to_vec()).write(&digits()).unwrap_err();
    assert!(twice.to_string().starts_with("a.txt: the output already has a file of this name"), "{twice}");
    export("sub/a.txt".as_ref()).write(&digits()).unwrap();
    assert!(std::fs::read_to_string(out.join("SHA256SUMS")).unwrap().contains("sub/a.txt"));
}

#[test]
fn a_missing_file_is_an_io_error_with_its_cause() {
    use std::error::Error as _;
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let rules = Compression::new().prune(Prune::new("fc1.weight", 0.5).unwrap());
    let errors = [
        ("Checkpoint::open", Checkpoint::open(&missing).err()),
        ("Compression::load", rules.load(Digits::new(&Device::flex()), &missing).err()),
        ("Export::like", Export::to(dir.path().join("out")).like(&missing).write(&digits()).err()),
        ("Probe::read", briquette_nn::Probe::read(&missing).err()),
    ];
    for (what, error) in errors {
        let error = error.unwrap();
        assert_eq!(error.kind, ErrorKind::Io, "{what}: {error}");
        let cause = error.source().unwrap_or_else(|| panic!("{what} has no source: {error}"));
        let cause = cause.downcast_ref::<std::io::Error>().unwrap_or_else(|| panic!("{what}: {cause}"));
        assert_eq!(cause.kind(), std::io::ErrorKind::NotFound, "{what}");
    }
}

//! Tests codes in burn's records, in loaded checkpoints and in exports.

use crate::fixture::seeded;
use briquette_core::ErrorKind;
use briquette_formats::Checkpoint;
use briquette_nn::layers::{Conv2d, Conv2dConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use briquette_nn::{Compression, DynamicSpec, Export, NameMap, Prune, Quantize};
use briquette_nn::{held, load_compressed, load_into, quantize_dynamic};
use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};

#[derive(Module, Debug)]
struct Net {
    table: Embedding,
    first: Linear,
    square: Linear,
    conv: Conv2d,
}

impl Net {
    fn new(seed: u64) -> Self {
        let device = Device::flex();
        let net = Self {
            table: EmbeddingConfig::new(40, 290).init(&device),
            first: LinearConfig::new(290, 96).init(&device),
            square: LinearConfig::new(96, 96).init(&device),
            conv: Conv2dConfig::new([1, 5], [3, 3]).init(&device),
        };
        seeded(net, seed)
    }

    fn forward(&self) -> TensorData {
        let ids = Tensor::<2, Int>::from_data([[1, 39, 0], [7, 7, 30]], &Device::flex());
        let x = self.square.forward(self.first.forward(self.table.forward(ids)));
        self.conv.forward(x.unsqueeze_dim(1)).into_data()
    }
}

fn int8(net: Net) -> Net {
    quantize_dynamic(net, &DynamicSpec::new()).unwrap().module
}

fn sparse(seed: u64) -> Net {
    let rules = Compression::new().prune(Prune::new("{first,conv}.weight", 0.6).unwrap());
    int8(rules.attach(Net::new(seed)).unwrap())
}

fn sizes(net: Net, dir: &tempfile::TempDir) -> usize {
    let path = dir.path().join("net.bpk");
    net.save_file(&path).unwrap();
    std::fs::metadata(path).unwrap().len() as usize
}

#[test]
fn a_record_of_codes_is_small_and_loads_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let floats = sizes(Net::new(1), &dir);
    for saved in [int8(Net::new(1)), sparse(1)] {
        let expected = saved.forward();
        assert!(sizes(saved, &dir) * 7 < floats * 2, "two sevenths of {floats} bytes");
        for target in [int8(Net::new(2)), sparse(3)] {
            let before = held(&target).values().map(|held| held.n_bytes).sum::<usize>();
            let loaded = target.try_load_file(dir.path().join("net.bpk")).unwrap();
            assert_eq!(loaded.forward(), expected);
            let after: usize = held(&loaded).values().map(|held| held.n_bytes).sum();
            assert!(after <= before * 2, "{after} bytes after loading, {before} before");
            assert!(held(&loaded).keys().all(|form| form.contains("int8") || form == "f32"), "{:?}", held(&loaded));
        }
    }
}

#[test]
fn a_record_loads_twice_and_saves_the_loaded_values() {
    let (dir, net) = (tempfile::tempdir().unwrap(), int8(Net::new(4)));
    let expected = net.forward();
    sizes(net, &dir);
    let path = dir.path().join("net.bpk");
    let loaded = int8(Net::new(5)).try_load_file(&path).unwrap().try_load_file(&path).unwrap();
    assert_eq!(loaded.forward(), expected);
    let again = loaded.clone().into_record().into_bytes().unwrap();
    drop(loaded);
    let again = int8(Net::new(6)).try_load_record(ModuleRecord::from_bytes(again).unwrap()).unwrap();
    assert_eq!(again.forward(), expected);
}

#[test]
fn loading_into_one_copy_does_not_change_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let other = int8(Net::new(7));
    let values = |net: &Net| net.first.weight.val().into_data();
    let expected = values(&other);
    sizes(other, &dir);
    let original = int8(Net::new(8));
    let before = original.forward();
    let copy = original.clone().try_load_file(dir.path().join("net.bpk")).unwrap();
    assert_eq!(original.forward(), before);
    assert_eq!(values(&copy), expected);
    // The copy saves its own values, too.
    let bytes = copy.into_record().into_bytes().unwrap();
    let back = int8(Net::new(9)).try_load_record(ModuleRecord::from_bytes(bytes).unwrap()).unwrap();
    assert_eq!(values(&back), expected);
}

#[test]
fn float_modules_refuse_a_record_of_codes_unless_unused_entries_are_allowed() {
    let net = int8(Net::new(10));
    let expected = net.clone().materialize().first.weight.val().into_data();
    let bytes = net.into_record().into_bytes().unwrap();
    let record = || ModuleRecord::from_bytes(bytes.clone()).unwrap();
    let error = Net::new(11).try_load_record(record()).unwrap_err().to_string();
    assert!(error.contains("Unused") && error.contains("first.weight.packed"), "{error}");
    // With `allow_unused`, the module gets the codes as burn's quantized tensors, with the same values.
    let loaded = Net::new(12).try_load_record(record().allow_unused(true)).unwrap();
    assert_eq!(loaded.first.weight.val().dequantize().into_data(), expected);
}

#[test]
fn modules_of_codes_refuse_records_of_floats_and_of_other_codes() {
    let record = Net::new(13).into_record();
    let error = int8(Net::new(14)).try_load_record(record.clone()).unwrap_err().to_string();
    assert!(error.contains("Missing") && error.contains("packed"), "{error}");
    // With `allow_partial`, floats are quantized to codes.
    let loaded = int8(Net::new(15)).try_load_record(record.allow_partial(true)).unwrap();
    assert_eq!(loaded.forward(), int8(Net::new(13)).forward());

    let weight_only = exported("int8");
    let net = load_compressed(Net::new(16), &weight_only.1, &NameMap::torch()).unwrap();
    let error = int8(Net::new(17)).try_load_record(net.into_record()).unwrap_err().to_string();
    assert!(error.contains("shape mismatch") && error.contains("packed.form"), "{error}");
}

/// Writes a network with grids of this scheme on its linear layers to a directory.
fn exported(scheme: &str) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let rules = Compression::new().quantize(Quantize::new("{first,square}.weight", scheme).unwrap());
    let rules = rules.quantize(Quantize::new("table.weight", "int8").unwrap());
    Export::to(dir.path().join("net")).write(&rules.attach(Net::new(20)).unwrap()).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("net")).unwrap();
    (dir, checkpoint)
}

#[test]
fn floats_loaded_into_codes_are_quantized() {
    let dir = tempfile::tempdir().unwrap();
    let other = Net::new(21);
    Export::to(dir.path().join("net")).write(&other).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("net")).unwrap();
    let expected = int8(other).forward();
    let target = int8(Net::new(22));
    assert_ne!(target.forward(), expected);
    let loaded = load_into(target, &checkpoint, &NameMap::torch()).unwrap();
    assert_eq!(loaded.forward(), expected);
    assert_eq!(held(&loaded)["int8"].n_tensors, 3);
}

#[test]
fn codes_loaded_into_codes_stay_unchanged() {
    for scheme in ["int8", "int4-g2", "int4"] {
        let (_dir, checkpoint) = exported(scheme);
        let load = |net| load_compressed(net, &checkpoint, &NameMap::torch()).unwrap();
        let first = load(Net::new(23));
        let expected = first.forward();
        let again = load(first);
        assert_eq!(again.forward(), expected, "{scheme}");
        let bytes = again.into_record().into_bytes().unwrap();
        let other = load(Net::new(24)).try_load_record(ModuleRecord::from_bytes(bytes).unwrap()).unwrap();
        assert_eq!(other.forward(), expected, "{scheme}");
    }
}

#[test]
fn an_export_of_codes_stores_the_codes() {
    let dir = tempfile::tempdir().unwrap();
    for (name, net) in [("dense", int8(Net::new(30))), ("sparse", sparse(31))] {
        let (expected, kinds) = (net.forward(), held(&net));
        for (layout, names) in [("torch", NameMap::torch()), ("burn", NameMap::burn())] {
            let out = dir.path().join(format!("{name}-{layout}"));
            let exported = Export::to(&out).names(names.clone()).write(&net).unwrap();
            let n_weights = net.num_params();
            assert!(exported.n_bytes < n_weights as u64 * 5 / 4, "{} bytes of {n_weights} weights", exported.n_bytes);
            let back = load_compressed(Net::new(32), &Checkpoint::open(&out).unwrap(), &names).unwrap();
            assert_eq!(back.forward(), expected, "{name} {layout}");
            assert_eq!(held(&back).into_keys().collect::<Vec<_>>(), kinds.keys().cloned().collect::<Vec<_>>());
        }
    }
}

#[test]
fn records_of_column_layout_layers_load() {
    use burn::nn::LinearLayout;
    let x = Tensor::<2>::random([3, 96], Distribution::Default, &Device::flex());
    for n_out in [96, 24] {
        let layer = |layout| LinearConfig::new(96, n_out).with_layout(layout).init(&Device::flex());
        let spec = DynamicSpec::new();
        let saved = quantize_dynamic(layer(LinearLayout::Col), &spec).unwrap().module;
        let expected = saved.forward(x.clone()).into_data();
        let bytes = saved.into_record().into_bytes().unwrap();
        let target = quantize_dynamic(layer(LinearLayout::Col), &spec).unwrap().module;
        let loaded = target.try_load_record(ModuleRecord::from_bytes(bytes).unwrap()).unwrap();
        assert_eq!(loaded.forward(x.clone()).into_data(), expected, "{n_out}");
    }
    // A plain record of a square layer stores its matrix transposed.
    let plain = LinearConfig::new(96, 96).with_layout(LinearLayout::Col).init(&Device::flex());
    plain.weight.val();
    let expected = quantize_dynamic(plain.clone(), &DynamicSpec::new()).unwrap().module.forward(x.clone()).into_data();
    let target = LinearConfig::new(96, 96).with_layout(LinearLayout::Col).init(&Device::flex());
    let target = quantize_dynamic(target, &DynamicSpec::new()).unwrap().module;
    let loaded = target.try_load_record(plain.into_record().allow_partial(true)).unwrap();
    assert_eq!(loaded.forward(x).into_data(), expected);
}

#[test]
fn other_reparameterizations_are_not_exported() {
    let dir = tempfile::tempdir().unwrap();
    let net = Net::new(40).apply_lora(burn::module::Lora::new(2, 1.0));
    let error = Export::to(dir.path().join("net")).write(&net).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused);
}

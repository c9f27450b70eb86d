//! Tests layers on codes.

use briquette_formats::Checkpoint;
use briquette_nn::layers::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use briquette_nn::{Compression, DynamicSpec, Export, NameMap, Prune, Quantize};
use briquette_nn::{held, load_compressed, load_into, parameters, quantize_dynamic};
use burn::module::Module;
use burn::tensor::{Device, Distribution, Int, Tensor};

#[derive(Module, Debug)]
struct Net {
    table: Embedding,
    first: Linear,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            table: EmbeddingConfig::new(50, 64).init(device),
            first: LinearConfig::new(64, 96).init(device),
            last: LinearConfig::new(96, 8).with_bias(false).init(device),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.last.forward(self.first.forward(self.table.forward(ids)))
    }
}

fn ids() -> Tensor<2, Int> {
    Tensor::from_data([[1, 49, 0], [7, 7, 30]], &Device::flex())
}

/// Returns the largest difference, relative to the largest value.
fn apart(a: Tensor<3>, b: Tensor<3>) -> f32 {
    let largest = a.clone().abs().max().into_scalar::<f32>();
    (a - b).abs().max().into_scalar::<f32>() / largest
}

#[test]
fn layers_equal_burns_layers() {
    let device = Device::flex();
    let like = burn::nn::LinearConfig::new(5, 3).init(&device);
    let ours = Linear { weight: like.weight.clone(), bias: like.bias.clone(), down: None };
    let x = Tensor::<2>::random([4, 5], Distribution::Default, &device);
    assert_eq!(ours.forward(x.clone()).into_data(), like.forward(x).into_data());
    assert_eq!(format!("{ours}"), format!("{like}"));
}

#[test]
fn dynamic_int8_is_close_small_and_can_be_materialized() {
    let model = Net::new(&Device::flex());
    let plain = model.forward(ids());
    let floats = held(&model)["f32"].n_bytes;
    let model = quantize_dynamic(model, &DynamicSpec::new()).unwrap().module;
    let found = held(&model);
    assert_eq!((found["int8"].n_tensors, found["int8 table"].n_weights, found["f32"].n_tensors), (2, 50 * 64, 1));
    assert!(found.values().map(|held| held.n_bytes).sum::<usize>() * 5 / 2 < floats, "{found:?}");
    let quick = model.forward(ids());
    assert!(apart(plain.clone(), quick.clone()) < 0.03);
    let shapes: Vec<_> = parameters(&model).into_iter().map(|parameter| parameter.shape.0).collect();
    assert_eq!(shapes[..2], [vec![50, 64], vec![64, 96]]);
    // Leaving autodiff or cloning keeps the codes; materializing decodes them.
    assert_eq!(model.clone().valid().forward(ids()).into_data(), quick.into_data());
    let undone = model.materialize();
    assert_eq!(held(&undone).len(), 1);
    assert!(apart(plain, undone.forward(ids())) < 0.02);
}

#[test]
fn codes_are_decoded_on_autodiff_devices() {
    let model = quantize_dynamic(Net::new(&Device::flex().autodiff()), &DynamicSpec::new()).unwrap().module;
    let ids = Tensor::<2, Int>::from_data([[1, 49, 0]], &Device::flex().autodiff());
    let slow = model.forward(ids.clone()).without_autodiff();
    let quick = model.valid().forward(ids.without_autodiff());
    assert!(apart(slow, quick) < 0.03);
}

#[test]
fn zeros_are_stored_sparsely_unless_dense_is_set() {
    let rules = Compression::new().prune(Prune::new("{first,last}.weight", 0.5).unwrap());
    let model = rules.attach(Net::new(&Device::flex())).unwrap().materialize();
    let sparse = quantize_dynamic(model.clone(), &DynamicSpec::new()).unwrap().module;
    let dense = quantize_dynamic(model, &DynamicSpec::new().dense()).unwrap().module;
    assert_eq!(held(&sparse)["sparse int8"].n_tensors, 2);
    assert!(held(&sparse)["sparse int8"].n_bytes < held(&dense)["int8"].n_bytes);
    assert_eq!(sparse.forward(ids()).into_data(), dense.forward(ids()).into_data());
}

#[test]
fn skipped_parameters_are_listed_with_reasons() {
    let spec = DynamicSpec::new().without_embeddings().exclude("last.*").unwrap();
    let found = held(&quantize_dynamic(Net::new(&Device::flex()), &spec).unwrap().module);
    assert_eq!((found["int8"].n_tensors, found["f32"].n_tensors), (1, 3));
}

/// Exports the network with quantized linear layers, and loads it as codes and as floats.
fn round_trip(scheme: &str, sparsity: f64, names: &NameMap) -> (Net, Net) {
    let dir = tempfile::tempdir().unwrap();
    let mut rules = Compression::new().quantize(Quantize::new("{first,last}.weight", scheme).unwrap());
    rules = rules.quantize(Quantize::new("table.weight", "int8").unwrap());
    if sparsity > 0.0 {
        rules = rules.prune(Prune::new("{first,last}.weight", sparsity).unwrap());
    }
    let model = rules.attach(Net::new(&Device::flex())).unwrap();
    let out = dir.path().join("model");
    Export::to(&out).names(names.clone()).write(&model).unwrap();
    let checkpoint = Checkpoint::open(&out).unwrap();
    let new = || Net::new(&Device::flex());
    (load_into(new(), &checkpoint, names).unwrap(), load_compressed(new(), &checkpoint, names).unwrap())
}

#[test]
fn directories_load_as_codes_with_the_same_values() {
    for names in [NameMap::torch(), NameMap::burn()] {
        for (scheme, sparsity, kind, tolerance) in [
            ("int8-dynamic", 0.0, "int8", 0.03),
            ("int8-dynamic-sym", 0.5, "sparse int8", 0.03),
            ("int8", 0.0, "int8 weight-only", 1e-5),
            ("int8", 0.5, "sparse int8 weight-only", 1e-5),
            ("int4-g8", 0.0, "int4", 1e-5),
            ("int4", 0.0, "int4", 1e-5),
            ("int4-g8-dynamic", 0.0, "int4 by int8", 0.03),
            ("int4-g8-dynamic-sym", 0.0, "int4 by int8", 0.03),
            ("int4-dynamic", 0.5, "int4 by int8", 0.03),
            ("int4-g8-asym", 0.0, "f32", 0.0),
        ] {
            let (floats, codes) = round_trip(scheme, sparsity, &names);
            let found = held(&codes);
            assert!(found[kind].n_tensors >= 2 && found["int8 table"].n_tensors == 1, "{scheme} {found:?}");
            let apart = apart(floats.forward(ids()), codes.forward(ids()));
            assert!(apart <= tolerance, "{scheme} {sparsity}: {apart}");
            // Both networks have exactly the same values.
            let value = |net: Net| net.materialize().first.weight.val().into_data();
            assert_eq!(value(codes), value(floats), "{scheme} {sparsity}");
        }
    }
}

//! Tests writing a module with the `safetensors` crate.

use crate::fixture::{Digits, fixture, values};
use briquette_formats::Checkpoint;
use briquette_nn::{Compression, NameMap, Prune, Quantize, dense_tensors, load_into, parameters, safetensors};
use burn::module::Module;
use burn::tensor::Device;

#[test]
fn the_crate_writes_the_weights_that_the_module_computes_with() {
    let (device, dir) = (Device::flex(), tempfile::tempdir().unwrap());
    let checkpoint = Checkpoint::open(&fixture("digits")).unwrap();
    let plain = load_into(Digits::new(&device), &checkpoint, &NameMap::torch()).unwrap().valid();
    let rules = Compression::new().prune(Prune::new("*.weight", 0.5).unwrap());
    let rules = rules.quantize(Quantize::new("fc?.weight", "int8").unwrap());
    let model = rules.attach(plain.clone()).unwrap();
    assert_ne!(values(model.fc1.weight.val()), values(plain.fc1.weight.val()), "the rules change weights");
    for (name, names) in [("torch", NameMap::torch()), ("burn", NameMap::burn())] {
        let tensors = dense_tensors(&model, &names).unwrap();
        assert_eq!(tensors.len(), parameters(&model).len());
        let path = dir.path().join(format!("{name}.safetensors"));
        safetensors::serialize_to_file(tensors, None, &path).unwrap();
        let read = Checkpoint::open(&path).unwrap();
        let back = load_into(Digits::new(&device), &read, &names).unwrap();
        assert_eq!(values(back.conv1.weight.val()), values(model.conv1.weight.val()), "{name}");
        assert_eq!(values(back.fc1.weight.val()), values(model.fc1.weight.val()), "{name}");
        assert_eq!(values(back.bn2.running_var.value()), values(model.bn2.running_var.value()), "{name}");
    }
}

//! Tests parameters that two fields of a module share.

use crate::fixture::values;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_nn::layers::{Embedding, EmbeddingConfig};
use briquette_nn::{
    Compression, DynamicSpec, Export, Prune, Quantize, Schedule, decisions, parameters, quantize_dynamic,
};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
struct Tied {
    table: Embedding,
    other: Embedding,
    /// Used as `x.matmul(head.transpose())`.
    head: Param<Tensor<2>>,
    alone: Embedding,
}

fn tied(device: &Device) -> Tied {
    let new = || EmbeddingConfig::new(24, 16).init(device);
    let (table, mut other) = (new(), new());
    table.weight.val();
    other.weight = table.weight.clone();
    Tied { head: table.weight.clone(), table, other, alone: new() }
}

fn all(net: &Tied) -> [Vec<f32>; 3] {
    [net.table.weight.val(), net.other.weight.val(), net.head.val()].map(values)
}

#[test]
fn shared_parameters_are_detected() {
    let found = parameters(&tied(&Device::flex()));
    let shares: Vec<Option<&str>> = found.iter().map(|parameter| parameter.shares.as_deref()).collect();
    assert_eq!(shares, [None, Some("table.weight"), Some("table.weight"), None]);
    assert_eq!([found[2].first_path(), found[3].first_path()], ["table.weight", "alone.weight"]);
}

#[test]
fn a_rule_for_one_field_of_a_shared_parameter_applies_to_all() {
    let device = Device::flex().autodiff();
    for name in ["table.weight", "other.weight", "head"] {
        let schedule = Schedule::linear(0..4);
        let rules = [
            Compression::new().prune(Prune::new(name, 0.5).unwrap().on(schedule)),
            Compression::new().prune(Prune::n_of_m(name, 2, 4).unwrap()),
            Compression::new().quantize(Quantize::new(name, "int4").unwrap()),
            Compression::new().quantize(Quantize::new(name, "int4-g8").unwrap().learned()),
        ];
        for rules in rules {
            let mut net = rules.attach(tied(&device)).unwrap();
            let alone = values(net.alone.weight.val());
            for step in 1..=4 {
                net = rules.refresh(net, step).unwrap();
                let [first, second, third] = all(&net);
                assert!(first == second && first == third, "{name} at step {step}");
            }
            assert_ne!(all(&net)[0], values(net.table.weight.base()), "{name}: something was done");
            assert_eq!(values(net.alone.weight.val()), alone);
            assert_eq!(decisions(&net).unwrap().len(), 3, "{name}");
            let dir = tempfile::tempdir().unwrap();
            Export::to(dir.path().join("out")).write(&net).unwrap();
            let manifest = Checkpoint::open(&dir.path().join("out")).unwrap();
            let n_bytes: usize = manifest.tensors().iter().map(|info| info.n_bytes()).sum();
            assert_eq!(n_bytes, 4 * 24 * 16 * 4);
        }
    }
}

#[test]
fn shared_weights_count_once_in_a_global_threshold() {
    let rules = Compression::new().prune(Prune::new("**.weight", 0.25).unwrap().globally());
    let net = rules.attach(tied(&Device::flex())).unwrap();
    let n_zeros = |weights: Tensor<2>| values(weights).iter().filter(|weight| **weight == 0.0).count();
    assert_eq!(n_zeros(net.table.weight.val()) + n_zeros(net.alone.weight.val()), 2 * 24 * 16 / 4);
}

#[test]
fn skipping_one_field_of_a_shared_parameter_skips_all() {
    let all = Prune::new("**.weight", 0.5).unwrap();
    let by_name = Compression::new().prune(all.clone()).leave("other.*").unwrap();
    let excluded = Compression::new().prune(all.exclude("other.*").unwrap());
    for rules in [by_name, excluded] {
        let net = rules.attach(tied(&Device::flex())).unwrap();
        assert_eq!(decisions(&net).unwrap().into_keys().collect::<Vec<_>>(), ["alone.weight"]);
    }
}

#[test]
fn shared_parameters_are_quantized_in_all_fields_or_none() {
    let net = tied(&Device::flex());
    let before = all(&net)[0].clone();
    let usual = quantize_dynamic(net.clone(), &DynamicSpec::new()).unwrap();
    let left: Vec<&str> = usual.left.keys().map(String::as_str).collect();
    assert_eq!(left, ["head", "other.weight", "table.weight"], "the head would decode them for each use");
    assert!(usual.left["table.weight"].starts_with("head: it would be slower"), "{:?}", usual.left);
    assert_eq!(all(&usual.module), [before.clone(), before.clone(), before.clone()]);
    let slower = quantize_dynamic(net, &DynamicSpec::new().include("other.weight").unwrap().with_slower()).unwrap();
    let [first, second, third] = all(&slower.module);
    assert!(first == second && first == third && first != before);
}

//! Tests of weights on a trellis.

use crate::fixture::net::{Net, step};
use crate::fixture::values;
use briquette_core::ErrorKind;
use briquette_core::entropy::trellis::follows;
use briquette_formats::Checkpoint;
use briquette_nn::{Compression, Export, NameMap, Prune, Quantize, load_into, without_grids};
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};

/// A step that f16 holds.
const STEP: f32 = 0.0078125;

fn rules_of(scheme: &str) -> Compression {
    Compression::new().quantize(Quantize::new("h*.weight", scheme).unwrap())
}

fn rules() -> Compression {
    rules_of("step0.0078125-trellis")
}

/// Returns the rows of the codes of a `Linear`.
fn codes(weight: Tensor<2>) -> Vec<i8> {
    let rows = values(weight.transpose());
    rows.iter().for_each(|value| assert_eq!((value / STEP).round() * STEP, *value));
    rows.iter().map(|value| (value / STEP).round() as i8).collect()
}

#[test]
fn weights_are_on_the_trellis_and_change_only_when_refreshed() {
    let device = Device::flex().autodiff();
    for scheme in ["step0.0078125-trellis", "step0.0078125-tensor-trellis"] {
        let rules = rules_of(scheme);
        let mut model = rules.attach(Net::new(&device)).unwrap();
        // Rows of 36 inputs have no trellis: these codes are plain ones, with twice the step.
        assert!(codes(model.head.weight.val()).iter().all(|code| code % 2 == 0));
        let mut optimizer = AdamWConfig::new().init();
        let first = codes(model.hidden.weight.val());
        for t in 1..=20 {
            let base = values(model.hidden.weight.base());
            model = rules.refresh(step(model, &mut optimizer), t).unwrap();
            assert_ne!(values(model.hidden.weight.base()), base, "gradients pass straight through");
            let now = codes(model.hidden.weight.val());
            assert!(follows(&now, 512) && now.iter().any(|code| code % 2 != 0), "step {t}");
            assert_eq!(now == first, t < 10, "step {t}");
        }
        let floats = without_grids(model.clone()).unwrap().materialize();
        assert_eq!(values(floats.hidden.weight.val()), values(model.hidden.weight.val()));
        assert_eq!(
            values(floats.head.weight.val()),
            values(model.head.weight.base()),
            "plain codes follow from weights"
        );
    }
}

#[test]
fn a_record_and_a_file_have_the_codes_of_the_last_refresh() {
    let device = Device::flex().autodiff();
    let dir = tempfile::tempdir().unwrap();
    let mut optimizer = AdamWConfig::new().init();
    let mut model = rules().attach(Net::new(&device)).unwrap();
    for t in 1..=15 {
        model = rules().refresh(step(model, &mut optimizer), t).unwrap();
    }
    let path = dir.path().join("net.bpk");
    model.clone().into_record().save(&path).unwrap();
    let loaded = rules().load(Net::new(&device), &path).unwrap();
    assert_eq!(codes(loaded.hidden.weight.val()), codes(model.hidden.weight.val()));
    let [loaded, expected] = [loaded, model.clone()].map(|model| rules().refresh(model, 20).unwrap());
    assert_eq!(codes(loaded.hidden.weight.val()), codes(expected.hidden.weight.val()));
    assert_ne!(codes(loaded.hidden.weight.val()), codes(model.hidden.weight.val()));

    let error = rules_of("step0.0078125").load(Net::new(&device), &path).unwrap_err();
    assert!(error.kind == ErrorKind::Config && error.message.contains("other rules"), "{error}");

    Export::to(dir.path().join("out")).write(&model).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("out")).unwrap();
    let decoded = load_into(Net::new(&device), &checkpoint, &NameMap::torch()).unwrap();
    assert_eq!(codes(decoded.hidden.weight.val()), codes(model.hidden.weight.val()));
}

#[test]
fn a_trellis_refuses_pruned_weights_and_learned_scales() {
    let net = || Net::new(&Device::flex());
    let pruned = rules().prune(Prune::new("hidden.weight", 0.5).unwrap());
    let learned = Compression::new().quantize(Quantize::new("hidden.weight", "step0.01-trellis").unwrap().learned());
    for (rules, word) in [(pruned, "is pruned"), (learned, "learned scales")] {
        let error = rules.attach(net()).unwrap_err();
        assert!(error.kind == ErrorKind::Config && error.to_string().contains(word), "{error}");
    }
}

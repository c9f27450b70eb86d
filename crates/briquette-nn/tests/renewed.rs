//! Tests when decisions are updated.

use crate::fixture::net::{Net, n_zeros, step};
use crate::fixture::values;
use briquette_core::ErrorKind;
use briquette_nn::layers::LinearConfig;
use briquette_nn::{Compression, Prune, Quantize, Schedule, decisions};
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};

#[test]
fn decisions_due_between_two_refreshes_are_made_at_the_second() {
    let schedule = Schedule::cubic(0..300).every(10);
    for is_global in [false, true] {
        let rule = Prune::new("hidden.weight", 0.9).unwrap().on(schedule);
        let rules = Compression::new().prune(if is_global { rule.globally() } else { rule });
        let mut model = rules.attach(Net::new(&Device::flex())).unwrap();
        let n = 512.0 * 36.0;
        for t in (1..=400).filter(|t| t % 23 == 0) {
            model = rules.refresh(model, t).unwrap();
            let left = if t >= 300 { 0.0 } else { 1.0 - t as f64 / 300.0 };
            let expected = (0.9 * (1.0 - left.powi(3)) * n).round() as usize;
            assert_eq!(n_zeros(&model, "hidden.weight"), expected, "step {t}");
        }
        assert_eq!(n_zeros(&model, "hidden.weight"), 16_589, "0.9 of 18,432");
    }
    // Nothing is due between steps 20 and 29.
    let rules = Compression::new().prune(Prune::new("hidden.weight", 0.9).unwrap().on(schedule));
    let model = rules.attach(Net::new(&Device::flex())).unwrap();
    let model = rules.refresh(model, 25).unwrap();
    let after = n_zeros(&model, "hidden.weight");
    let model = rules.refresh(model, 29).unwrap();
    assert_eq!(n_zeros(&model, "hidden.weight"), after);
    assert!(n_zeros(&rules.refresh(model, 30).unwrap(), "hidden.weight") > after);
    // A step far beyond the end of the schedule still reaches the final sparsity.
    let model = rules.refresh(rules.attach(Net::new(&Device::flex())).unwrap(), 1000).unwrap();
    assert_eq!(n_zeros(&model, "hidden.weight"), 16_589);
}

#[test]
fn zeros_are_dropped_first_up_to_the_requested_sparsity() {
    let device = Device::flex();
    for is_global in [false, true] {
        let mut net = Net::new(&device);
        let size = |i: i64| if i % 2 == 0 { 0.0 } else { (i % 7 + 1) as f32 };
        let weights = |n: i64, shape| {
            Tensor::<1>::from_data(&(0..n).map(size).collect::<Vec<f32>>()[..], &device).reshape::<2, _>(shape)
        };
        net.hidden.weight = burn::module::Param::from_tensor(weights(18_432, [512, 36]));
        net.head.weight = burn::module::Param::from_tensor(weights(180, [36, 5]));
        let rule = Prune::new("h*.weight", 0.6).unwrap().on(Schedule::linear(0..6));
        let rules = Compression::new().prune(if is_global { rule.globally() } else { rule });
        let mut model = rules.attach(net).unwrap();
        let n_dropped = |model: &Net| {
            let mask = |path: &str| decisions(model).unwrap().remove(path).and_then(|decision| decision.mask);
            ["hidden.weight", "head.weight"]
                .map(|path| mask(path).map_or(0, |mask| mask.dim().0 * mask.dim().1 - mask.n_kept()))
        };
        for t in 1..=6 {
            model = rules.refresh(model, t).unwrap();
            let [hidden, head] = n_dropped(&model);
            let each = |n: usize| (0.1 * t as f64 * n as f64).round_ties_even() as usize;
            match is_global {
                true => assert_eq!(hidden + head, each(18_612), "step {t}"),
                false => assert_eq!([hidden, head], [each(18_432), each(180)], "step {t}"),
            }
        }
    }
}

#[test]
fn a_record_loads_into_rules_attached_at_any_step() {
    let device = Device::flex().autodiff();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.bpk");
    let rules = Compression::new()
        .prune(Prune::new("hidden.weight", 0.8).unwrap().on(Schedule::cubic(10..60).every(10)))
        .quantize(Quantize::new("h*.weight", "int4-asym").unwrap().on(Schedule::constant(30..100).every(10)));
    let mut optimizer = AdamWConfig::new().init();
    let mut model = rules.attach(Net::new(&device)).unwrap();
    for t in 1..=47 {
        model = rules.refresh(step(model, &mut optimizer), t).unwrap();
        if t != 5 && t != 47 {
            continue;
        }
        model.clone().into_record().save(&path).unwrap();
        let decided = decisions(&model).unwrap();
        assert_eq!(decided.len(), if t == 5 { 0 } else { 2 });
        let of_burn = rules.attach(Net::new(&device)).unwrap().try_load_file(&path).unwrap();
        let later = rules.attach_at(Net::new(&device), 80).unwrap().try_load_file(&path).unwrap();
        let ours = rules.load(Net::new(&device), &path).unwrap();
        for loaded in [of_burn, later, ours] {
            assert_eq!(decisions(&loaded).unwrap(), decided);
            assert_eq!(values(loaded.hidden.weight.val()), values(model.hidden.weight.val()));
            // Training resumes where it stopped: only the next due decision is made.
            let next = rules.refresh(loaded.clone(), t + 1).unwrap();
            assert_eq!(decisions(&next).unwrap(), decided);
            let expected = rules.refresh(model.clone(), t + 17).unwrap();
            let found = rules.refresh(loaded, t + 17).unwrap();
            assert_eq!(decisions(&found).unwrap(), decisions(&expected).unwrap());
            assert_ne!(decisions(&found).unwrap(), decided, "step {}", t + 17);
        }
    }
    let other = Compression::new().prune(Prune::new("hidden.weight", 0.8).unwrap());
    let error = other.load(Net::new(&device), &path).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Config);
    let said = error.to_string();
    assert!(said.contains("net.bpk: was saved with other rules") && said.contains("hidden.weight.briquette"), "{said}");
    let error = rules.load(Net::new(&device), dir.path().join("no.bpk")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io);
    let layer = Compression::new().prune(Prune::new("weight", 0.8).unwrap());
    let error = layer.load(LinearConfig::new(8, 8).init(&device), &path).unwrap_err().to_string();
    assert!(error.contains("net.bpk"), "{error}");
}

#[test]
fn scales_are_refitted_every_ten_steps_by_default() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let attach = |rule: Quantize| {
        let rules = Compression::new().quantize(rule);
        (rules.attach(net.clone()).unwrap(), rules)
    };
    let usual = || Quantize::new("hidden.weight", "int4").unwrap();
    let (mut model, rules) = attach(usual());
    let (mut kept, once) = attach(usual().on(Schedule::once()));
    let scales = |model: &Net| decisions(model).unwrap().remove("hidden.weight").unwrap().quant.unwrap().affines;
    let first = scales(&model);
    assert_eq!(first, scales(&kept), "scales attached once do not change");
    let mut optimizer = AdamWConfig::new().init();
    for t in 1..=21 {
        model = rules.refresh(step(model, &mut optimizer), t).unwrap();
        kept = once.refresh(step(kept, &mut AdamWConfig::new().init()), t).unwrap();
        assert_eq!(scales(&model) == first, t < 10, "step {t}");
        if t == 10 || t == 20 {
            let again = attach(usual()).1.attach(plain(&model)).unwrap();
            assert_eq!(scales(&model), scales(&again), "those of the weights of step {t}");
        }
    }
    assert_eq!(scales(&kept), first);
}

/// Returns a network with the trained weights before quantization.
fn plain(model: &Net) -> Net {
    briquette_nn::without_grids(model.clone()).unwrap().materialize()
}

//! Tests unusual inputs: safe functions must accept or refuse them without panicking.

use crate::fixture::net::Net;
use briquette_core::{Affine, ErrorKind, Grid, Grouping, InputStats, Mask, QuantParams};
use briquette_formats::Checkpoint;
use briquette_nn::layers::{Linear, LinearConfig};
use briquette_nn::{
    Compression, DynamicSpec, Export, NameMap, Observing, Probe, Prune, Quantize, Schedule, Score, ToDType, decisions,
    held, load_compressed, load_into, observe, parameters, quantize_dynamic, sparsity, without_grids,
};
use burn::module::{Module, Param, Quantizer};
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn::tensor::{Device, FloatDType, Tensor};
use std::collections::BTreeMap;

#[derive(Module, Debug)]
struct One {
    fc: Linear,
}

fn one(n_in: usize, n_out: usize, value: f32) -> One {
    let device = Device::flex();
    let mut fc = LinearConfig::new(4, 4).with_bias(false).init(&device);
    fc.weight = Param::from_tensor(Tensor::full([n_in, n_out], value, &device));
    One { fc }
}

#[test]
fn weights_that_cannot_be_quantized_are_refused_by_name() {
    for (net, expected) in [
        (one(4, 4, f32::NAN), "fc.weight: weight 0 is NaN"),
        (one(4, 4, f32::INFINITY), "fc.weight: weight 0 is inf"),
        (one(4, 4, f32::NEG_INFINITY), "fc.weight: weight 0 is -inf"),
        (one(0, 4, 0.0), "fc.weight: its shape [0, 4] has no weights"),
        (one(4, 0, 0.0), "fc.weight: its shape [4, 0] has no weights"),
        (one(0, 0, 0.0), "fc.weight: its shape [0, 0] has no weights"),
    ] {
        for spec in [DynamicSpec::new(), DynamicSpec::new().dense().with_slower()] {
            let error = quantize_dynamic(net.clone(), &spec).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Refused);
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
}

fn prunes() -> Vec<Prune> {
    let share = || Prune::new("fc.weight", 0.5).unwrap();
    vec![
        share(),
        share().globally(),
        share().of_each_row(),
        share().of_each_columns(3),
        share().of_each_columns(usize::MAX),
        share().score(Score::Random(1)),
        share().score_by(|row| row.weights.iter().map(|weight| weight.abs()).collect()),
        share().on(Schedule::cubic(0..usize::MAX).every(usize::MAX)),
        Prune::n_of_m("fc.weight", 2, 4).unwrap(),
        Prune::zeros("fc.weight").unwrap(),
        Prune::outside("fc.weight", Mask::from_fn(4, 4, |row, col| row != col)).unwrap(),
        Prune::outside("fc.weight", Mask::from_fn(0, 0, |_, _| true)).unwrap(),
    ]
}

fn quants() -> Vec<Quantize> {
    let schemes = [
        "int8",
        "int2",
        "int4-asym",
        "int4-g4",
        "int4-g4-asym",
        "int4-g4-dynamic",
        "int8-dynamic",
        "step0.01",
        "step0.01-tensor",
    ];
    let mut rules: Vec<Quantize> = schemes.map(|scheme| Quantize::new("fc.weight", scheme).unwrap()).into();
    rules.push(Quantize::new("fc.weight", "int4").unwrap().learned());
    for scale in [1.0, 0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE] {
        let affines = vec![Affine { scale, zero: 0 }; 4];
        rules.push(Quantize::on_grid("fc.weight", QuantParams::new(Grid::INT8, Grouping::Row, 4, affines)).unwrap());
    }
    rules
}

#[test]
fn unusual_layers_and_rules_are_handled_or_refused() {
    let sides = [(0, 4), (4, 0), (0, 0), (1, 1), (4, 4)];
    let weights = [0.0, 1e-40, 1e-12, 1.0, 1e30, f32::MAX];
    let rules = prunes().into_iter().map(|rule| Compression::new().prune(rule));
    let rules = rules.chain(quants().into_iter().map(|rule| Compression::new().quantize(rule)));
    let (dir, mut n_done) = (tempfile::tempdir().unwrap(), 0);
    for (place, rules) in rules.enumerate() {
        for (n_in, n_out, value) in sides.iter().flat_map(|&(n_in, n_out)| weights.map(|value| (n_in, n_out, value))) {
            let Ok(net) = rules.attach(one(n_in, n_out, value)) else { continue };
            let net = rules.refresh(rules.refresh(net, 1).unwrap(), 10).unwrap();
            let (decided, zeros) = (decisions(&net).unwrap(), sparsity(&net).unwrap());
            assert!(decided.len() <= 1 && zeros.contains_key("fc.weight") && !held(&net).is_empty());
            net.fc.weight.val();
            without_grids(net.clone()).unwrap().fc.weight.val();
            let out = dir.path().join(format!("{place}"));
            if Export::to(&out).replace().write(&net).is_ok() {
                let checkpoint = Checkpoint::open(&out).unwrap();
                let back = load_into(one(n_in, n_out, 0.5), &checkpoint, &NameMap::torch()).unwrap();
                let bits = |net: &One| {
                    crate::fixture::values(net.fc.weight.val()).into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                assert_eq!(bits(&back), bits(&net), "rules {place}, {n_in} x {n_out} of {value}");
                load_compressed(one(n_in, n_out, 0.5), &checkpoint, &NameMap::torch()).unwrap();
                n_done += 1;
            }
        }
    }
    assert!(n_done > 100, "{n_done} were done");
}

#[test]
fn scales_that_are_not_positive_numbers_are_refused() {
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let affines = vec![Affine { scale, zero: 0 }; 4];
        let rule = Quantize::on_grid("fc.weight", QuantParams::new(Grid::INT8, Grouping::Row, 4, affines)).unwrap();
        let error = Compression::new().quantize(rule).attach(one(4, 4, 1.0)).unwrap_err();
        assert!(error.to_string().starts_with("fc.weight: found a scale that is not a finite number"), "{error}");
    }
}

#[test]
fn statistics_that_are_not_finite_are_refused() {
    for square in [f64::NAN, f64::INFINITY] {
        let stats = InputStats { count: 1, sum_squares: vec![square; 4], ..InputStats::empty(4, false) };
        let stats = BTreeMap::from([("fc".to_string(), stats)]);
        let rule = Prune::new("fc.weight", 0.5).unwrap().score(Score::Wanda).inputs(&stats);
        let error = Compression::new().prune(rule).attach(one(4, 4, 1.0)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused, "{error}");
    }
}

#[test]
fn sparsities_and_patterns_that_keep_nothing_or_all_are_refused() {
    for wrong in [1.0, 1.5, -0.1, f64::NAN, f64::INFINITY] {
        let errors = [Prune::new("**", wrong).err(), Prune::new("**", 0.5).unwrap().starting_at(wrong).err()];
        for error in errors {
            let error = error.unwrap();
            assert_eq!(error.kind, ErrorKind::Config);
            assert!(error.to_string().starts_with("sparsity: found"), "{error}");
        }
    }
    for (n, m) in [(0, 4), (4, 4), (5, 4), (0, 0), (1, 257), (usize::MAX, usize::MAX)] {
        let error = Prune::n_of_m("**", n, m).unwrap_err();
        assert!(error.to_string().contains("expected N:M with 0 < N < M <= 256"), "{error}");
    }
    assert!(Prune::n_of_m("**", 1, 256).is_ok() && Prune::new("**", 0.0).is_ok());
}

#[test]
fn burns_quantized_tensors_are_read_but_refused_by_rules() {
    let scheme = QuantScheme::default();
    let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
    let net = Net::new(&Device::flex()).quantize_weights(&mut quantizer);
    assert!(sparsity(&net).unwrap().contains_key("hidden.weight"));
    assert!(!held(&net).is_empty() && !parameters(&net).is_empty());
    assert!(!held(&net.clone().to_dtype(FloatDType::BF16)).is_empty());
    let rules = Compression::new().prune(Prune::new("hidden.weight", 0.5).unwrap());
    let error = rules.attach(net.clone()).unwrap_err();
    assert_eq!(error.to_string(), "hidden.weight: is already quantized by burn; attach rules to a module of floats");
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Export::to(dir.path().join("out")).write(&net).unwrap_err().kind, ErrorKind::Refused);
    assert!(quantize_dynamic(net, &DynamicSpec::new()).is_ok());
}

#[test]
fn a_probe_accepts_empty_batches_and_refuses_layers_without_inputs() {
    let (probe, device) = (Probe::with_gram(), Device::flex());
    probe.observe("a", &Tensor::<2>::ones([0, 4], &device)).unwrap();
    probe.observe("a", &Tensor::<3>::ones([2, 0, 4], &device)).unwrap();
    probe.observe("a", &Tensor::<2>::ones([3, 4], &device)).unwrap();
    assert_eq!(probe.stats()["a"].count, 3);
    assert_eq!(probe.observe("b", &Tensor::<2>::ones([3, 0], &device)).unwrap_err().kind, ErrorKind::Config);
    let plain = briquette_nn::layers::Conv2dConfig::new([1, 1], [3, 3]).init(&device);
    let Observing { module, .. } = observe(plain, &probe, &NameMap::torch()).unwrap();
    assert_eq!(module.weight.dims(), [1, 1, 3, 3]);
    let conv = |stride, dilation| burn::nn::conv::Conv2d {
        stride,
        dilation,
        ..burn::nn::conv::Conv2dConfig::new([1, 1], [3, 3]).init(&device)
    };
    let images = |side: usize| Tensor::<4>::ones([1, 1, side, side], &device);
    for (conv, side) in [(conv([1, 1], [1, 1]), 2), (conv([0, 1], [1, 1]), 5), (conv([1, 1], [1, 9]), 5)] {
        let error = probe.observe_conv("c", &images(side), &conv).unwrap_err();
        assert!(error.to_string().contains("expected at least a patch of [3, 3]"), "{error}");
    }
    probe.observe_conv("c", &images(3), &conv([1, 1], [1, 1])).unwrap();
    assert_eq!(probe.stats()["c"].count, 1);
}

#[test]
fn layers_too_deep_for_kernels_stay_floats_and_are_listed() {
    #[derive(Module, Debug)]
    struct Wide {
        wide: Linear,
        small: Linear,
    }
    let device = Device::flex();
    let wide =
        || Wide { wide: LinearConfig::new(65_537, 1).init(&device), small: LinearConfig::new(8, 8).init(&device) };
    let quantized = quantize_dynamic(wide(), &DynamicSpec::new()).unwrap();
    assert_eq!(quantized.left["wide.weight"], "it has 65537 inputs, int8 kernels support at most 65536");
    let warning = quantized.warning().unwrap();
    assert!(warning.contains("not quantized: wide.weight (it has 65537 inputs"), "{warning}");
    assert_eq!(quantized.held["int8"].paths, ["small.weight"]);
}

//! Tests of scales that are trained while codes stay.

use briquette_formats::Checkpoint;
use briquette_nn::layers::{Linear, LinearConfig};
use briquette_nn::{
    Compression, Export, NameMap, Patterns, Quantize, load_compressed, load_into, scale_factors, train_scales,
};
use burn::module::{Module, ParamGroup};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor, Tolerance};
use std::path::Path;

/// Writes a layer of 16 inputs and 3 outputs with codes of a scheme, and opens it.
fn quantized(scheme: &str, directory: &Path) -> Checkpoint {
    let layer = LinearConfig::new(16, 3).init(&Device::flex());
    let rules = Compression::new().quantize(Quantize::new("weight", scheme).unwrap());
    let path = directory.join(scheme);
    Export::to(&path).write(&rules.attach(layer).unwrap()).unwrap();
    Checkpoint::open(&path).unwrap()
}

fn layer(device: &Device) -> Linear {
    LinearConfig::new(16, 3).init(device)
}

fn no_patterns() -> Patterns {
    Patterns::new::<&str>([]).unwrap()
}

#[test]
fn inputs_are_rounded_as_by_the_kernels_and_only_scales_learn() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, device) = (Device::flex(), Device::flex().autodiff());
    for (scheme, n_scales) in [("int8-dynamic", 3), ("int4-g8", 6), ("int4-g8-dynamic", 6), ("int8", 3)] {
        let checkpoint = quantized(scheme, dir.path());
        let names = NameMap::torch();
        let floats = load_into(layer(&device), &checkpoint, &names).unwrap();
        let mut trained = train_scales(floats.clone(), &checkpoint, &names, &no_patterns()).unwrap();
        trained = trained.set_require_grad_group(ParamGroup::from_paths(vec!["weight", "bias"]), false);
        let codes = load_compressed(layer(&plain), &checkpoint, &names).unwrap();
        let x = Tensor::<2>::random([5, 16], Distribution::Normal(0.0, 1.0), &plain);
        let (ours, kernels) = (trained.valid().forward(x.clone()), codes.forward(x.clone()));
        ours.into_data().assert_approx_eq::<f32>(&kernels.into_data(), Tolerance::absolute(1e-5));

        let loss = trained.forward(Tensor::from_inner(x)).powf_scalar(2.0).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &trained);
        let trained = SgdConfig::new().init().step(1e-3, trained, grads);
        let factors = &scale_factors(&trained).unwrap()["weight"];
        assert_eq!(factors.len(), n_scales, "{scheme}");
        assert!(factors.iter().all(|factor| *factor != 1.0 && (factor - 1.0).abs() < 0.5), "{scheme}: {factors:?}");
        assert_eq!(trained.bias.unwrap().val().into_data(), floats.bias.unwrap().val().into_data());
        // A row, or a group of a row, is multiplied by its factor.
        let [before, after] = [floats.weight.val(), trained.weight.val()].map(|weight| weight.transpose());
        let [before, after] = [before, after].map(|weight| weight.into_data().try_to_vec::<f32>().unwrap());
        for (place, (before, after)) in before.iter().zip(&after).enumerate() {
            let factor = factors[place * n_scales / 48];
            assert!((after - before * factor).abs() <= 1e-6 * before.abs(), "{scheme} at {place}");
        }
    }
}

#[test]
fn frozen_and_missing_codes_leave_nothing_to_train() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = quantized("int8", dir.path());
    let device = Device::flex().autodiff();
    let names = NameMap::torch();
    let floats = load_into(layer(&device), &checkpoint, &names).unwrap();
    let frozen = Patterns::new(["weight"]).unwrap();
    let error = train_scales(floats.clone(), &checkpoint, &names, &frozen).unwrap_err().to_string();
    assert!(error.contains("found no tensor with codes"), "{error}");
    let path = dir.path().join("floats");
    Export::to(&path).write(&floats).unwrap();
    let error = train_scales(floats, &Checkpoint::open(&path).unwrap(), &names, &no_patterns()).unwrap_err();
    assert_eq!(error.exit_code(), 2);
}

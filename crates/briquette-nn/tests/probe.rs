//! Tests input statistics.

use crate::fixture::values;
use briquette_core::ErrorKind;
use briquette_nn::Probe;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2dConfig;
use burn::tensor::{Device, Distribution, Tensor};

#[test]
fn input_sums_match_a_reference_and_round_trip() {
    let (device, probe, dir) = (Device::flex(), Probe::with_gram(), tempfile::tempdir().unwrap());
    let batches = [3, 5].map(|n| Tensor::<3>::random([2, n, 4], Distribution::Normal(0.0, 1.0), &device));
    let shared = probe.clone();
    batches.iter().for_each(|batch| shared.observe("encoder.0.query", batch).unwrap());
    let stats = &probe.stats()["encoder.0.query"];
    assert_eq!(stats.count, 16);
    let all: Vec<f32> = batches.into_iter().flat_map(values).collect();
    for i in 0..4 {
        for j in 0..4 {
            let expected: f64 = all.chunks(4).map(|x| f64::from(x[i]) * f64::from(x[j])).sum();
            assert!((stats.gram.as_ref().unwrap()[4 * i + j] - expected).abs() < 1e-4);
            assert!(i != j || (stats.sum_squares[i] - expected).abs() < 1e-4);
        }
    }
    let path = dir.path().join("stats.safetensors");
    probe.write(&path, None).unwrap();
    assert_eq!(Probe::read(&path).unwrap(), probe.stats());
    let error = probe.observe("encoder.0.query", &Tensor::<2>::ones([1, 5], &device)).unwrap_err();
    assert_eq!(error.to_string(), "encoder.0.query: found 5 inputs, expected 4 as in earlier batches");
    let error = probe.observe("x", &Tensor::<2>::full([1, 5], f32::NAN, &device)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused);
}

#[test]
fn convolution_inputs_are_in_the_order_of_the_weight_columns() {
    let (device, probe) = (Device::flex(), Probe::with_gram());
    let conv = Conv2dConfig::new([3, 6], [3, 3]).with_padding(PaddingConfig2d::Same).with_bias(false).init(&device);
    let x = Tensor::<4>::random([2, 3, 5, 5], Distribution::Normal(0.0, 1.0), &device);
    probe.observe_conv("conv", &x, &conv).unwrap();
    let stats = &probe.stats()["conv"];
    assert_eq!((stats.count, stats.sum_squares.len()), (50, 27));
    // Σ y² of an output is wᵀ G w.
    let (weight, outputs) = (values(conv.weight.val()), values(conv.forward(x)));
    let gram = stats.gram.as_ref().unwrap();
    for out in 0..6 {
        let w = &weight[27 * out..27 * (out + 1)];
        let quadratic: f64 = (0..27 * 27).map(|k| f64::from(w[k / 27]) * gram[k] * f64::from(w[k % 27])).sum();
        let energy: f64 = (0..2)
            .flat_map(|n| outputs[(n * 6 + out) * 25..(n * 6 + out + 1) * 25].iter())
            .map(|y| f64::from(*y).powi(2))
            .sum();
        assert!((quadratic / energy - 1.0).abs() < 1e-3, "{quadratic} {energy}");
    }
    let grouped = Conv2dConfig::new([4, 4], [3, 3]).with_groups(2).init(&device);
    assert_eq!(
        probe.observe_conv("g", &Tensor::ones([1, 4, 5, 5], &device), &grouped).unwrap_err().kind,
        ErrorKind::Config
    );
}

//! Tests input statistics.

use crate::fixture::values;
use briquette_core::ErrorKind;
use briquette_formats::input_stats::StatisticsFile;
use briquette_nn::Probe;
use briquette_nn::module::PatchShape;
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
    let error = probe.observe_conv("g", &Tensor::ones([1, 5, 5, 5], &device), &grouped).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Config);
}

#[test]
fn each_channel_group_has_the_statistics_of_its_own_patches() {
    let device = Device::flex();
    // Groups, channels of a group, kernel, stride, and extents of the image. The last has many chunks of groups.
    let cases = [
        (2, 3, 3, 1, [7, 5]),
        (4, 1, 3, 2, [9, 9]),
        (3, 2, 1, 1, [4, 4]),
        (6, 1, 5, 1, [6, 8]),
        (8, 1, 3, 1, [160, 96]),
    ];
    for (groups, per, kernel, stride, [height, width]) in cases {
        let channels = groups * per;
        let conv = Conv2dConfig::new([channels, 2 * channels], [kernel; 2]).with_groups(groups);
        let conv = conv.with_stride([stride; 2]).with_padding(PaddingConfig2d::Explicit(1, 0, 1, 2)).init(&device);
        let batches =
            [2, 1].map(|n| Tensor::<4>::random([n, channels, height, width], Distribution::Normal(0.5, 1.0), &device));
        let probes = [Probe::with_gram(), Probe::with_gram(), Probe::new()];
        let keeping = probes[1].keeping();
        for batch in &batches {
            probes[0].observe_conv("conv", batch, &conv).unwrap();
            keeping.observe_conv("conv", batch, &conv).unwrap();
            probes[2].observe_conv("conv", batch, &conv).unwrap();
        }
        probes[1].take_in(&keeping).unwrap();
        let found = &probes[0].stats()["conv"];
        assert_eq!(found, &probes[1].stats()["conv"]);
        // Each group alone, as a convolution without groups.
        let n_inputs = per * kernel * kernel;
        assert_eq!(found.n_groups(n_inputs), groups);
        for group in 0..groups {
            let alone = Probe::with_gram();
            let shape = PatchShape {
                kernel: [kernel; 2],
                stride: [stride; 2],
                padding: [[1, 1], [0, 2]],
                dilation: [1; 2],
                groups: 1,
            };
            for batch in &batches {
                alone.observe_patches("conv", &batch.clone().narrow(1, group * per, per), shape).unwrap();
            }
            let (expected, found) = (&alone.stats()["conv"], found.of_group(group, n_inputs));
            assert_eq!((found.count, &found.max), (expected.count, &expected.max));
            let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + b.abs()));
            assert!(close(&found.sum, &expected.sum) && close(&found.sum_squares, &expected.sum_squares));
            assert!(close(found.gram.as_ref().unwrap(), expected.gram.as_ref().unwrap()), "group {group} of {groups}");
            let without = probes[2].stats()["conv"].of_group(group, n_inputs);
            assert!(without.gram.is_none() && close(&without.sum, &expected.sum));
        }
    }
}

#[test]
fn a_dense_convolution_shares_no_matrix_with_a_grouped_one() {
    let (device, probe) = (Device::flex(), Probe::with_gram());
    let x = Tensor::<4>::random([2, 4, 5, 5], Distribution::Normal(0.0, 1.0), &device);
    let shape = |groups| PatchShape { kernel: [3; 2], stride: [1; 2], padding: [[1; 2]; 2], dilation: [1; 2], groups };
    for (layer, groups) in [("depthwise", 4), ("dense", 1), ("pairs", 2), ("again", 1)] {
        probe.observe_patches(layer, &x, shape(groups)).unwrap();
    }
    let stats = probe.take_stats();
    let n_elements = ["depthwise", "dense", "pairs", "again"].map(|layer| stats[layer].gram.as_ref().unwrap().len());
    assert_eq!(n_elements, [4 * 81, 36 * 36, 2 * 18 * 18, 36 * 36]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stats.safetensors");
    StatisticsFile { layers: stats.clone(), ..Default::default() }.write(&path).unwrap();
    assert_eq!(Probe::read(&path).unwrap(), stats);
}

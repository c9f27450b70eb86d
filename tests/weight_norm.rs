//! Weight norms: the weight that a layer computes after its direction was pruned and quantized.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of, tensors_of};
use std::collections::BTreeMap;
use std::path::Path;

/// The names of directions and lengths in newer and older files.
const NAMES: [(&str, &str); 3] = [
    ("conv.parametrizations.weight.original1", "conv.parametrizations.weight.original0"),
    ("conv.weight_v", "conv.weight_g"),
    ("lstm.weight_hh_l0_v", "lstm.weight_hh_l0_g"),
];

/// Shapes of directions, and the axis along which each index has a length.
const SHAPES: [(&[usize], usize); 5] =
    [(&[16, 12, 5], 0), (&[12, 8, 4], 2), (&[24, 10], 0), (&[6, 4, 3, 3], 1), (&[40, 1, 3], 0)];

/// Returns the index of each element along an axis.
fn places(shape: &[usize], axis: usize) -> Vec<usize> {
    let stride: usize = shape[axis + 1..].iter().product();
    (0..shape.iter().product()).map(|place| place / stride % shape[axis]).collect()
}

/// Returns directions whose norms differ by up to a factor of 1,000, so that their magnitudes alone mean
/// nothing.
fn directions(name: &str, shape: &[usize], axis: usize, seed: u64) -> Tensor {
    let values = Tensor::random(name, shape, seed).floats();
    let scale = |norm: usize| 10.0_f32.powi((norm % 4) as i32 - 2);
    let scaled = values.iter().zip(places(shape, axis)).map(|(value, norm)| value * scale(norm));
    Tensor::f32(name, shape, scaled)
}

fn lengths(name: &str, shape: &[usize], axis: usize, seed: u64) -> Tensor {
    let mut own = vec![1; shape.len()];
    own[axis] = shape[axis];
    let values = Tensor::random(name, &own, seed).floats();
    Tensor::f32(name, &own, values.into_iter().map(|value| value + 1.5 * value.signum()))
}

/// Returns the weight that a layer computes: `g·v/‖v‖`.
fn weight(tensors: &BTreeMap<String, Tensor>, (v, g): (&str, &str), axis: usize) -> Vec<f64> {
    let (v, g) = (&tensors[v], tensors[g].floats());
    let places = places(&v.shape, axis);
    let mut squares = vec![0.0_f64; g.len()];
    v.floats().iter().zip(&places).for_each(|(&value, &norm)| squares[norm] += f64::from(value).powi(2));
    let of = |(&value, &norm): (&f32, &usize)| f64::from(g[norm]) * f64::from(value) / squares[norm].sqrt();
    v.floats().iter().zip(&places).map(of).collect()
}

/// Writes a model of one weight norm, and returns its tensors.
fn model(sandbox: &Sandbox, (v, g): (&str, &str), shape: &[usize], axis: usize) -> BTreeMap<String, Tensor> {
    let tensors = [directions(v, shape, axis, 1), lengths(g, shape, axis, 2), Tensor::random("fc.weight", &[8, 8], 3)];
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
}

/// Checks that no pruned magnitude exceeds a kept one; the largest of each norm is ignored.
fn check_smallest_dropped(before: &[f64], after: &[f64], places: &[usize]) {
    let mut largest: BTreeMap<usize, f64> = BTreeMap::new();
    before.iter().zip(places).for_each(|(value, &norm)| {
        let most = largest.entry(norm).or_default();
        *most = most.max(value.abs());
    });
    let pairs = || before.iter().zip(after).zip(places).map(|((&before, &after), norm)| (before.abs(), after, norm));
    let dropped = pairs().filter(|(_, after, _)| *after == 0.0).map(|(before, ..)| before).fold(0.0, f64::max);
    let kept = pairs().filter(|(before, after, norm)| *after != 0.0 && *before < largest[norm]);
    let kept = kept.map(|(before, ..)| before).fold(f64::INFINITY, f64::min);
    assert!(kept >= dropped * (1.0 - 1e-6), "{kept} is kept, {dropped} dropped");
}

#[test]
fn pruned_directions_keep_the_largest_weights_of_a_layer() {
    for names in NAMES {
        for (shape, axis) in SHAPES {
            let sandbox = Sandbox::new();
            let before = model(&sandbox, names, shape, axis);
            for (out, what) in [("each", ""), ("all", "--scope global"), ("dense", "--format dense")] {
                sandbox.ok(&format!("compress m.safetensors -o {out} --prune 0.5 {what}"));
                sandbox.ok(&format!("verify {out} --against m.safetensors"));
                let after = tensors_of(&sandbox.path(out));
                let (was, is) = (weight(&before, names, axis), weight(&after, names, axis));
                let places = places(shape, axis);
                for (was, is) in was.iter().zip(&is) {
                    assert!(
                        is.is_finite() && (*is == 0.0 || (was - is).abs() < 1e-6),
                        "{names:?} {shape:?}: {was} {is}"
                    );
                }
                check_smallest_dropped(&was, &is, &places);
                if what != "--scope global" {
                    let n_zeros = is.iter().filter(|value| **value == 0.0).count();
                    assert_eq!(n_zeros, is.len() / 2, "{names:?} {shape:?}");
                }
                let kept = before[names.0].floats().into_iter().zip(after[names.0].floats());
                kept.filter(|(_, is)| *is != 0.0).for_each(|(was, is)| assert_eq!(was, is));
            }
        }
    }
}

#[test]
fn every_norm_keeps_a_weight_at_any_sparsity() {
    for (shape, axis) in SHAPES {
        let sandbox = Sandbox::new();
        let before = model(&sandbox, NAMES[0], shape, axis);
        let text = sandbox.ok(&format!("compress m.safetensors -o out --prune 0.995 --include {}", NAMES[0].0)).stdout;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let after = tensors_of(&sandbox.path("out"));
        let (was, is) = (weight(&before, NAMES[0], axis), weight(&after, NAMES[0], axis));
        let mut n_kept: BTreeMap<usize, usize> = BTreeMap::new();
        for ((was, is), norm) in was.iter().zip(&is).zip(places(shape, axis)) {
            assert!(is.is_finite() && (*is == 0.0 || (was - is).abs() < 1e-6), "{shape:?}: {was} {is}");
            *n_kept.entry(norm).or_default() += usize::from(*is != 0.0);
        }
        assert!(n_kept.values().all(|&n| n == 1), "{shape:?}: {n_kept:?}");
        assert!(text.contains("keeps more weights than the recipe sets"), "{text}");
        sandbox.ok("compress m.safetensors -o all --prune 0.99 --scope global");
        let all = tensors_of(&sandbox.path("all"));
        assert!(weight(&all, NAMES[0], axis).iter().all(|value| value.is_finite()));
        sandbox.ok("verify all --against m.safetensors");
    }
}

#[test]
fn quantized_and_pruned_directions_stay_near_the_pruned_weights() {
    for (shape, axis) in [SHAPES[0], SHAPES[2]] {
        let sandbox = Sandbox::new();
        let before = model(&sandbox, NAMES[1], shape, axis);
        for (out, what) in
            [("both", "--prune 0.5 --quantize int8"), ("coded", "--prune 0.5 --quantize int8 --storage entropy")]
        {
            sandbox.ok(&format!("compress m.safetensors -o {out} {what}"));
            sandbox.ok(&format!("verify {out} --against m.safetensors"));
            let (was, is) = (weight(&before, NAMES[1], axis), weight(&tensors_of(&sandbox.path(out)), NAMES[1], axis));
            for (was, is) in was.iter().zip(&is).filter(|(_, is)| **is != 0.0) {
                assert!((was - is).abs() < 0.02, "{out} {shape:?}: {was} {is}");
            }
        }
        sandbox.ok("compress m.safetensors -o rounded --quantize int8");
        assert_eq!(
            tensors_of(&sandbox.path("rounded"))[NAMES[1].1],
            before[NAMES[1].1],
            "quantization changes a length"
        );
    }
}

#[test]
fn directions_that_round_to_zero_are_refused() {
    let sandbox = Sandbox::new();
    let values = (0..64).map(|i| if i < 32 { 1.0 + i as f32 } else { 1e-4 });
    let tensors = [Tensor::f32("c.weight_v", &[2, 8, 4], values), Tensor::random("c.weight_g", &[2, 1, 1], 1)];
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    sandbox
        .run("compress m.safetensors -o out --quantize step0.25-tensor")
        .assert_fails(6, &["c.weight_v", "round to 0"]);
    assert!(!sandbox.path("out").exists());
    sandbox.ok("compress m.safetensors -o out --quantize int8");
}

#[test]
fn equal_lengths_of_different_directions_are_not_tied() {
    let sandbox = Sandbox::new();
    let lengths = |name: &str| Tensor::f32(name, &[16, 1, 1], (0..16).map(|i| 1.0 + i as f32));
    let tensors = [
        Tensor::random("a.weight_v", &[16, 4, 3], 1),
        Tensor::random("b.weight_v", &[16, 4, 3], 2),
        Tensor::random("c.weight_v", &[16, 4, 3], 2),
        lengths("a.weight_g"),
        lengths("b.weight_g"),
        lengths("c.weight_g"),
    ];
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    let before: BTreeMap<String, Tensor> = tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    sandbox.ok("compress m.safetensors -o out --prune 0.5");
    sandbox.ok("verify out --against m.safetensors");
    check_equal(&before, &sandbox.path("out"), &["a", "b", "c"]);
}

fn check_equal(before: &BTreeMap<String, Tensor>, out: &Path, layers: &[&str]) {
    let after = tensors_of(out);
    for layer in layers {
        let (v, g) = (format!("{layer}.weight_v"), format!("{layer}.weight_g"));
        let names = (v.as_str(), g.as_str());
        for (was, is) in weight(before, names, 0).iter().zip(weight(&after, names, 0)) {
            assert!(is == 0.0 || (was - is).abs() < 1e-6, "{layer}: {was} {is}");
        }
    }
}

#[test]
fn directions_without_lengths_are_skipped_and_named() {
    let sandbox = Sandbox::new();
    let tensors = [Tensor::random("c.weight_v", &[4, 8, 4], 1), Tensor::random("fc.weight", &[4, 8], 2)];
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    let text = sandbox.ok("compress m.safetensors -o out --prune 0.5").stdout;
    assert!(text.contains("c.weight_v"), "{text}");
    assert_eq!(tensors_of(&sandbox.path("out"))["c.weight_v"], tensors[0]);
}

#[test]
fn directions_of_nan_lengths_are_skipped_if_allowed() {
    let sandbox = Sandbox::new();
    let g = Tensor::f32("c.weight_g", &[4, 1, 1], [1.0, f32::NAN, 1.0, 1.0]);
    let tensors = [Tensor::random("c.weight_v", &[4, 8, 4], 1), g, Tensor::random("fc.weight", &[4, 8], 2)];
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    sandbox.run("compress m.safetensors -o out --prune 0.5").assert_fails(6, &["c.weight_g", "NaN"]);
    for scope in ["layer", "global"] {
        sandbox.ok(&format!("compress m.safetensors -o {scope} --prune 0.5 --scope {scope} --allow-nonfinite"));
        let after = tensors_of(&sandbox.path(scope));
        assert_eq!(after["c.weight_v"], tensors[0]);
        assert_eq!(after["c.weight_g"].bytes, tensors[1].bytes);
    }
}

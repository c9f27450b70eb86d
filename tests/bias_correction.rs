//! Bias correction: chosen, written, verified, resumed and refused.
#![cfg(feature = "model")]

use crate::onnx_static::digits;
use crate::sandbox::{copy, repository};
use crate::weights::{Tensor, stored_tensors_of, tensors_of};
use std::collections::BTreeMap;

const DATA: &str = "--data digits-data.safetensors --samples 64";

/// Returns the vector that shifts the outputs of a layer, and the sign of its change.
type VectorOf<'a> = &'a dyn Fn(&str) -> (String, f64);

/// Returns the mean error of each output of a layer: `Σ_i (ŵ[o,i] - w[o,i])·mean(x[i])`, in the groups of its statistics.
fn mean_errors(
    layer: &str,
    [before, after]: [&BTreeMap<String, Tensor>; 2],
    stats: &BTreeMap<String, Tensor>,
) -> Vec<f64> {
    let weight = format!("{layer}.weight");
    let [old, new] = [before, after].map(|tensors| tensors[&weight].floats());
    let eight = |bytes: &Tensor| bytes.bytes.as_chunks::<8>().0.to_vec();
    let count = i64::from_le_bytes(eight(&stats[&format!("{layer}.count")])[0]) as f64;
    let sums: Vec<f64> = eight(&stats[&format!("{layer}.sum")]).into_iter().map(f64::from_le_bytes).collect();
    let n_out = before[&weight].shape[0];
    let n_cols = old.len() / n_out;
    let n_groups = sums.len() / n_cols;
    let error = |out: usize| {
        let of_group = &sums[out / (n_out / n_groups) * n_cols..][..n_cols];
        let weights = (out * n_cols..(out + 1) * n_cols).map(|at| f64::from(new[at]) - f64::from(old[at]));
        weights.zip(of_group).map(|(change, sum)| change * sum / count).sum()
    };
    (0..n_out).map(error).collect()
}

/// Checks that a vector changed by the mean errors of its layer.
fn check(vector: &str, sign: f64, errors: &[f64], [before, after]: [&BTreeMap<String, Tensor>; 2]) {
    let [old, new] = [before, after].map(|tensors| tensors[vector].floats());
    assert!(errors.iter().any(|error| error.abs() > 1e-6), "{vector}: nothing to correct");
    for ((old, new), error) in old.iter().zip(&new).zip(errors) {
        let expected = f64::from(*old) + sign * error;
        assert!((f64::from(*new) - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{vector}: {new}, not {expected}");
    }
}

#[test]
fn biases_and_means_of_batch_norms_take_up_the_mean_error() {
    let sandbox = digits();
    copy(&repository().join("fixtures/models/resnet18-tiny.pth"), &sandbox.path("resnet18-tiny.pth"));
    copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
    let of_resnet = |layer: &str| match layer {
        "fc" => ("fc.bias".to_string(), -1.0),
        layer => (format!("{}.running_mean", layer.replace("downsample.0", "downsample.1").replace("conv", "bn")), 1.0),
    };
    let of_digits = |layer: &str| (format!("{layer}.bias"), -1.0);
    for (model, data, n, vector_of) in [
        ("digits", DATA, 4, &of_digits as VectorOf),
        ("resnet18-tiny.pth", "--data images --arch resnet18", 21, &of_resnet),
    ] {
        sandbox.ok(&format!("calibrate {model} {data} -o stats --quiet --force"));
        let stats = stored_tensors_of(&sandbox.path("stats"));
        for scheme in ["int8-dynamic", "int4-g9 --range mse --prune 0.3"] {
            sandbox.ok(&format!("compress {model} -o plain --quantize {scheme} --quiet --force"));
            let line =
                format!("compress {model} -o out --quantize {scheme} --bias-correction --statistics stats --force");
            let printed = sandbox.ok(&line).stdout;
            assert!(printed.contains(&format!("Bias correction: {n} of {n} layers")), "{model}: {printed}");
            sandbox.ok("verify out");
            let [before, plain, after] = [model, "plain", "out"].map(|model| tensors_of(&sandbox.path(model)));
            let layers = stats.keys().filter_map(|name| name.strip_suffix(".count"));
            let vectors: BTreeMap<String, (f64, &str)> = layers
                .map(|layer| (vector_of(layer), layer))
                .map(|((name, sign), layer)| (name, (sign, layer)))
                .collect();
            assert_eq!(vectors.len(), n, "{vectors:?}");
            for (name, tensor) in &after {
                match vectors.get(name) {
                    Some((sign, layer)) => {
                        check(name, *sign, &mean_errors(layer, [&before, &after], &stats), [&before, &after]);
                    }
                    None => assert_eq!(tensor, &plain[name], "{name}"),
                }
            }
        }
    }
}

#[test]
fn a_run_with_data_gives_the_bytes_of_one_with_statistics_after_a_kill_too() {
    let sandbox = digits();
    sandbox.ok(&format!("calibrate digits {DATA} -o stats --quiet"));
    let flags = "--bias-correction --quiet --force";
    let weights = |out: &str| std::fs::read(sandbox.path(&format!("{out}/model.briquette.safetensors"))).unwrap();
    for scheme in ["int4", "int4 --round gptq"] {
        let flags = format!("--quantize {scheme} {flags}");
        sandbox.ok(&format!("compress digits -o once {flags} {DATA} --threads 1"));
        let unit = sandbox.path("out.stages/1-solved/statistics.safetensors");
        let mut child = sandbox.command(&format!("compress digits -o out {flags} {DATA} --threads 3")).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && !unit.exists() {}
        child.kill().unwrap();
        child.wait().unwrap();
        sandbox.ok(&format!("compress digits -o out {flags} {DATA} --threads 3"));
        assert!(weights("out") == weights("once"), "{scheme}");
    }
    sandbox.ok(&format!("compress digits -o out --quantize int4 {flags} --statistics stats"));
    sandbox.ok(&format!("compress digits -o once --quantize int4 {flags} {DATA}"));
    assert!(weights("out") == weights("once"), "statistics are those of the data");
}

#[test]
fn fixed_grids_types_and_formats_take_corrected_biases() {
    let sandbox = digits();
    let eval = |out: &str| {
        let document = sandbox.json(&format!("eval {out} --against digits --data digits-data.safetensors --threads 1"));
        document["metrics"]["kl"].as_f64().unwrap()
    };
    sandbox.ok(&format!("compress digits -o static --quantize int8-static --bias-correction {DATA} --quiet"));
    sandbox.ok("verify static");
    assert!(eval("static") < 0.01, "{}", eval("static"));
    sandbox.ok(&format!("compress digits -o half --quantize int4 --cast f16 --bias-correction {DATA} --quiet"));
    sandbox.ok("verify half");
    sandbox.ok("compress digits -o plain --quantize int4 --quiet");
    assert!(eval("half") < eval("plain"), "{} after {}", eval("half"), eval("plain"));
    for (form, flags) in [("entropy", "--to briquette --storage entropy"), ("dense", "--to dense")] {
        sandbox.ok(&format!("export half {flags} -o {form} --quiet"));
        assert_eq!(tensors_of(&sandbox.path(form)), tensors_of(&sandbox.path("half")), "{form}");
    }
}

#[test]
fn runs_without_statistics_and_trainings_refuse_it_in_one_line() {
    let sandbox = digits();
    let compress = "compress digits -o out --bias-correction";
    sandbox
        .run(&format!("{compress} --quantize int8"))
        .assert_fails(2, &["statistics: missing; bias_correction needs layer inputs"]);
    sandbox.run(&format!("{compress} {DATA}")).assert_fails(2, &["--quantize"]);
    let recipe = "[model]\npath = \"digits\"\n[output]\npath = \"out\"\n[data]\ntrain = \"digits-data.safetensors\"\n\
                  [calibration]\ndata = \"digits-data.safetensors\"\n[[stage]]\nkind = \"distill\"\nquantization_aware = true\n\
                  epochs = 1\n[[stage]]\nkind = \"quantize\"\nscheme = \"int8-dynamic\"\nbias_correction = true\n";
    sandbox.write("recipe.toml", recipe);
    sandbox
        .run("run recipe.toml")
        .assert_fails(2, &["quantization_aware: the training fits biases to rounded weights"]);
}

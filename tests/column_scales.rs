//! Scales of columns beside codes: chosen, written, read, run and exported.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use serde_json::Value;

const FLAGS: &str = "--quantize int8-dynamic --column-scales --statistics stats --quiet --force";

/// Returns a model whose second channel is large after the first norm of each block, with its statistics.
fn with_outliers(model: &str) -> Sandbox {
    let sandbox = Sandbox::with(&format!("models/{model}"));
    for file in ["text.txt", "sentences.txt"] {
        sandbox.write(file, std::fs::read(repository().join("fixtures/models").join(file)).unwrap());
    }
    let mut tensors = tensors_of(&sandbox.path(model));
    for (name, tensor) in &mut tensors {
        let is_norm = name.ends_with("attention.output.LayerNorm.weight") || name.ends_with("input_layernorm.weight");
        let reads = ["intermediate.dense.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight"];
        let n_cols = tensor.shape[tensor.shape.len() - 1];
        if is_norm || reads.iter().any(|end| name.ends_with(end)) {
            let mut values = tensor.floats();
            let change = |value: &mut f32| if is_norm { *value *= 60.0 } else { *value /= 60.0 };
            let step = if is_norm { values.len() } else { n_cols };
            values.iter_mut().skip(1).step_by(step).for_each(change);
            *tensor = Tensor::f32(name, &tensor.shape, values);
        }
    }
    let tensors: Vec<Tensor> = tensors.into_values().collect();
    sandbox.write(&format!("{model}/model.safetensors"), safetensors_of(&tensors));
    sandbox.ok(&format!("calibrate {model} --data {} --max-length 32 -o stats --gram --quiet", data_of(model)));
    sandbox
}

fn data_of(model: &str) -> &'static str {
    if model.starts_with("bert") { "sentences.txt" } else { "text.txt" }
}

fn evaluated(sandbox: &Sandbox, model: &str, out: &str) -> Value {
    sandbox.json(&format!("eval {out} --data {} --max-length 32 --against {model} --threads 1", data_of(model)))
}

/// Returns the distance of outputs from those of the original model.
fn error(document: &Value) -> f64 {
    let metrics = &document["metrics"];
    metrics["cosine"].as_f64().map(|cosine| 1.0 - cosine).or(metrics["kl"].as_f64()).unwrap()
}

/// Returns the version of the format of `out`, and how many of its tensors have scales of columns.
fn version_and_columns(sandbox: &Sandbox) -> (u64, usize) {
    let manifest: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/briquette.json")).unwrap()).unwrap();
    let has_columns = |entry: &&Value| entry["coding"]["codes"]["column_scale"] == true;
    let n = manifest["tensors"].as_object().unwrap().values().filter(has_columns).count();
    (manifest["version"].as_u64().unwrap(), n)
}

#[test]
fn large_inputs_lose_less_and_all_forms_of_the_output_agree() {
    for model in ["bert-tiny", "llama-tied"] {
        let sandbox = with_outliers(model);
        sandbox.ok(&format!("compress {model} -o plain --quantize int8-dynamic --quiet"));
        sandbox.ok(&format!("compress {model} -o out {FLAGS}"));
        sandbox.ok("verify out");
        let (plain, found) = (evaluated(&sandbox, model, "plain"), evaluated(&sandbox, model, "out"));
        assert!(error(&found) < 0.5 * error(&plain), "{model}: {} after {}", error(&found), error(&plain));
        let held = |document: &Value| document["after"]["held"]["int8"]["n_tensors"].as_u64().unwrap();
        assert_eq!(held(&found), held(&plain), "{model}: the same layers multiply integers");
        let (version, n) = version_and_columns(&sandbox);
        assert!(version == 7 && n >= 12, "{model}: {version}, {n}");
        // The same values in other forms.
        for (form, flags) in [("entropy", "--to briquette --storage entropy"), ("dense", "--to dense")] {
            sandbox.ok(&format!("export out {flags} -o {form} --quiet"));
            assert_eq!(tensors_of(&sandbox.path(form)), tensors_of(&sandbox.path("out")), "{model} {form}");
        }
        assert_eq!(error(&evaluated(&sandbox, model, "entropy")), error(&found), "{model}");
        sandbox.ok("export entropy --to briquette --storage auto -o again --quiet");
        let weights = |out: &str| std::fs::read(sandbox.path(&format!("{out}/model.briquette.safetensors"))).unwrap();
        assert!(weights("again") == weights("out"), "{model}");
        sandbox.ok(&format!("compress {model} -o threads {FLAGS} --threads 3"));
        assert!(weights("threads") == weights("out"), "{model}");
    }
}

#[test]
fn every_scheme_and_method_of_linear_layers_takes_scales_of_columns() {
    let sandbox = with_outliers("bert-tiny");
    for flags in [
        "--quantize int8",
        "--quantize int4-g8",
        "--quantize int4-g8-dynamic",
        "--quantize int8-dynamic-sym --range weighted",
        "--quantize int5-g8-asym --range mse",
        "--quantize step0.01-dynamic",
        "--quantize int8-dynamic --prune 0.6",
        "--quantize int4-g8 --prune 0.5 --prune-method wanda",
        "--quantize int8-dynamic --round gptq",
        "--quantize int4-g8 --round gptq --prune 0.5 --prune-method sparsegpt",
    ] {
        sandbox.ok(&format!("compress bert-tiny -o out {flags} --column-scales --statistics stats --quiet --force"));
        sandbox.ok("verify out");
        sandbox.ok("export out --to dense -o dense --quiet --force");
        assert_eq!(tensors_of(&sandbox.path("dense")), tensors_of(&sandbox.path("out")), "{flags}");
        // Outputs of codes are those of their values, apart from rounded inputs.
        let [codes, values] = ["out", "dense"].map(|out| error(&evaluated(&sandbox, "bert-tiny", out)));
        assert!((codes - values).abs() < 0.02 * values + 0.002, "{flags}: {codes} and {values}");
    }
}

#[test]
fn updated_weights_follow_the_data_and_a_killed_run_gives_the_same_bytes() {
    let sandbox = with_outliers("bert-tiny");
    let recipe = "[model]\npath = \"bert-tiny\"\n[output]\npath = \"out\"\n[calibration]\ndata = \"sentences.txt\"\nmax_length = 32\n\
                  [[stage]]\nkind = \"quantize\"\nscheme = \"int4-g8-dynamic\"\nround = \"gptq\"\ncolumn_scales = true\n\
                  roles = [\"linear\"]\n";
    sandbox.write("recipe.toml", recipe);
    sandbox.ok("run recipe.toml --device cpu --quiet");
    let weights = || std::fs::read(sandbox.path("out/model.briquette.safetensors")).unwrap();
    let (whole, found) = (weights(), error(&evaluated(&sandbox, "bert-tiny", "out")));
    std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    let unit = sandbox.path("out.stages/1-solved/statistics.safetensors");
    let mut child = sandbox.command("run recipe.toml --device cpu --quiet").spawn().unwrap();
    while child.try_wait().unwrap().is_none() && !unit.exists() {}
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(unit.exists(), "the run ended before its statistics");
    sandbox.ok("run recipe.toml --device cpu --quiet");
    assert!(weights() == whole);
    sandbox.write("recipe.toml", recipe.replace("column_scales = true\n", ""));
    sandbox.ok("run recipe.toml --device cpu --quiet --force");
    let plain = error(&evaluated(&sandbox, "bert-tiny", "out"));
    assert!(found < plain, "{found} after {plain}");
}

#[test]
fn a_budget_with_int8_inputs_takes_scales_of_columns() {
    let sandbox = with_outliers("bert-tiny");
    let budget = "compress bert-tiny --bits 5 --data sentences.txt --max-length 32 --quiet";
    sandbox.ok(&format!("{budget} -o plain --quantize step-dynamic"));
    for (flags, has_columns) in [("step-dynamic", true), ("step-dynamic --experimental trellis", true), ("step", false)]
    {
        let report = sandbox.json(&format!("{budget} -o out --quantize {flags} --column-scales --force"));
        sandbox.ok("verify out");
        let [found, most] =
            ["/after/file_bytes", "/allocation/most_bytes"].map(|key| report.pointer(key).unwrap().as_u64());
        assert!(found <= most, "{flags}: {report}");
        assert_eq!(version_and_columns(&sandbox).1 >= 12, has_columns, "{flags}");
        if flags == "step-dynamic" {
            let [plain, scaled] = ["plain", "out"].map(|out| error(&evaluated(&sandbox, "bert-tiny", out)));
            assert!(scaled < 0.9 * plain, "{scaled} after {plain}");
        }
    }
}

#[test]
fn settings_without_scales_of_columns_are_refused_in_one_line() {
    let sandbox = with_outliers("bert-tiny");
    let before = sandbox.files("");
    let compress = "compress bert-tiny -o out --column-scales";
    let cases = [
        (format!("{compress} --quantize int8"), 2, "statistics: missing; column_scales needs layer inputs"),
        (format!("{compress} --statistics stats"), 2, "--quantize"),
        (
            format!("{compress} --quantize int4-g8 --reconstruct signround --data sentences.txt"),
            2,
            "signround does not learn with them",
        ),
        (
            format!("{compress} --quantize int8-dynamic --format compressed-tensors --statistics stats"),
            2,
            "the format does not support scales of columns",
        ),
    ];
    for (line, code, phrase) in cases {
        sandbox.run(&line).assert_fails(code, &[phrase]);
    }
    assert_eq!(sandbox.files(""), before, "nothing was written");
    // A format for other programs gets floats.
    sandbox.ok(&format!("compress bert-tiny -o codes {FLAGS}"));
    sandbox.ok("export codes --to compressed-tensors --allow-untested -o other --quiet");
    assert_eq!(tensors_of(&sandbox.path("other")), tensors_of(&sandbox.path("codes")));
}

//! Methods that use calibration data: block by block, resumed, and within a memory limit.
#![cfg(feature = "model")]

use crate::memory_limit::peak_of;
use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use briquette::formats::input_stats::StatisticsFile;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;

/// Creates a tiny Llama, and text for calibration and evaluation.
fn llama(model: &str) -> Sandbox {
    let sandbox = Sandbox::with(&format!("models/{model}"));
    let text = std::fs::read_to_string(repository().join("fixtures/models/text.txt")).unwrap();
    sandbox.write("text.txt", text.repeat(8));
    sandbox
}

fn bert() -> Sandbox {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    sandbox
}

const GPTQ: &str = "[[stage]]\nkind = \"quantize\"\nscheme = \"int4-g8\"\nround = \"gptq\"\nroles = [\"linear\"]\n";
const SPARSEGPT: &str = "[[stage]]\nkind = \"prune\"\nmethod = \"sparsegpt\"\nsparsity = 0.5\nroles = [\"linear\"]\n";

/// Returns a recipe that is calibrated on the sandbox's text.
fn recipe(model: &str, calibration: &str, stages: &str) -> String {
    let exclude = if model == "bert-tiny" { "exclude = [\"pooler.**\"]\n" } else { "" };
    let stages = stages.replace("roles = [\"linear\"]\n", &format!("roles = [\"linear\"]\n{exclude}"));
    format!(
        "[model]\npath = \"{model}\"\n[output]\npath = \"out\"\n[calibration]\ndata = \"text.txt\"\nmax_length = 16\n{calibration}\n{stages}"
    )
}

/// Returns the output errors of each layer with updated weights, before and after the update.
fn errors(report: &Value) -> Vec<(String, f64, f64)> {
    let tensors = report["tensors"].as_array().unwrap().iter().filter(|tensor| !tensor["solved"].is_null());
    let of = |tensor: &Value, key: &str| tensor["solved"][key].as_f64().unwrap();
    tensors
        .map(|tensor| (tensor["name"].as_str().unwrap().into(), of(tensor, "outputs_unmoved"), of(tensor, "outputs")))
        .collect()
}

#[test]
fn updated_weights_reduce_output_errors_and_stay_on_their_grids() {
    for (model, stages, n_updated) in [
        ("llama-tied", GPTQ.to_string(), 14),
        ("llama-untied", GPTQ.to_string(), 15),
        ("bert-tiny", GPTQ.to_string(), 12),
        ("llama-tied", SPARSEGPT.to_string(), 14),
        ("llama-tied", SPARSEGPT.replace("sparsity = 0.5", "pattern = \"2:4\"") + GPTQ, 14),
        ("llama-tied", SPARSEGPT.replace("\"sparsegpt\"", "\"admm\""), 14),
        ("bert-tiny", SPARSEGPT.replace("sparsity = 0.5", "scope = \"owl\"\nsparsity = 0.5"), 12),
    ] {
        let sandbox = if model == "bert-tiny" { bert() } else { llama(model) };
        sandbox.write("recipe.toml", recipe(model, "", &stages));
        let report = sandbox.json("run recipe.toml --device cpu");
        let errors = errors(&report);
        assert_eq!(errors.len(), n_updated, "{model}: {errors:?}");
        let sums = errors.iter().fold((0.0, 0.0), |sums, (_, before, after)| (sums.0 + before, sums.1 + after));
        assert!(sums.1 < 0.9 * sums.0, "{model} {stages}: {errors:?}");
        sandbox.ok("verify out");
        assert!(!sandbox.path("out.stages").exists());
        if stages.contains("sparsegpt") && model == "llama-tied" {
            let sparsity = |name: &str| {
                let tensors = report["tensors"].as_array().unwrap();
                tensors.iter().find(|tensor| tensor["name"] == name).unwrap()["sparsity"].as_f64().unwrap()
            };
            assert!((sparsity("model.layers.1.mlp.up_proj.weight") - 0.5).abs() < 0.05, "{report}");
        }
    }
}

/// Returns `a·(G + 0.01·mean(diag G)·I)·bᵀ`: GPTQ's damping.
fn damped_product(gram: &[f64], a: &[f32], b: &[f32]) -> f64 {
    let n = a.len();
    let added = 0.01 * (0..n).map(|i| gram[i * n + i]).sum::<f64>() / n as f64;
    let damped = |at: usize| gram[at] + if at / n == at % n { added } else { 0.0 };
    (0..n * n).map(|at| f64::from(a[at / n]) * damped(at) * f64::from(b[at % n])).sum()
}

#[test]
fn scales_of_rows_have_the_least_output_error_for_their_codes() {
    let sandbox = llama("llama-tied");
    sandbox.ok("calibrate llama-tied --data text.txt --max-length 16 --gram -o stats --device cpu");
    let stats = StatisticsFile::read(&sandbox.path("stats")).unwrap().layers;
    let before = tensors_of(&sandbox.path("llama-tied"));
    for flags in [
        "--quantize int3",
        "--quantize int4-g8",
        "--quantize int4-g8-asym",
        "--quantize step0.05",
        "--quantize int4 --prune 0.3 --prune-method sparsegpt",
    ] {
        sandbox.ok(&format!("compress llama-tied -o out {flags} --round gptq --statistics stats --force"));
        sandbox.ok("export out --to dense -o dense --force");
        let (mut n_rows, after) = (0, tensors_of(&sandbox.path("dense")));
        for (layer, stats) in stats.iter().filter(|(layer, stats)| layer.contains("layers.") && stats.count >= 512) {
            let (name, gram) = (format!("{layer}.weight"), stats.gram.as_ref().unwrap());
            let (weights, rounded) = (before[&name].floats(), after[&name].floats());
            for (weights, rounded) in weights.chunks(stats.n_inputs()).zip(rounded.chunks(stats.n_inputs())) {
                let factor = damped_product(gram, weights, rounded) / damped_product(gram, rounded, rounded);
                // Scales of steps are f16.
                assert!((factor - 1.0).abs() < 2e-3, "{flags}, {name}: {factor}");
                n_rows += 1;
            }
        }
        assert!(n_rows > 100, "{flags}: {n_rows}");
    }
}

/// Returns the number of finished units of a layerwise run: groups of layers of a block.
fn n_units(solved: &std::path::Path) -> usize {
    let is_unit = |name: String| name.starts_with("block-") && name.ends_with(".safetensors");
    let names = std::fs::read_dir(solved).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_str().is_some_and(|name| is_unit(name.into()))).count()
}

#[test]
fn a_killed_layerwise_run_resumes_at_its_block_and_gives_the_same_bytes() {
    let sandbox = llama("llama-untied");
    sandbox.write("recipe.toml", recipe("llama-untied", "", &format!("{SPARSEGPT}{GPTQ}")));
    sandbox.ok("run recipe.toml --device cpu --threads 2");
    let weights = || -> BTreeMap<String, Vec<u8>> {
        let is_weight = |name: &String| name.ends_with(".safetensors") || name.ends_with("briquette.json");
        sandbox.files("out").into_iter().filter(|(name, _)| is_weight(name)).collect()
    };
    let whole = weights();
    std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    // After a kill, the first group of layers is finished.
    let (mut kept, mut n) = (Vec::new(), 0);
    while kept.is_empty() && n < 40 {
        n += 1;
        let mut child = sandbox.command("run recipe.toml --device cpu --threads 1 --quiet").spawn().unwrap();
        let solved = sandbox.path("out.stages/1-solved");
        while child.try_wait().unwrap().is_none() && n_units(&solved) == 0 {}
        child.kill().unwrap();
        child.wait().unwrap();
        kept = std::fs::read_dir(&solved).map_or(Vec::new(), |found| found.filter_map(Result::ok).collect());
        if sandbox.path("out").exists() {
            std::fs::remove_dir_all(sandbox.path("out")).unwrap();
            kept.clear();
        }
    }
    assert!(!kept.is_empty(), "killed too late in {n} tries");
    sandbox.ok("run recipe.toml --device cpu --threads 1");
    assert_eq!(weights(), whole);
}

#[test]
fn a_stopped_layerwise_run_prints_what_it_keeps_and_how_to_resume() {
    let sandbox = llama("llama-untied");
    sandbox.write("recipe.toml", recipe("llama-untied", "", &format!("{SPARSEGPT}{GPTQ}")));
    let (mut n_kept, solved) = (0, sandbox.path("out.stages/1-solved"));
    for n_wanted in [0, 0, 1, 1, 1, 5] {
        let _ = std::fs::remove_dir_all(sandbox.path("out.stages"));
        let mut child = sandbox.command("run recipe.toml --device cpu --threads 1 --quiet").spawn().unwrap();
        let is_then = || match n_wanted {
            0 => sandbox.path("out.stages").exists(),
            n => n_units(&solved) >= n,
        };
        while child.try_wait().unwrap().is_none() && !is_then() {}
        if child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), Signal::INT).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        if output.status.code() == Some(0) {
            std::fs::remove_dir_all(sandbox.path("out")).unwrap();
            continue;
        }
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(130), 1), "{stderr}");
        match sandbox.path("out.stages").exists() {
            true => {
                let phrases = [
                    "no output was written; out.stages (",
                    " keeps ",
                    "finished layer group",
                    "run it again to resume",
                ];
                assert!(phrases.iter().all(|phrase| stderr.contains(phrase)), "{stderr}");
                n_kept += 1;
            }
            false => assert!(stderr.contains("nothing was written"), "{stderr}"),
        }
    }
    assert!(n_kept > 0, "no run was stopped after a block");
    sandbox.ok("run recipe.toml --device cpu --threads 1");
    assert!(!sandbox.path("out.stages").exists());
}

#[test]
fn statistics_and_non_sequential_data_give_the_same_output() {
    let sandbox = llama("llama-tied");
    sandbox.ok("calibrate llama-tied --data text.txt --max-length 16 --gram -o stats --device cpu");
    sandbox.write("data.toml", recipe("llama-tied", "sequential = false", GPTQ));
    let of_file =
        recipe("llama-tied", "", GPTQ).replace("data = \"text.txt\"\nmax_length = 16", "statistics = \"stats\"");
    sandbox.write("file.toml", of_file.replace("\"out\"", "\"of-file\""));
    sandbox.ok("run data.toml --device cpu");
    sandbox.ok("run file.toml");
    let (of_data, of_file) = (tensors_of(&sandbox.path("out")), tensors_of(&sandbox.path("of-file")));
    assert_eq!(of_data, of_file);
    sandbox.write("sequential.toml", recipe("llama-tied", "", GPTQ).replace("\"out\"", "\"sequential\""));
    sandbox.ok("run sequential.toml --device cpu");
    assert_ne!(tensors_of(&sandbox.path("sequential")), of_data, "the second block gets the outputs of the first");
    sandbox.ok("calibrate llama-tied --data text.txt --max-length 16 -o plain --device cpu");
    let line =
        "compress llama-tied -o never --quantize int4-g8 --round gptq --quantize-roles linear --statistics plain";
    sandbox.run(line).assert_fails(4, &["no Gram matrix", "--gram"]);
    assert!(!sandbox.path("never").exists() && !sandbox.path("never.stages/1-solved/unit-0000.safetensors").exists());
}

#[test]
fn wanda_and_weighted_ranges_use_data() {
    let sandbox = bert();
    let wanda = "[[stage]]\nkind = \"prune\"\nmethod = \"wanda\"\nsparsity = 0.5\nroles = [\"linear\"]\n";
    let weighted = "[[stage]]\nkind = \"quantize\"\nscheme = \"int4-g8\"\nrange = \"weighted\"\nroles = [\"linear\"]\n";
    let mut found = Vec::new();
    for (calibration, stages) in
        [("", wanda), ("sequential = true", wanda), ("", weighted), ("sequential = true", weighted)]
    {
        sandbox.write("recipe.toml", recipe("bert-tiny", calibration, stages));
        let report = sandbox.json("run recipe.toml --device cpu --force");
        let tensors = report["tensors"].as_array().unwrap();
        let query =
            tensors.iter().find(|tensor| tensor["name"] == "encoder.layer.0.attention.self.query.weight").unwrap();
        assert!(query["output_error"].as_f64().unwrap() > 0.0, "{query}");
        found.push(tensors_of(&sandbox.path("out")));
    }
    assert_ne!(found[0], found[1], "later blocks get the outputs of pruned blocks");
    assert_ne!(found[2], found[3]);
    let line = "compress bert-tiny -o flags --prune 0.5 --prune-method wanda --prune-roles linear --exclude pooler.** --data text.txt \
                --max-length 16 --device cpu";
    sandbox.ok(line);
    assert_eq!(tensors_of(&sandbox.path("flags")), found[0]);
}

#[test]
fn a_model_run_by_block_gives_the_same_outputs_as_whole() {
    for (sandbox, model) in [(llama("llama-untied"), "llama-untied"), (bert(), "bert-tiny")] {
        sandbox.ok(&format!("compress {model} -o small --quantize int8 --device cpu"));
        let metrics = |flags: &str| {
            let line = format!("eval small --against {model} --data text.txt --max-length 16 --device cpu {flags}");
            sandbox.json(&line)["metrics"].as_object().unwrap().clone()
        };
        let (whole, parts) = (metrics(""), metrics("--offload --memory-limit 100MB"));
        assert_eq!(whole.keys().collect::<Vec<_>>(), parts.keys().collect::<Vec<_>>());
        for (name, value) in &whole {
            let (whole, parts) = (value.as_f64().unwrap(), parts[name].as_f64().unwrap());
            assert!((whole - parts).abs() <= 1e-5 * whole.abs(), "{name}: {whole} and {parts}");
        }
    }
}

#[test]
fn a_layer_that_calibration_never_runs_is_named_and_uses_no_inputs() {
    let sandbox = bert();
    sandbox.ok("calibrate bert-tiny --data text.txt --max-length 16 --gram -o stats --device cpu");
    let wanda = SPARSEGPT.replace("sparsegpt", "wanda");
    let weighted = GPTQ.replace("round = \"gptq\"", "range = \"weighted\"");
    let owl = SPARSEGPT.replace("sparsity = 0.5", "scope = \"owl\"\nsparsity = 0.5");
    let cases = [
        (GPTQ, "rounded to nearest"),
        (SPARSEGPT, "pruned by magnitude"),
        (wanda.as_str(), "pruned by magnitude"),
        (weighted.as_str(), "rounded to nearest"),
        (owl.as_str(), "pruned by magnitude"),
    ];
    for (stages, how) in cases {
        for calibration in ["", "sequential = false", "statistics = \"stats\""] {
            let run = |exclude: &str| {
                let recipe = recipe("bert-tiny", calibration, stages).replace("exclude = [\"pooler.**\"]\n", exclude);
                let of_file = "data = \"text.txt\"\nmax_length = 16\n";
                let has_file = calibration.starts_with("statistics");
                sandbox.write("recipe.toml", if has_file { recipe.replace(of_file, "") } else { recipe });
                let report = sandbox.json("run recipe.toml --device cpu --force");
                (report["remarks"].to_string(), tensors_of(&sandbox.path("out")))
            };
            let ((said, found), (unsaid, expected)) = (run(""), run("exclude = [\"pooler.**\"]\n"));
            let line = format!("The calibration observed no inputs of pooler.dense: weights are {how}.");
            assert!(said.contains(&line) && !unsaid.contains("pooler"), "{stages} {calibration}: {said}");
            let differ: Vec<&String> = found.keys().filter(|name| found[*name] != expected[*name]).collect();
            assert_eq!(differ, ["pooler.dense.weight"], "{stages} {calibration}");
        }
    }
    // The result equals that of a run without data.
    sandbox.ok("compress bert-tiny -o nearest --quantize int4-g8 --quantize-roles linear");
    sandbox.ok("compress bert-tiny -o gptq --quantize int4-g8 --quantize-roles linear --round gptq --data text.txt --max-length 16 --device cpu");
    let pooler = |output: &str| tensors_of(&sandbox.path(output))["pooler.dense.weight"].clone();
    assert_eq!(pooler("gptq"), pooler("nearest"));
}

#[test]
fn runs_by_block_keep_their_memory_limit_or_refuse_it() {
    let sandbox = bert();
    let data = "--data text.txt --max-length 16 --device cpu";
    let lines = [
        format!("eval bert-tiny {data} --offload"),
        format!("calibrate bert-tiny {data} -o stats"),
        format!("compress bert-tiny {data} -o out --quantize int4-g8 --round gptq --quantize-roles linear"),
        format!("compress bert-tiny {data} -o out --bits 4"),
    ];
    for line in &lines {
        // Less than the weights of a block, and less than the process uses already.
        for limit in ["10kB", "100kB"] {
            let refused = sandbox.run(&format!("{line} --memory-limit {limit}"));
            refused.assert_fails(6, &["memory.limit", "expected at most", "raise the limit"]);
        }
        assert!(!sandbox.path("out").exists() && !sandbox.path("stats").exists());
    }
    let found = sandbox.json(&format!("{} --memory-limit 64MB", lines[0]));
    assert!(found["after"]["memory"][0]["peak_bytes"].as_u64().unwrap() < 64_000_000, "{found}");
    lines[1..].iter().for_each(|line| _ = sandbox.ok(&format!("{line} --memory-limit 64MB --offload --force --quiet")));
    let idle = sandbox.run("compress bert-tiny -o idle --quantize int8 --offload");
    idle.assert_fails(2, &["--offload: nothing runs the model", "--data"]);
    let digits = Sandbox::with("digits");
    copy(&repository().join("fixtures/digits-data.safetensors"), &digits.path("data.safetensors"));
    // A network without blocks runs as its entry and its exit.
    digits.ok("calibrate digits --data data.safetensors -o stats --offload --device cpu --quiet");
    assert!(digits.path("stats").exists());
}

#[test]
fn impossible_settings_are_refused_in_one_line_before_any_work() {
    let digits = Sandbox::with("digits");
    digits.write("text.txt", "some text");
    digits
        .run("compress digits -o out --quantize int4 --round gptq --data text.txt --device cpu")
        .assert_fails(4, &["text.txt: found text"]);
    digits.run("compress digits -o out --quantize int4 --data text.txt").assert_fails(2, &["--data", "--round gptq"]);
    digits
        .run("compress digits -o out --quantize int4 --round gptk --data text.txt")
        .assert_fails(2, &["did you mean \"gptq\""]);
}

/// Writes a model whose embeddings take 12.8 MB; the rest takes 0.1 MB.
fn with_many_words() -> Sandbox {
    let sandbox = bert();
    let mut tensors = tensors_of(&sandbox.path("bert-tiny"));
    let name = "embeddings.word_embeddings.weight";
    let n_before = tensors[name].shape[0];
    tensors.insert(name.into(), Tensor::random(name, &[100_000, 32], 1));
    let tensors: Vec<Tensor> = tensors.into_values().collect();
    sandbox.write("bert-tiny/model.safetensors", safetensors_of(&tensors));
    let config = std::fs::read_to_string(sandbox.path("bert-tiny/config.json")).unwrap();
    let [before, after] = [n_before, 100_000].map(|n| format!("\"vocab_size\": {n}"));
    assert!(config.contains(&before), "{config}");
    sandbox.write("bert-tiny/config.json", config.replace(&before, &after));
    sandbox
}

#[test]
fn the_peak_of_a_run_by_block_is_never_above_its_limit() {
    let sandbox = with_many_words();
    let data = "bert-tiny --data text.txt --max-length 16 --device cpu --offload --force --quiet --trace trace.json";
    let mut lines = vec![
        format!("calibrate {data} -o stats"),
        format!("calibrate {data} -o stats --gram"),
        format!("compress {data} -o out --quantize int4-g8 --round gptq"),
        format!("compress {data} -o out --prune 0.5 --prune-method sparsegpt --quantize int8"),
    ];
    lines.push(format!("eval {data}").replace("--force ", ""));
    for line in &lines {
        for (limit, fits) in [(4_000_000, false), (10_000_000, false), (23_000_000, true), (64_000_000, true)] {
            let outcome = sandbox.run(&format!("{line} --memory-limit {limit}B"));
            let trace = serde_json::from_slice(&std::fs::read(sandbox.path("trace.json")).unwrap()).unwrap();
            let peak = peak_of(&trace);
            assert!(peak <= limit, "{line}: {peak} bytes within {limit}: {}", outcome.stderr);
            assert_eq!(outcome.code, if fits { 0 } else { 6 }, "{line} within {limit}: {}", outcome.stderr);
        }
    }
}

//! Students of low rank, pruned while they train, and trained on several devices.
#![cfg(feature = "model")]

use crate::distill::{LAYERS, RECIPE, digits, of_sentences, sentences, sums};
use crate::weights::tensors_of;
use serde_json::Value;
use std::time::Duration;

/// Returns a recipe that factorizes the digits network, and distills it if `distills`.
fn factorized(rank: &str, distills: bool) -> String {
    let head = &RECIPE[..RECIPE.find("[[stage]]").unwrap()];
    let distill = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"logits\" }]\nepochs = 2\nlearning_rate = 2e-3\n";
    let distill = if distills { distill } else { "" };
    format!("{head}[[stage]]\nkind = \"factorize\"\n{rank}\n{distill}[[stage]]\nkind = \"evaluate\"\n")
}

#[test]
fn factorized_linear_layers_run_and_train() {
    let accuracy = |report: &Value| report["evaluation"]["metrics"]["accuracy"].as_f64().unwrap();
    let plain = digits(&factorized("energy = 0.5", false));
    let report = plain.json("run recipe.toml --threads 1");
    let fc1 = &report["factorized"][0];
    let rank = fc1["rank"].as_u64().unwrap() as usize;
    assert!(fc1["name"] == "fc1.weight" && fc1["energy"].as_f64().unwrap() >= 0.5 && rank < 69, "{fc1}");
    let tensors = tensors_of(&plain.path("out"));
    let shape = |name: &str| tensors[name].shape.clone();
    assert_eq!((shape("fc1.down.weight"), shape("fc1.weight")), (vec![rank, 512], vec![80, rank]));
    assert!(report["after"]["file_bytes"].as_u64().unwrap() < report["before"]["file_bytes"].as_u64().unwrap());
    assert!(report["notes"].to_string().contains(&format!("fc1.weight [80, 512] has rank {rank}")), "{report}");
    let untrained = accuracy(&report);
    plain.ok("verify out");
    plain.run("verify out --against digits").assert_fails(2, &["--against", "factors"]);
    // An output with factors can be compressed again, and its factors quantized.
    plain.write("again.toml", "[model]\npath = \"out\"\n[output]\npath = \"int8\"\n[data]\neval = \"digits-data.safetensors\"\n[[stage]]\nkind = \"quantize\"\nscheme = \"int8-dynamic\"\n[[stage]]\nkind = \"evaluate\"\n");
    let codes = plain.json("run again.toml --threads 1");
    assert!((accuracy(&codes) - untrained).abs() < 0.05, "{} and {untrained}", accuracy(&codes));

    let learned = digits(&factorized("energy = 0.5", true));
    let report = learned.json("distill recipe.toml --threads 1");
    assert!(accuracy(&report) > untrained + 0.05, "{untrained} and {}", accuracy(&report));
    assert_eq!(tensors_of(&learned.path("out"))["fc1.down.weight"].shape, [rank, 512]);
    let stages: Vec<&Value> = report["stage_bytes"].as_array().unwrap().iter().map(|part| &part["stage"]).collect();
    assert_eq!(stages, ["original", "factorize 1", "distill 2", "output"]);
}

#[test]
fn full_energy_keeps_the_classes_and_a_share_of_bytes_is_met() {
    let same = digits(&factorized("energy = 0.9999999\ninclude = [\"fc1.weight\"]", false));
    let report = same.json("run recipe.toml --threads 1");
    assert!(report["factorized"][0]["rank"].is_null(), "at full rank, two factors are larger than 80 x 512");
    assert!(report["notes"].to_string().contains("0 of 1 linear layers"));
    let half = digits(&factorized("bytes = 0.5", false));
    let report = half.json("run recipe.toml --threads 1");
    assert_eq!(report["factorized"][0]["rank"], 34);
    let tensors = tensors_of(&half.path("out"));
    let n: usize = ["fc1.weight", "fc1.down.weight"].iter().map(|name| tensors[*name].floats().len()).sum();
    assert_eq!(n, 34 * (80 + 512));
}

#[test]
fn every_linear_layer_of_an_encoder_can_be_factorized() {
    let sandbox = sentences();
    let recipe =
        of_sentences("out", "loss = [{ kind = \"embedding\" }, { kind = \"attention\", layers = [0, 1] }]", "");
    sandbox.write(
        "recipe.toml",
        recipe.replacen("[[stage]]", "[[stage]]\nkind = \"factorize\"\nbytes = 0.5\n[[stage]]", 1),
    );
    let report = sandbox.json("distill recipe.toml --threads 1");
    let layers = report["factorized"].as_array().unwrap();
    assert!(layers.iter().filter(|layer| layer["rank"].is_u64()).count() >= 12, "{layers:?}");
    let epochs = report["trained"][0]["epochs"].as_array().unwrap();
    let cosine = |epoch: usize| epochs[epoch]["metrics"]["cosine"].as_f64().unwrap();
    assert!(cosine(1) > cosine(0), "{} then {}", cosine(0), cosine(1));
    // A student with a subset of those layers keeps their factors.
    let of_layers = of_sentences("one", &format!("{LAYERS}loss = [{{ kind = \"embedding\" }}]"), "");
    sandbox.write("layers.toml", of_layers.replace("path = \"bert-tiny\"", "path = \"out\""));
    sandbox.ok("distill layers.toml --threads 1 --quiet");
    let tensors = tensors_of(&sandbox.path("one"));
    assert_eq!(tensors.keys().filter(|name| name.contains("query.down.weight")).count(), 1);
}

#[test]
fn impossible_factorizations_are_refused_in_one_line() {
    let cases: [(String, &[&str]); 7] = [
        (factorized("", false), &["stage 1 (factorize)", "energy: missing"]),
        (factorized("energy = 1.5", false), &["energy: found 1.5"]),
        (factorized("energy = 0.9\nbytes = 0.5", false), &["remove one"]),
        (factorized("enrgy = 0.9", false), &["unknown key \"enrgy\"", "did you mean \"energy\"?"]),
        (factorized("bytes = 0.5\nsparsity = 0.5", false), &["sparsity: a factorize stage has no such key"]),
        (factorized("bytes = 0.5\ninclude = [\"fc9.*\"]", false), &["fc9"]),
        (
            RECIPE.replace(
                "[[stage]]\nkind = \"distill\"",
                "[[stage]]\nkind = \"factorize\"\nbytes = 0.5\n[[stage]]\nkind = \"distill\"",
            ),
            &["put the factorize stage first"],
        ),
    ];
    for (recipe, phrases) in cases {
        let sandbox = digits(&recipe);
        sandbox.run("run recipe.toml --quiet").assert_fails(2, phrases);
        assert!(!sandbox.path("out").exists());
    }
}

/// Returns the recipe with gradual pruning during training instead of pruning before.
fn gradual(keys: &str) -> String {
    RECIPE
        .replace("[[stage]]\nkind = \"prune\"\nsparsity = 0.8\n", "")
        .replace("save_every = 5", &format!("save_every = 5\nprune = {{ {keys} }}"))
}

#[test]
fn gradual_pruning_resumes_to_the_same_output_after_a_kill() {
    let sandbox = digits(&gradual("sparsity = 0.8, scope = \"global\", begin = 0.2, end = 0.6, every = 3"));
    sandbox.ok("distill recipe.toml -o whole --threads 1 --quiet");
    let expected = sums(&sandbox, "whole");
    let tensors = tensors_of(&sandbox.path("whole"));
    let matrices = ["conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight"].map(|name| tensors[name].floats());
    let n: usize = matrices.iter().map(Vec::len).sum();
    let n_zeros = matrices.iter().flatten().filter(|w| **w == 0.0).count();
    assert!(n_zeros >= n * 8 / 10 && n_zeros < n * 85 / 100, "{n_zeros} of {n}");
    for after in [100, 200, 300, 450, 600] {
        let mut child = sandbox.command("distill recipe.toml --threads 1 --quiet").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after));
        child.kill().unwrap();
        child.wait().unwrap();
        sandbox.ok("distill recipe.toml --threads 1 --quiet --force");
        assert_eq!(sums(&sandbox, "out"), expected, "killed after {after} ms");
    }
}

#[test]
fn the_best_epoch_has_the_requested_sparsity() {
    // The first epoch ends before the target sparsity is reached, and would have the best accuracy.
    let recipe = gradual("sparsity = 0.98, schedule = \"linear\", begin = 0.6, end = 1.0, every = 1");
    let sandbox = digits(&recipe.replace("accuracy = 0.9 }", "accuracy = 0.0 }"));
    let report = sandbox.json("distill recipe.toml --threads 1");
    assert_eq!(report["trained"][0]["best_epoch"], 2);
    let accuracy = |epoch: usize| report["trained"][0]["epochs"][epoch]["metrics"]["accuracy"].as_f64().unwrap();
    assert!(accuracy(1) < accuracy(0), "{} then {}", accuracy(0), accuracy(1));
    let zeros = tensors_of(&sandbox.path("out"))["fc1.weight"].floats().iter().filter(|w| **w == 0.0).count();
    assert!(zeros >= 512 * 80 * 98 / 100, "{zeros}");
}

#[test]
fn gradually_pruned_weights_stay_zero_in_later_training() {
    let recipe = gradual("sparsity = 0.8, schedule = \"constant\", include = [\"fc1.*\"]");
    let again = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"logits\" }]\nlearning_rate = 1e-3\n[[stage]]\nkind = \"quantize\"";
    let sandbox = digits(&recipe.replace("[[stage]]\nkind = \"quantize\"", again));
    sandbox.ok("distill recipe.toml --threads 1 --quiet");
    let zeros = |name: &str| tensors_of(&sandbox.path("out"))[name].floats().iter().filter(|w| **w == 0.0).count();
    assert!(zeros("fc1.weight") >= 512 * 80 * 8 / 10, "{}", zeros("fc1.weight"));
    assert!(zeros("conv2.weight") < 16 * 32 * 9 / 4, "{}", zeros("conv2.weight"));
}

#[test]
fn impossible_schedules_are_refused_in_one_line() {
    let cases = [
        ("sparsty = 0.8", "did you mean \"sparsity\"?"),
        ("scope = \"layer\"", "prune.sparsity: missing"),
        ("sparsity = 1.8", "prune.sparsity: found 1.8"),
        (
            "sparsity = 0.8, schedule = \"qubic\"",
            "prune.schedule: found \"qubic\", expected one of cubic, linear, constant; did you mean",
        ),
        ("sparsity = 0.8, begin = 0.7, end = 0.2", "prune.end: found 0.2, before the begin"),
        ("sparsity = 0.8, every = 0", "prune.every: found 0"),
        ("sparsity = 0.8, include = [\"fc9.*\"]", "fc9"),
    ];
    for (keys, phrase) in cases {
        digits(&gradual(keys)).run("distill recipe.toml --quiet").assert_fails(2, &[phrase]);
    }
    let twice = RECIPE.replace("save_every = 5", "save_every = 5\nprune = { sparsity = 0.9 }");
    digits(&twice).run("distill recipe.toml --quiet").assert_fails(2, &["prune: an earlier stage prunes already"]);
}

#[test]
fn two_devices_match_one_and_resume_by_epoch_after_a_kill() {
    let recipe = RECIPE.replace("batch_size = 64", "batch_size = 32").replace("epochs = 2", "epochs = 4");
    let sandbox = digits(&recipe);
    let line = "distill recipe.toml --threads 1 --devices cpu,cpu";
    let report = sandbox.json(&format!("{line} -o whole"));
    let trained = &report["trained"][0];
    // 718 and 719 items, in batches of 32.
    assert_eq!(
        (&trained["n_steps"], &trained["batch_size"], &trained["at_once"]),
        (&92.into(), &64.into(), &32.into())
    );
    assert_eq!(trained["epochs"].as_array().unwrap().len(), 4);
    assert!(trained["curve"][91]["loss"].as_f64().unwrap() < trained["curve"][0]["loss"].as_f64().unwrap());
    let accuracy = report["evaluation"]["metrics"]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
    let zeros = tensors_of(&sandbox.path("whole"))["fc1.weight"].floats().iter().filter(|w| **w == 0.0).count();
    assert!(zeros >= 512 * 80 * 8 / 10, "{zeros}");
    // Killed after its first epoch, it resumes there and reaches the same accuracy.
    let mut child = sandbox.command(&format!("{line} --quiet")).spawn().unwrap();
    let state = sandbox.path("out.stages/1-training/last.json");
    while !state.exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let done = sandbox.run(line);
    assert!(done.code == 0 && done.stderr.contains("resumed from step"), "{}", done.stderr);
    let lines = std::fs::read_to_string(sandbox.path("out/metrics.jsonl")).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains("\"step\":{")).count(), 92);
    let again: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/report.json")).unwrap()).unwrap();
    let resumed = again["evaluation"]["metrics"]["accuracy"].as_f64().unwrap();
    assert!((resumed - accuracy).abs() < 0.03, "{resumed} and {accuracy}");
}

#[test]
fn gradual_pruning_and_gradient_accumulation_work_on_two_devices() {
    let recipe = gradual("sparsity = 0.8, schedule = \"linear\", end = 0.5, every = 2");
    let recipe = recipe.replace("batch_size = 64", "batch_size = 16\naccumulate = 2");
    let sandbox = digits(&recipe.replace("accuracy = 0.9 }", "accuracy = 0.8 }"));
    let report = sandbox.json("distill recipe.toml --threads 1 --devices cpu,cpu");
    assert_eq!(report["trained"][0]["n_steps"], 46);
    let zeros = tensors_of(&sandbox.path("out"))["fc1.weight"].floats().iter().filter(|w| **w == 0.0).count();
    assert!(zeros >= 512 * 80 * 8 / 10, "{zeros}");
}

#[test]
fn settings_unsupported_on_several_devices_are_refused_before_any_work() {
    let memory = |keys: &str| RECIPE.replace("batch_size = 64", keys);
    let cases = [
        (RECIPE.to_string(), "cpu,cuda:0", "--devices: found cpu,cuda:0, expected only CPUs or only GPUs"),
        (RECIPE.to_string(), "cpu,gpu", "--devices"),
        (RECIPE.to_string(), "cpu,cpu --device cpu", "found --device too"),
        (memory("batch_size = \"auto\""), "cpu,cpu", "memory.batch_size: \"auto\" is not supported on several devices"),
        (memory("limit = \"1GB\""), "cpu,cpu", "memory.limit"),
        (memory("dtype = \"bf16\""), "cpu,cpu", "memory.dtype"),
    ];
    for (recipe, devices, phrase) in cases {
        let sandbox = digits(&recipe);
        sandbox.run(&format!("distill recipe.toml --quiet --devices {devices}")).assert_fails(2, &[phrase]);
        assert!(!sandbox.path("out.stages").exists());
    }
}

//! Training by recipe: prune, distill with a fixed mask, quantize, gate; killed at any point and resumed.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::tensors_of;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

pub(crate) const RECIPE: &str = r#"
[model]
path = "digits"
[output]
path = "out"
[data]
train = "digits-data.safetensors"
eval = "digits-data.safetensors"
[memory]
batch_size = 64
[[stage]]
kind = "prune"
sparsity = 0.8
[[stage]]
kind = "distill"
loss = [{ kind = "logits", weight = 0.7 }, { kind = "labels", weight = 0.3 }]
epochs = 2
learning_rate = 1e-3
metric = "accuracy"
save_every = 5
[[stage]]
kind = "quantize"
scheme = "int8"
[[stage]]
kind = "evaluate"
[gate]
min = { accuracy = 0.9 }
"#;

pub(crate) fn digits(recipe: &str) -> Sandbox {
    let sandbox = Sandbox::with("digits");
    let data = "digits-data.safetensors";
    copy(&repository().join("fixtures").join(data), &sandbox.path(data));
    sandbox.write("recipe.toml", recipe);
    sandbox
}

/// Returns `SHA256SUMS` of an output, which must be equal for two runs of one recipe.
pub(crate) fn sums(sandbox: &Sandbox, output: &str) -> String {
    std::fs::read_to_string(sandbox.path(output).join("SHA256SUMS")).unwrap()
}

#[test]
fn one_recipe_prunes_distills_quantizes_and_passes_its_gate() {
    let sandbox = digits(RECIPE);
    let report = sandbox.json("distill recipe.toml --threads 1");
    let trained = &report["trained"][0];
    assert_eq!(trained["n_items"], 1437);
    assert_eq!(trained["n_steps"], 46);
    assert_eq!(trained["epochs"].as_array().unwrap().len(), 2);
    assert!(trained["curve"].as_array().unwrap().len() == 46 && trained["peak_bytes"].as_u64().unwrap() > 0);
    let stages: Vec<&str> =
        report["stage_bytes"].as_array().unwrap().iter().map(|part| part["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["original", "compress 1", "distill 1", "output"]);
    assert!(report["before"]["file_bytes"].as_u64().unwrap() > 4 * report["after"]["file_bytes"].as_u64().unwrap());
    // Pruning 80 % of each layer in one shot destroys the accuracy; training recovers it and keeps the zeros.
    assert!(report["evaluation"]["metrics"]["accuracy"].as_f64().unwrap() > 0.9);
    let zeros = tensors_of(&sandbox.path("out"))["fc1.weight"].floats().iter().filter(|w| **w == 0.0).count();
    assert!(zeros >= 512 * 80 * 8 / 10, "{zeros}");
    sandbox.ok("verify out");
    sandbox.run("verify out --against digits").assert_fails(2, &["--against", "were trained"]);
    assert!(!sandbox.path("out.stages").exists());
    let page = std::fs::read_to_string(sandbox.path("out/report.html")).unwrap();
    assert!(page.contains("The loss by step") && page.contains("epoch 2"));
    let text = sandbox.ok("report out").stdout;
    let headings = text.lines().find(|line| line.starts_with("evaluation")).unwrap();
    assert!(headings.ends_with("after") && text.contains("weights as sparse int8"), "{text}");
    let lines = std::fs::read_to_string(sandbox.path("out/metrics.jsonl")).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains("\"step\":{")).count(), 46);
    sandbox.run("distill recipe.toml").assert_fails(6, &["out", "--force"]);
}

#[test]
fn a_plan_lists_all_stages_and_writes_nothing() {
    let sandbox = digits(RECIPE);
    let plan = sandbox.ok("plan recipe.toml").stdout;
    assert!(plan.contains("80.0 %") && plan.contains("8-bit"), "{plan}");
    assert!(!sandbox.path("out.stages").exists());
}

#[test]
fn a_memory_limit_below_the_weights_is_refused_by_run_and_plan_before_any_writing() {
    let with = |limit: &str| RECIPE.replace("batch_size = 64", &format!("batch_size = 64\nlimit = \"{limit}\""));
    let sandbox = digits(&with("50kB"));
    let before = sandbox.files("");
    let refused = ["memory.limit", "train", "digits as teacher", "expected at most 50000"];
    for line in ["distill recipe.toml --quiet", "run recipe.toml --quiet", "plan recipe.toml --quiet"] {
        sandbox.run(line).assert_fails(6, &refused);
    }
    assert_eq!(sandbox.files(""), before, "no file is left behind");
    let plan = sandbox.run("plan recipe.toml");
    assert!(plan.code == 6 && plan.stdout.contains("limit 50.00 kB"), "{}", plan.stdout);

    // The weights fit, but the data or one item in training does not. The latter is measured. No file is left behind.
    // The memory in use depends on the processor's caches, so each limit is just above the sum that the last error names.
    let (mut limit, mut reasons) = (1_000_000, vec!["cannot read", "cannot decode the images", "for one item"]);
    for _ in 0..8 {
        let stages = with(&format!("{limit}B")).replace("[[stage]]\nkind = \"prune\"\nsparsity = 0.8\n", "");
        sandbox.write("recipe.toml", stages.replace("[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n", ""));
        let before = sandbox.files("");
        let refused = sandbox.run("distill recipe.toml --quiet");
        refused.assert_fails(6, &["memory.limit"]);
        assert_eq!(sandbox.files(""), before, "no file is left behind");
        reasons.retain(|why| !refused.stderr.contains(why));
        let Some((_, found)) = refused.stderr.split_once("found ") else { break };
        let numbers = found.split(' ').filter_map(|word| word.parse::<u64>().ok());
        limit = numbers.take(2).sum::<u64>() + 20_000;
    }
    assert!(reasons.is_empty(), "{reasons:?} were no reasons");

    sandbox.write("recipe.toml", with("1GB"));
    let needs = &sandbox.json("plan recipe.toml")["memory"];
    assert_eq!(needs["limit_bytes"], 1_000_000_000);
    let bytes = |at: usize| needs["runs"][at]["weights_bytes"].as_u64().unwrap();
    assert!(bytes(1) > 40_000 && bytes(0) == 2 * bytes(1), "the teacher is the original model: {needs}");
}

/// Returns the step of the last training checkpoint.
fn step_of(sandbox: &Sandbox) -> u64 {
    let state = std::fs::read(sandbox.path("out.stages/1-training/last.json")).unwrap_or_default();
    serde_json::from_slice::<Value>(&state).map_or(0, |state| state["step"].as_u64().unwrap())
}

#[test]
fn a_killed_training_run_resumes_to_the_same_output() {
    assert_resumes_to_the_same_output(&digits(RECIPE), &[0, 5, 20, 30]);
}

#[test]
fn a_killed_training_run_repeats_its_random_numbers() {
    let sandbox = sentences(); // of an encoder that drops out a tenth
    for memory in ["", "gradient_checkpointing = true"] {
        let recipe = of_sentences("out", "loss = [{ kind = \"embedding\" }]\nsave_every = 3", memory);
        // Enough steps that training is not finished when it is killed.
        sandbox.write(
            "recipe.toml",
            recipe.replace("epochs = 2", "epochs = 6").replacen(
                "[[stage]]",
                "[[stage]]\nkind = \"prune\"\nsparsity = 0.1\n[[stage]]",
                1,
            ),
        );
        assert_resumes_to_the_same_output(&sandbox, &[6, 21]);
    }
}

/// Checks that a training run killed after each of these steps resumes and gives the output of an undisturbed
/// run.
pub(crate) fn assert_resumes_to_the_same_output(sandbox: &Sandbox, steps: &[u64]) {
    sandbox.ok("distill recipe.toml -o whole --threads 1 --quiet --force");
    let expected = sums(sandbox, "whole");
    for &after in steps {
        let mut child = sandbox.command("distill recipe.toml --threads 1 --quiet --force").spawn().unwrap();
        while step_of(sandbox) < after {
            assert!(child.try_wait().unwrap().is_none(), "the run finished before step {after}");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let again = sandbox.run("distill recipe.toml --threads 1 --force");
        assert_eq!((again.code, sums(sandbox, "out")), (0, expected.clone()), "killed at step {after}");
        assert_eq!(again.stderr.contains("resumed from step"), after > 0, "{}", again.stderr);
    }
}

#[test]
fn a_failed_gate_keeps_the_old_output_and_the_trained_weights() {
    let sandbox = digits(RECIPE);
    sandbox.ok("distill recipe.toml --threads 1 --quiet");
    let before = sums(&sandbox, "out");
    sandbox.write("high.toml", RECIPE.replace("accuracy = 0.9 }", "accuracy = 0.9999 }"));
    let failed = sandbox.run("distill high.toml --threads 1 --quiet --force");
    failed.assert_fails(6, &["gate: accuracy is 0.9", "at least 0.9999"]);
    assert_eq!(sums(&sandbox, "out"), before);
    // The recipe with the lower gate has nothing left to train.
    let mut command = sandbox.command("distill recipe.toml --threads 1 --force");
    let output = command.stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success());
    assert!(!String::from_utf8(output.stderr).unwrap().contains("step"), "it trained again");
    assert_eq!(sums(&sandbox, "out"), before);
}

#[test]
fn a_changed_recipe_is_not_resumed() {
    let sandbox = digits(&RECIPE.replace("accuracy = 0.9 }", "accuracy = 0.9999 }"));
    sandbox.run("distill recipe.toml --threads 1 --quiet").assert_fails(6, &["gate"]);
    sandbox.write("other.toml", RECIPE.replace("epochs = 2", "epochs = 1").replace("= 0.9 }", "= 0.5 }"));
    let line = "distill other.toml --threads 1 --quiet";
    sandbox.run(line).assert_fails(6, &["out.stages", "epochs was 2 and is 1", "--force"]);
    sandbox.ok(&format!("{line} --force"));
}

#[test]
fn a_smaller_student_learns_from_labels_alone_and_from_a_teacher() {
    let recipe = |sizes: &str, loss: &str| {
        let head = &RECIPE[..RECIPE.find("[[stage]]").unwrap()];
        format!(
            "{head}[[stage]]\nkind = \"distill\"\nstudent = {{ hidden_size = 24, {sizes} }}\nepochs = 3\nlearning_rate = 3e-3\nloss = [{loss}]\n[[stage]]\nkind = \"evaluate\"\n"
        )
    };
    let cases = [
        ("conv_channels = [8, 8]", "{ kind = \"labels\", smoothing = 0.1 }"),
        ("conv_channels = [8, 16], separable = true", "{ kind = \"logits\", by = \"js\", temperature = 2 }"),
    ];
    for (sizes, loss) in cases {
        let sandbox = digits(&recipe(sizes, loss));
        let report = sandbox.json("run recipe.toml --threads 1");
        assert_eq!(report["trained"][0]["teacher"].is_null(), loss.contains("labels"));
        assert!(report["evaluation"]["metrics"]["accuracy"].as_f64().unwrap() > 0.7, "{loss}");
        let config: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/config.json")).unwrap()).unwrap();
        assert_eq!((&config["hidden_size"], &config["num_labels"]), (&24.into(), &10.into()));
    }
}

pub(crate) const LAYERS: &str = "student = \"layers\"\nn_layers = 1\nfreeze = [\"embeddings.word_embeddings.*\"]\n";

/// A tiny encoder, and sentences of the few words that its tokenizer knows.
pub(crate) fn sentences() -> Sandbox {
    let sandbox = Sandbox::with("models/bert-tiny");
    let words = ["the", "a", "cat", "dog", "mat", "sat", "ran", "on", "and", "cats", "zebra", "un"];
    let word = |at: usize, place: usize| words[(at * 31 + place * place * 7 + place) % 12];
    let line = |at: usize| {
        let picked: Vec<&str> = (0..4 + at % 9).map(|place| word(at, place)).collect();
        format!("The {}.", picked.join(" "))
    };
    let lines: Vec<String> = (0..96).map(line).collect();
    sandbox.write("train.txt", lines[..64].join("\n"));
    sandbox.write("eval.txt", lines[64..].join("\n"));
    sandbox
}

pub(crate) fn of_sentences(output: &str, keys: &str, memory: &str) -> String {
    format!(
        "[model]\npath = \"bert-tiny\"\n[output]\npath = \"{output}\"\n[data]\ntrain = \"train.txt\"\neval = \"eval.txt\"\n\
         max_length = 24\n[memory]\nbatch_size = 8\n{memory}\n[[stage]]\nkind = \"distill\"\nepochs = 2\nlearning_rate = 1e-3\n\
         metric = \"cosine\"\n{keys}\n[[stage]]\nkind = \"evaluate\"\n"
    )
}

#[test]
fn a_sentence_encoder_with_fewer_layers_learns_from_every_loss() {
    let sandbox = sentences();
    let all = "loss = [{ kind = \"embedding\" }, { kind = \"embedding\", by = \"similarity\" }, { kind = \"hidden\" }, \
               { kind = \"hidden\", by = \"cosine\", layers = \"last\" }, { kind = \"attention\", layers = [1] }, \
               { kind = \"attention\", by = \"values\", heads = 2 }]";
    let cases = [
        (all, ""),
        (all, "gradient_checkpointing = true"),
        ("loss = [{ kind = \"embedding\" }]", "cache_teacher = true\ndtype = \"bf16\""),
        ("loss = [{ kind = \"embedding\" }]", "accumulate = 2\ndtype = \"f16\""),
    ];
    for (loss, memory) in cases {
        sandbox.write("recipe.toml", of_sentences("out", &format!("{LAYERS}{loss}"), memory));
        let report = sandbox.json("distill recipe.toml --threads 1 --force");
        let epochs = report["trained"][0]["epochs"].as_array().unwrap();
        let cosine = |epoch: usize| epochs[epoch]["metrics"]["cosine"].as_f64().unwrap();
        assert!(cosine(1) > cosine(0), "{memory}: {} then {}", cosine(0), cosine(1));
        let config: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/config.json")).unwrap()).unwrap();
        assert_eq!(config["num_hidden_layers"], 1);
        assert_eq!(tensors_of(&sandbox.path("out")).keys().filter(|name| name.contains("query.weight")).count(), 1);
    }
}

#[test]
fn gradient_checkpointing_gives_the_same_weights() {
    let sandbox = sentences();
    let config = std::fs::read_to_string(sandbox.path("bert-tiny/config.json")).unwrap();
    sandbox.write("bert-tiny/config.json", config.replace("dropout_prob\": 0.1", "dropout_prob\": 0.0"));
    let keys = format!("{LAYERS}loss = [{{ kind = \"embedding\" }}, {{ kind = \"hidden\", weight = 0.5 }}]");
    let losses = |memory: &str| -> Vec<f64> {
        sandbox.write("recipe.toml", of_sentences("out", &keys, memory));
        let report = sandbox.json("distill recipe.toml --threads 1 --force");
        let curve = report["trained"][0]["curve"].as_array().unwrap();
        curve.iter().map(|point| point["loss"].as_f64().unwrap()).collect()
    };
    let (whole, by_layer) = (losses(""), losses("gradient_checkpointing = true"));
    assert!(whole.len() == 16 && whole[15] < whole[0], "{whole:?}");
    for (a, b) in whole.iter().zip(&by_layer) {
        assert!((a - b).abs() < 1e-4 * a.abs(), "{whole:?} and {by_layer:?}");
    }
}

#[test]
fn mismatched_layers_labels_vocabularies_and_tokenizers_are_named() {
    let sandbox = sentences();
    let embedding = "loss = [{ kind = \"embedding\" }]";
    let cases: [(String, &[&str]); 4] = [
        (format!("{LAYERS}loss = [{{ kind = \"hidden\", layers = [7] }}]"), &["found layer 7", "0 to 1"]),
        (format!("{LAYERS}loss = [{{ kind = \"labels\" }}]"), &["the data has no labels"]),
        (format!("{embedding}\nstudent = {{ vocab_size = 7 }}"), &["vocab_size", "the student has 7"]),
        (format!("{embedding}\nteacher = \"other\""), &["the tokenizers", "bert-tiny", "other", "differ"]),
    ];
    let tokenizer = std::fs::read_to_string(sandbox.path("bert-tiny/tokenizer.json")).unwrap();
    copy(&sandbox.path("bert-tiny"), &sandbox.path("other"));
    sandbox.write("other/tokenizer.json", tokenizer.replace("\"lowercase\": true", "\"lowercase\": false"));
    for (keys, phrases) in cases {
        sandbox.write("recipe.toml", of_sentences("bad", &keys, ""));
        sandbox.run("distill recipe.toml --quiet").assert_fails(2, phrases);
    }
}

#[test]
fn gradient_accumulation_half_precision_and_memory_limits_give_similar_results() {
    let accuracy = |memory: &str| {
        let sandbox = digits(&RECIPE.replace("batch_size = 64", memory));
        let report = sandbox.json("distill recipe.toml --threads 1");
        let at_once = report["trained"][0]["at_once"].as_u64().unwrap();
        (report["evaluation"]["metrics"]["accuracy"].as_f64().unwrap(), at_once, report)
    };
    let (whole, at_once, _) = accuracy("batch_size = 64");
    assert_eq!(at_once, 64);
    let bytes = |report: &Value, key: &str| report["trained"][0][key].as_u64().unwrap();
    let (_, _, roomy) = accuracy("batch_size = 64\nlimit = \"1GB\"");
    let predicted = bytes(&roomy, "predicted_peak_bytes");
    let (turns, at_once, report) = accuracy(&format!("batch_size = 64\nlimit = \"{}B\"", predicted * 3 / 4));
    assert!(at_once < 64 && bytes(&report, "batch_size") == 64, "{at_once}");
    assert!(bytes(&report, "peak_bytes") < predicted, "{} of {predicted}", bytes(&report, "peak_bytes"));
    assert!((whole - turns).abs() < 0.06, "{whole} and {turns}");
    let (accumulated, ..) = accuracy("batch_size = 32\naccumulate = 2\ngradient_checkpointing = true");
    assert!((whole - accumulated).abs() < 0.06, "{whole} and {accumulated}");
}

#[test]
fn untrainable_models_are_refused_in_one_line() {
    let stage = "loss = [{ kind = \"logits\", weight = 0.7 }, { kind = \"labels\", weight = 0.3 }]";
    let with = |to: &str| RECIPE.replace(stage, to);
    let data = "train = \"digits-data.safetensors\"";
    let cases: [(String, i32, &[&str]); 20] = [
        (with("loss = []"), 2, &["stage 2 (distill)", "loss: missing"]),
        (
            with("loss = [{ kind = \"logits\", temperature = 0 }]"),
            2,
            &["stage 2 (distill): loss.0.temperature: found 0"],
        ),
        (with("loss = [{ kind = \"logits\", weight = 0 }]"), 2, &["weights sum to 0"]),
        (with("loss = [{ kind = \"logit\" }]"), 2, &["did you mean \"logits\"?"]),
        (with("loss = [{ kind = \"labels\", temperature = 2.0 }]"), 2, &["temperature: a labels loss has no such key"]),
        (
            with("loss = [{ kind = \"labels\" }]\nlerning_rate = 1"),
            2,
            &["unknown key \"lerning_rate\"", "learning_rate"],
        ),
        (with("loss = [{ kind = \"embedding\" }]"), 2, &["\"embedding\"", "the student has no embeddings"]),
        (with("loss = [{ kind = \"labels\" }]\nstudent = \"layers\""), 2, &["n_layers: missing"]),
        (with("loss = [{ kind = \"labels\" }]\nstudent = \"layers\"\nn_layers = 1"), 2, &["has no layers"]),
        (with("loss = [{ kind = \"labels\" }]\nstudent = { num_labels = 7 }"), 2, &["num_labels", "7", "10"]),
        (with("loss = [{ kind = \"labels\" }]\nstudent = { hiden_size = 7 }"), 2, &["unknown size \"hiden_size\""]),
        (with("loss = [{ kind = \"labels\" }]\nfreeze = [\"conv9.*\"]"), 2, &["freeze", "conv9"]),
        (with("loss = [{ kind = \"labels\" }]\nfreeze = [\"**\"]"), 2, &["no tensor is left to train"]),
        (
            RECIPE.replace("metric = \"accuracy\"", "metric = \"perplexity\""),
            2,
            &["metric", "\"perplexity\"", "not measured"],
        ),
        (RECIPE.replace(data, ""), 2, &["data.train: missing"]),
        (RECIPE.replace(data, "train = \"nothing.npy\""), 4, &["nothing.npy"]),
        (RECIPE.replace("learning_rate = 1e-3", "learning_rate = 0"), 2, &["learning_rate: found 0"]),
        (RECIPE.replace("batch_size = 64", "limit = \"100kB\""), 6, &["memory.limit", "100000"]),
        (RECIPE.replace("sparsity = 0.8", "sparsity = 0.8\nepochs = 3"), 2, &["epochs: a prune stage has no such key"]),
        (
            RECIPE.replace("scheme = \"int8\"\n", "scheme = \"int8\"\n[[stage]]\nkind = \"distill\"\n"),
            2,
            &["loss: missing"],
        ),
    ];
    for (recipe, code, phrases) in cases {
        let sandbox = digits(&recipe);
        sandbox.run("distill recipe.toml --quiet").assert_fails(code, phrases);
        assert!(!sandbox.path("out").exists());
    }
}

#[test]
fn distill_refuses_a_recipe_without_training() {
    let sandbox = digits("[model]\npath = \"digits\"\n[output]\npath = \"out\"\n");
    sandbox.run("distill recipe.toml").assert_fails(2, &["no distill stage", "briquette run"]);
}

//! Killed training runs resume with the metrics of an undisturbed run; damaged checkpoints are refused.
#![cfg(feature = "model")]

use crate::distill::{RECIPE, digits, sums};
use crate::sandbox::{Sandbox, copy};
use serde_json::Value;
use std::time::Duration;

/// Steps per epoch: 1,437 images in batches of 64.
const STEPS: u64 = 23;
const WORK: &str = "out.stages/1-training";

fn recipe(save_every: u64) -> String {
    RECIPE.replace("save_every = 5", &format!("save_every = {save_every}")).replace("epochs = 2", "epochs = 3")
}

/// Returns the state of the last training checkpoint, or null without one.
fn state(sandbox: &Sandbox) -> Value {
    let bytes = std::fs::read(sandbox.path(&format!("{WORK}/last.json"))).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Starts a training run and kills it once its checkpoint meets the condition; returns false if it finished
/// before.
fn kill_once(sandbox: &Sandbox, is_then: impl Fn(&Value) -> bool) -> bool {
    let mut child = sandbox.command("distill recipe.toml --threads 1 --quiet --force").spawn().unwrap();
    while !is_then(&state(sandbox)) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    true
}

/// Returns the lines of an output's metrics, without times.
fn metrics(sandbox: &Sandbox, output: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(sandbox.path(&format!("{output}/metrics.jsonl"))).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.iter_mut().filter_map(|line| line.get_mut("step")).for_each(|step| step["seconds"] = Value::Null);
    lines
}

/// Returns the parts of a report on training and tensors, without times and memory.
fn training_report(sandbox: &Sandbox, output: &str) -> Value {
    let bytes = std::fs::read(sandbox.path(&format!("{output}/report.json"))).unwrap();
    let mut report: Value = serde_json::from_slice(&bytes).unwrap();
    for key in ["seconds", "wall_seconds", "peak_bytes"] {
        report["trained"][0][key] = Value::Null;
    }
    let keys = ["stages", "before", "after", "tensors", "gone", "trained", "stage_bytes", "remarks"];
    let metrics = report["evaluation"]["metrics"].take();
    let mut kept: serde_json::Map<String, Value> =
        keys.iter().map(|key| ((*key).into(), report[*key].take())).collect();
    kept.insert("metrics".into(), metrics);
    Value::Object(kept)
}

/// Resumes and compares the output with the one of an undisturbed run.
fn assert_resumes_as_undisturbed(sandbox: &Sandbox, what: &str) {
    let again = sandbox.run("distill recipe.toml --threads 1 --force");
    assert_eq!((again.code, sums(sandbox, "out")), (0, sums(sandbox, "whole")), "{what}: {}", again.stderr);
    assert_eq!(metrics(sandbox, "out"), metrics(sandbox, "whole"), "{what}");
    assert_eq!(training_report(sandbox, "out"), training_report(sandbox, "whole"), "{what}");
    let epochs: Vec<u64> = metrics(sandbox, "out").iter().filter_map(|line| line["epoch"]["epoch"].as_u64()).collect();
    assert_eq!(epochs, [1, 2, 3], "each epoch has one line");
}

#[test]
fn the_mean_loss_of_a_resumed_epoch_covers_all_its_steps() {
    let sandbox = digits(&recipe(5));
    sandbox.ok("distill recipe.toml -o whole --threads 1 --quiet");
    for step in [5, 20, 30, 45] {
        assert!(
            kill_once(&sandbox, |state| state["step"].as_u64() >= Some(step)),
            "the run finished before step {step}"
        );
        assert_resumes_as_undisturbed(&sandbox, &format!("killed at step {step}"));
    }
}

#[test]
fn a_run_killed_at_the_end_of_an_epoch_records_the_epoch_once() {
    let sandbox = digits(&recipe(STEPS));
    sandbox.ok("distill recipe.toml -o whole --threads 1 --quiet");
    // During evaluation, the checkpoint of the last step exists and the one of the epoch does not.
    let is_between = |state: &Value| state["step_of_epoch"].as_u64() == Some(STEPS);
    let mut n_between = 0;
    for _ in 0..12 {
        if !kill_once(&sandbox, is_between) {
            continue;
        }
        n_between += usize::from(is_between(&state(&sandbox)));
        assert_resumes_as_undisturbed(&sandbox, "killed before the end of the epoch");
    }
    assert!(n_between > 0, "no kill came between the last step and the end of the epoch");
}

#[test]
fn a_damaged_checkpoint_is_refused_and_force_starts_again() {
    let sandbox = digits(&recipe(5));
    sandbox.ok("distill recipe.toml -o whole --threads 1 --quiet");
    assert!(kill_once(&sandbox, |state| state["step"].as_u64() >= Some(25)));
    copy(&sandbox.path("out.stages"), &sandbox.path("kept"));
    let restore = || {
        let _ = std::fs::remove_dir_all(sandbox.path("out.stages"));
        copy(&sandbox.path("kept"), &sandbox.path("out.stages"));
    };
    let step = state(&sandbox)["step"].as_u64().unwrap();
    let [model, optimizer] = ["model", "optimizer"].map(|kind| format!("step-{step}.{kind}.bpk"));
    let flipped = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let place = bytes.len() * 2 / 3;
        bytes[place] ^= 4;
        bytes
    };
    let cut = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    type Damage<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let cases: [(&str, Damage); 5] =
        [(&model, &flipped), (&optimizer, &flipped), (&model, &cut), ("last.json", &flipped), ("last.json", &cut)];
    for (name, damage) in cases {
        restore();
        let path = sandbox.path(&format!("{WORK}/{name}"));
        std::fs::write(&path, damage(&std::fs::read(&path).unwrap())).unwrap();
        let line = "distill recipe.toml --threads 1 --quiet";
        sandbox.run(line).assert_fails(4, &[name, "start anew with --force"]);
        assert_resumes_as_undisturbed(&sandbox, &format!("{name} was damaged"));
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
    restore();
    sandbox.write("out.stages/recipe.json", "{\"model\": ");
    sandbox.run("distill recipe.toml --threads 1 --quiet").assert_fails(4, &["recipe.json", "--force"]);
    assert_resumes_as_undisturbed(&sandbox, "recipe.json was damaged");
}

#[test]
fn a_damaged_finished_stage_is_not_used() {
    let high = recipe(5).replace("accuracy = 0.9 }", "accuracy = 0.9999 }");
    let sandbox = digits(&high);
    sandbox.run("distill recipe.toml --threads 1 --quiet").assert_fails(6, &["gate"]);
    sandbox.write("recipe.toml", recipe(5));
    sandbox.ok("distill recipe.toml -o whole --threads 1 --quiet");
    copy(&sandbox.path("out.stages"), &sandbox.path("kept"));
    for part in ["1-compress", "1-distill"] {
        let _ = std::fs::remove_dir_all(sandbox.path("out.stages"));
        copy(&sandbox.path("kept"), &sandbox.path("out.stages"));
        let path = sandbox.path(&format!("out.stages/{part}/model.briquette.safetensors"));
        let mut bytes = std::fs::read(&path).unwrap();
        let place = bytes.len() - 100;
        bytes[place] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let line = "distill recipe.toml --threads 1 --quiet";
        sandbox.run(line).assert_fails(4, &[part, "model.briquette.safetensors", "--force"]);
        assert_resumes_as_undisturbed(&sandbox, part);
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
}

#[test]
fn damaged_teacher_outputs_are_computed_again() {
    let sandbox = digits(&recipe(5).replace("batch_size = 64", "batch_size = 64\ncache_teacher = true"));
    sandbox.ok("distill recipe.toml -o whole --threads 1 --quiet");
    assert!(kill_once(&sandbox, |state| state["step"].as_u64() >= Some(10)));
    let path = sandbox.path(&format!("{WORK}/teacher.safetensors"));
    let mut bytes = std::fs::read(&path).unwrap();
    let place = bytes.len() - 9;
    bytes[place] ^= 64;
    std::fs::write(&path, bytes).unwrap();
    assert_resumes_as_undisturbed(&sandbox, "the teacher's outputs were damaged");
}

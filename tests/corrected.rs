//! Weights that are corrected for the errors of the layers before them.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};
use serde_json::Value;

fn recipe(calibration: &str, stages: &str) -> String {
    format!(
        "[model]\npath = \"bert-tiny\"\n[output]\npath = \"out\"\n[calibration]\ndata = \"text.txt\"\nmax_length = 16\n{calibration}\n\
         [data]\neval = \"text.txt\"\nmax_length = 16\n{stages}[[stage]]\nkind = \"evaluate\"\n"
    )
}

const GPTQ: &str = "[[stage]]\nkind = \"quantize\"\nscheme = \"int3-g8\"\nround = \"gptq\"\nroles = [\"linear\"]\nexclude = [\"pooler.**\"]\n";
const SPARSEGPT: &str = "[[stage]]\nkind = \"prune\"\nmethod = \"sparsegpt\"\nsparsity = 0.5\nroles = [\"linear\"]\nexclude = [\"pooler.**\"]\n";
const ADMM: &str =
    "[[stage]]\nkind = \"prune\"\nmethod = \"admm\"\nsparsity = 0.5\nroles = [\"linear\"]\nexclude = [\"pooler.**\"]\n";

fn cosine(sandbox: &Sandbox) -> f64 {
    let text = std::fs::read(sandbox.path("out/report.json")).unwrap();
    let report: Value = serde_json::from_slice(&text).unwrap();
    report["evaluation"]["metrics"]["cosine"].as_f64().unwrap()
}

#[test]
fn corrected_weights_give_nearer_outputs_and_the_same_bytes_at_any_thread_count() {
    for stages in [GPTQ, SPARSEGPT, ADMM] {
        let sandbox = Sandbox::with("models/bert-tiny");
        copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
        let weights = || std::fs::read(sandbox.path("out/model.briquette.safetensors")).unwrap();
        sandbox.write("recipe.toml", recipe("correct = false", stages));
        sandbox.ok("run recipe.toml --device cpu --quiet");
        let (plain, plain_cosine) = (weights(), cosine(&sandbox));
        sandbox.write("recipe.toml", recipe("", stages));
        sandbox.ok("run recipe.toml --device cpu --quiet --force --threads 1");
        let corrected = weights();
        assert!(plain != corrected && cosine(&sandbox) > plain_cosine, "{} of {plain_cosine}", cosine(&sandbox));
        sandbox.ok("run recipe.toml --device cpu --quiet --force --threads 3");
        assert!(corrected == weights(), "three threads give other bytes");
        sandbox.ok("verify out");
    }
}

#[test]
fn a_killed_run_continues_at_a_group_of_layers() {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    sandbox.write("recipe.toml", recipe("correct = true", GPTQ));
    sandbox.ok("run recipe.toml --device cpu --quiet --threads 2");
    let weights = || std::fs::read(sandbox.path("out/model.briquette.safetensors")).unwrap();
    let whole = weights();
    std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    let unit = sandbox.path("out.stages/1-solved/block-0000-01.safetensors");
    let mut n = 0;
    loop {
        n += 1;
        let mut child = sandbox.command("run recipe.toml --device cpu --threads 1 --quiet").spawn().unwrap();
        while child.try_wait().unwrap().is_none() && !unit.exists() {}
        child.kill().unwrap();
        child.wait().unwrap();
        if unit.exists() && !sandbox.path("out").exists() {
            break;
        }
        assert!(n < 40, "killed too late in {n} tries");
        let _ = std::fs::remove_dir_all(sandbox.path("out"));
    }
    sandbox.ok("run recipe.toml --device cpu --threads 1 --quiet");
    assert!(weights() == whole);
}

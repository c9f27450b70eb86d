//! Runs that continue after a change give the output of a run that begins with it.
#![cfg(feature = "model")]

use crate::families::models::with;
use crate::sandbox::{Sandbox, copy, repository};

const GPTQ: &str = "[[stage]]\nkind = \"quantize\"\nscheme = \"int4-g8\"\nround = \"gptq\"\nroles = [\"linear\"]\n";

/// Gates that no output passes.
const KL: &str = "[gate]\nmax = { kl = 1e-12 }\n";
const COSINE: &str = "[gate]\nmin = { cosine = 1.0 }\n";

/// Runs `before` up to a gate that no output passes, then `after`, and compares its weights with those of a new run.
#[track_caller]
fn assert_as_begun_anew(sandbox: &Sandbox, gate: &str, before: &str, after: &str) {
    let recipe = |output: &str, rest: &str| {
        let evaluate = "[[stage]]\nkind = \"evaluate\"\n";
        sandbox.write("recipe.toml", format!("[model]\npath = \"m\"\n[output]\npath = \"{output}\"\n{rest}{evaluate}"));
    };
    let run = |output: &str| {
        sandbox.ok("run recipe.toml --threads 1 --quiet");
        std::fs::read(sandbox.path(&format!("{output}/model.briquette.safetensors"))).unwrap()
    };
    recipe("out", &format!("{gate}{before}"));
    sandbox.run("run recipe.toml --threads 1 --quiet").assert_fails(6, &["gate"]);
    recipe("out", after);
    let resumed = run("out");
    recipe("new", after);
    assert!(resumed == run("new"), "the output differs from that of a new run");
}

/// Returns a sandbox with a text model `m` and its data.
fn texts(fixture: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    copy(&repository().join("fixtures/models").join(fixture), &sandbox.path("m"));
    let sentences = std::fs::read(repository().join("fixtures/models/sentences.txt")).unwrap();
    sandbox.write("data.txt", sentences);
    sandbox
}

#[test]
fn calibration_images_are_prepared_as_the_recipe_says_now() {
    let sandbox = with("resnet-basic");
    let recipe = |keys: &str| {
        let fold = "[[stage]]\nkind = \"fold\"\nmethod = \"batch-norm\"\n";
        let quantize = "[[stage]]\nkind = \"quantize\"\nscheme = \"int3\"\nround = \"gptq\"\n";
        format!("[calibration]\ndata = \"images\"\n[data]\neval = \"images\"\n{keys}{fold}{quantize}")
    };
    let normalized = "normalize = { mean = [0.0, 0.0, 0.0], std = [0.01, 5.0, 0.01] }\n";
    assert_as_begun_anew(&sandbox, COSINE, &recipe(normalized), &recipe(""));
}

#[test]
fn a_memory_limit_ends_the_correction_of_weights() {
    let sandbox = texts("llama-untied");
    let recipe = |limit: &str| {
        let fold = "[[stage]]\nkind = \"fold\"\nmethod = \"equalize\"\n";
        let data = "[calibration]\ndata = \"data.txt\"\nmax_length = 16\nsamples = 16\n[data]\neval = \"data.txt\"\nmax_length = 16\n";
        format!("{limit}{data}{fold}{GPTQ}")
    };
    assert_as_begun_anew(&sandbox, KL, &recipe(""), &recipe("[memory]\nlimit = \"8GB\"\n"));
}

#[test]
fn steps_of_a_budget_are_found_again_after_a_later_stage_changed() {
    let sandbox = texts("bert-tiny");
    let recipe = |cast: &str| {
        let budget = "[budget]\nbytes = \"24kB\"\nsensitivity = \"relative\"\n";
        let data = "[data]\ntrain = \"data.txt\"\neval = \"data.txt\"\nmax_length = 16\n";
        let distill = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"embedding\" }]\nquantization_aware = true\n";
        let quantize = "[[stage]]\nkind = \"quantize\"\nscheme = \"step\"\nroles = [\"linear\"]\n";
        format!("{budget}{data}{distill}{quantize}{cast}")
    };
    let write = |gate: &str, cast: &str| {
        let (paths, evaluate) =
            ("[model]\npath = \"m\"\n[output]\npath = \"out\"\n", "[[stage]]\nkind = \"evaluate\"\n");
        sandbox.write("recipe.toml", format!("{paths}{gate}{}{evaluate}", recipe(cast)));
    };
    write(COSINE, "");
    sandbox.run("distill recipe.toml --threads 1 --quiet").assert_fails(6, &["gate"]);
    // The steps belong to the training, which is not thrown away without a word.
    write("", "[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n");
    sandbox.run("distill recipe.toml --threads 1 --quiet").assert_fails(6, &["stage", "pass --force to start anew"]);
    sandbox.ok("distill recipe.toml --threads 1 --quiet --force");
}

#[test]
fn a_trained_student_stays_when_a_later_stage_changes() {
    let sandbox = texts("bert-tiny");
    let recipe = |scheme: &str, keys: &str| {
        let data =
            "[calibration]\ndata = \"data.txt\"\n[data]\ntrain = \"data.txt\"\neval = \"data.txt\"\nmax_length = 16\n";
        let distill = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"embedding\" }]\n";
        format!("{data}{keys}{distill}{}", GPTQ.replace("int4-g8", scheme))
    };
    assert_as_begun_anew(&sandbox, COSINE, &recipe("int3-g8", ""), &recipe("int4-g8", "workers = 3\n"));
}

#[test]
fn a_resumed_sweep_measures_changed_data_again() {
    let sandbox = texts("bert-tiny");
    sandbox.write("held.txt", std::fs::read(sandbox.path("data.txt")).unwrap());
    let sweep = |output: &str, flags: &str| {
        sandbox.ok(&format!(
            "sweep m -o {output} --bytes 22kB,26kB --data data.txt --eval held.txt --threads 1 --quiet {flags}"
        ));
        ["22kB", "26kB"]
            .map(|size| std::fs::read(sandbox.path(&format!("{output}/{size}/model.briquette.safetensors"))).unwrap())
    };
    let before = sweep("out", "");
    sandbox.write("data.txt", "zz zz\nzz zz\na a a a a\n");
    let resumed = sweep("out", "--resume");
    assert!(resumed != before && resumed == sweep("new", ""), "the sensitivities are of other data");
}

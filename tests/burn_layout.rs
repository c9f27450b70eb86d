//! Models in burn's weight layout: every command that runs them gives the results of PyTorch's layout.
#![cfg(feature = "model")]

use crate::distill::{of_sentences, sentences};
use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns whether this is the weight of a Linear layer.
fn is_linear(tensor: &Tensor) -> bool {
    tensor.shape.len() == 2 && tensor.name.ends_with(".weight") && !tensor.name.contains("embed")
}

/// Transposes a matrix.
fn transposed(tensor: &Tensor) -> Tensor {
    let [n_rows, n_cols] = [tensor.shape[0], tensor.shape[1]];
    let (values, at) = (tensor.floats(), |i: usize| (i % n_rows) * n_cols + i / n_rows);
    let turned: Vec<f32> = (0..values.len()).map(|i| values[at(i)]).collect();
    Tensor::f32(&tensor.name, &[n_cols, n_rows], turned)
}

/// Returns all tensors of a model, with the weights of Linear layers transposed.
fn turned(sandbox: &Sandbox, model: &str) -> BTreeMap<String, Tensor> {
    let tensors = tensors_of(&sandbox.path(model)).into_iter();
    tensors.map(|(name, tensor)| (name, if is_linear(&tensor) { transposed(&tensor) } else { tensor })).collect()
}

/// Writes the same model in burn's layout, as `burn`.
fn add_burn(sandbox: &Sandbox, model: &str) {
    copy(&sandbox.path(model), &sandbox.path("burn"));
    let tensors: Vec<Tensor> = turned(sandbox, model).into_values().collect();
    sandbox.write("burn/model.safetensors", safetensors_of(&tensors));
}

/// Returns the first rows and columns of a matrix or vector.
fn cut(tensor: &Tensor, shape: &[usize]) -> Tensor {
    let (values, width) = (tensor.floats(), *tensor.shape.last().unwrap());
    let n_cols = *shape.last().unwrap();
    let n_rows = shape.iter().product::<usize>() / n_cols;
    let cut = (0..n_rows).flat_map(|row| values[row * width..row * width + n_cols].to_vec());
    Tensor::f32(&tensor.name, shape, cut)
}

/// Writes a tiny encoder in both layouts, and sentences; with `is_square`, all of its layers have equal widths.
fn bert(is_square: bool) -> Sandbox {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    if is_square {
        let shape = |shape: &[usize]| shape.iter().map(|&n| if n == 48 { 32 } else { n }).collect::<Vec<_>>();
        let tensors = tensors_of(&sandbox.path("bert-tiny")).into_values();
        let tensors: Vec<Tensor> = tensors.map(|tensor| cut(&tensor, &shape(&tensor.shape))).collect();
        let config = std::fs::read_to_string(sandbox.path("bert-tiny/config.json")).unwrap();
        sandbox
            .write("bert-tiny/config.json", config.replace("\"intermediate_size\": 48", "\"intermediate_size\": 32"));
        sandbox.write("bert-tiny/model.safetensors", safetensors_of(&tensors));
    }
    add_burn(&sandbox, "bert-tiny");
    sandbox
}

const DATA: &str = "--data text.txt --max-length 16 --device cpu";

#[test]
fn calibrated_methods_give_the_same_results_in_either_layout() {
    for is_square in [true, false] {
        let sandbox = bert(is_square);
        for (number, what) in [
            "--quantize int4-g8 --round gptq --quantize-roles linear",
            "--prune 0.5 --prune-method wanda --prune-roles linear",
            "--prune 0.5 --prune-method sparsegpt --prune-roles linear",
            "--quantize int4-g8 --range weighted --quantize-roles linear",
            "--bits 4",
            "--bits 4 --sensitivity measured",
        ]
        .into_iter()
        .enumerate()
        {
            let compress = |model: &str, flags: &str| {
                let output = format!("{model}-{number}");
                let line = format!("compress {model} -o {output} {what} {DATA} --exclude pooler.** --quiet {flags}");
                sandbox.ok(&line);
                output
            };
            let (of_torch, of_burn) = (compress("bert-tiny", ""), compress("burn", "--layout burn"));
            let (expected, found) = (tensors_of(&sandbox.path(&of_torch)), turned(&sandbox, &of_burn));
            assert!(expected == found, "{what}, square: {is_square}");
            sandbox.ok(&format!("verify {of_burn}"));
        }
    }
}

#[test]
fn commands_that_run_a_model_use_its_layout() {
    for is_square in [true, false] {
        let sandbox = bert(is_square);
        let run = |line: &str| sandbox.json(&format!("{line} {DATA}"));
        sandbox.ok("compress burn -o small --quantize int4-g8 --layout burn");
        sandbox.ok("compress bert-tiny -o expected --quantize int4-g8");
        let metrics = |line: &str| run(line)["metrics"].clone();
        let expected = metrics("eval expected --against bert-tiny");
        for flags in ["", "--layout burn", "--layout burn --offload"] {
            // The manifest of an output records the layout that the original was read in.
            let found = metrics(&format!("eval small --against burn {flags}"));
            let difference = |name: &str| (found[name].as_f64().unwrap() - expected[name].as_f64().unwrap()).abs();
            assert!(difference("cosine") < 1e-5, "{flags}: {found} and {expected}");
        }
        let tensors = |line: &str| run(line)["tensors"].clone();
        let (found, expected) = (tensors("sensitivity burn --layout burn"), tensors("sensitivity bert-tiny"));
        assert_eq!(found, expected);
        let layers = |line: &str| {
            run(&format!("{line} -o stats --force --gram"));
            tensors_of(&sandbox.path("stats"))
        };
        assert!(layers("calibrate burn --layout burn") == layers("calibrate bert-tiny"));
    }
}

#[test]
fn a_decoder_in_burns_layout_gives_the_same_text() {
    let sandbox = Sandbox::with("models/llama-untied");
    add_burn(&sandbox, "llama-untied");
    let text = |line: &str| sandbox.json(&format!("{line} --prompt cat --max-tokens 8 --device cpu"));
    let sequences = |line: &str, which: &str| text(line)[which]["sequences"].clone();
    let expected = sequences("generate llama-untied", "after");
    assert_eq!(sequences("generate burn --layout burn", "after"), expected);
    sandbox.ok("compress burn -o half --cast bf16 --layout burn");
    assert_eq!(sequences("generate half --against burn --layout burn", "before"), expected);
}

#[test]
fn a_student_of_a_model_in_burns_layout_is_written_in_that_layout() {
    let sandbox = sentences();
    add_burn(&sandbox, "bert-tiny");
    let stages = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n[[stage]]\nkind = \"evaluate\"\n";
    for keys in
        ["loss = [{ kind = \"embedding\" }]", "student = \"layers\"\nn_layers = 1\nloss = [{ kind = \"embedding\" }]"]
    {
        let recipe = |output: &str| {
            let recipe = of_sentences(output, keys, "");
            let recipe = recipe.replace("[[stage]]\nkind = \"evaluate\"\n", stages);
            recipe.replacen(
                "[[stage]]",
                "[[stage]]\nkind = \"prune\"\nsparsity = 0.3\nroles = [\"linear\"]\n[[stage]]",
                1,
            )
        };
        sandbox.write("torch.toml", recipe("torch-out"));
        let burn = recipe("burn-out").replace("path = \"bert-tiny\"", "path = \"burn\"\nlayout = \"burn\"");
        sandbox.write("burn.toml", burn);
        let run = |name: &str| sandbox.json(&format!("distill {name} --threads 1 --force --device cpu"));
        let (expected, found) = (run("torch.toml"), run("burn.toml"));
        let cosine = |report: &Value| report["evaluation"]["metrics"]["cosine"].as_f64().unwrap();
        assert!((cosine(&expected) - cosine(&found)).abs() < 1e-6, "{} and {}", cosine(&expected), cosine(&found));
        assert!(tensors_of(&sandbox.path("torch-out")) == turned(&sandbox, "burn-out"), "{keys}");
        let again = sandbox.json("eval burn-out --against burn --data eval.txt --max-length 24 --device cpu");
        assert!((again["metrics"]["cosine"].as_f64().unwrap() - cosine(&found)).abs() < 1e-6, "{again}");
    }
}

#[test]
fn weights_that_fit_in_the_other_layout_are_refused_with_the_flag_that_helps() {
    let sandbox = bert(false);
    let lost = sandbox.run(&format!("eval burn {DATA}"));
    lost.assert_fails(4, &["intermediate.dense.weight", "--layout"]);
}

#[test]
fn a_teacher_at_another_path_is_read_in_its_own_layout() {
    for is_square in [true, false] {
        let sandbox = bert(is_square);
        for name in ["train.txt", "eval.txt"] {
            copy(&sandbox.path("text.txt"), &sandbox.path(name));
        }
        let loss = "student = \"layers\"\nn_layers = 1\nloss = [{ kind = \"embedding\" }]";
        let distill = |output: &str, teacher: &str| {
            sandbox.write("recipe.toml", of_sentences(output, &format!("{teacher}\n{loss}"), ""));
            sandbox.run("distill recipe.toml --threads 1 --force --device cpu --quiet")
        };
        copy(&sandbox.path("bert-tiny"), &sandbox.path("torch"));
        distill("of-torch", "teacher = \"torch\"").assert_ok();
        distill("of-burn", "teacher = \"burn\"\nteacher_layout = \"burn\"").assert_ok();
        let [expected, found] = ["of-torch", "of-burn"].map(|output| tensors_of(&sandbox.path(output)));
        assert!(expected == found, "square: {is_square}");
        distill("none", "teacher_layout = \"burn\"").assert_fails(2, &["teacher_layout", "set teacher"]);
        if !is_square {
            distill("none", "teacher = \"burn\"").assert_fails(4, &["intermediate.dense.weight", "teacher_layout"]);
        }
    }
}

#[test]
fn inspect_and_export_take_the_layout() {
    let sandbox = bert(false);
    let why = |line: &str| {
        let tensors = sandbox.json(&format!("inspect {line}"))["tensors"].clone();
        let found = tensors.as_array().unwrap().iter().find(|tensor| tensor["name"] == WIDE).unwrap().clone();
        found["why"].clone()
    };
    assert_eq!(why("burn --layout burn"), why("bert-tiny"));
    assert_ne!(why("burn"), why("bert-tiny"));
    for format in ["briquette", "dense", "burnpack"] {
        sandbox.ok(&format!("export burn --layout burn --to {format} -o {format}"));
        sandbox.ok(&format!("verify {format}"));
        // The output records the layout; the flag is for the original model.
        let found = sandbox.json(&format!("eval {format} --against burn --layout burn {DATA}"));
        assert!(found["metrics"]["cosine"].as_f64().unwrap() > 1.0 - 1e-5, "{format}: {found}");
    }
    let refused = sandbox.run("export burn --layout burn --to compressed-tensors -o ct --allow-untested");
    refused.assert_fails(6, &["layout"]);
}

/// A Linear layer whose inputs and outputs differ in number.
const WIDE: &str = "encoder.layer.0.intermediate.dense.weight";

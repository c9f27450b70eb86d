//! On-policy distillation of decoders, and embedding students with a Dense module.
#![cfg(feature = "model")]

use crate::decoders::with_text;
use crate::distill::{of_sentences, sentences, sums};
use crate::weights::tensors_of;
use serde_json::Value;

/// Returns a recipe whose student samples a share of its batches.
fn on_policy(keys: &str, loss: &str, memory: &str) -> String {
    format!(
        "[model]\npath = \"llama-tied\"\n[output]\npath = \"out\"\n[data]\ntrain = \"text.txt\"\neval = \"text.txt\"\n\
         max_length = 16\n[memory]\nbatch_size = 8\n{memory}\n[[stage]]\nkind = \"distill\"\nstudent = \"layers\"\n\
         layers = [0]\n{keys}\nloss = [{{ {loss} }}]\nepochs = 3\nlearning_rate = 1e-2\nmetric = \"perplexity\"\n\
         [[stage]]\nkind = \"evaluate\"\n"
    )
}

const JENSEN_SHANNON: &str = "kind = \"logits\", by = \"js\", beta = 0.5, temperature = 1";

#[test]
fn a_student_learns_from_text_that_it_samples() {
    let sandbox = with_text("llama-tied");
    let perplexity = |report: &Value| -> Vec<f64> {
        let epochs = report["trained"][0]["epochs"].as_array().unwrap();
        epochs.iter().map(|epoch| epoch["metrics"]["perplexity"].as_f64().unwrap()).collect()
    };
    let mut outputs = Vec::new();
    for keys in ["", "on_policy = 0.5", "on_policy = 0.5", "on_policy = 1\nmax_new_tokens = 4"] {
        sandbox.write("recipe.toml", on_policy(keys, JENSEN_SHANNON, ""));
        let report = sandbox.json("distill recipe.toml --threads 1 --force");
        let curve = report["trained"][0]["curve"].as_array().unwrap();
        let loss = |near: &[Value]| near.iter().map(|point| point["loss"].as_f64().unwrap()).sum::<f64>() / 8.0;
        let [first, last] = [loss(&curve[..8]), loss(&curve[curve.len() - 8..])];
        assert!(last < 0.9 * first, "{keys}: {first} then {last}, {:?}", perplexity(&report));
        let weights: Vec<_> = sums(&sandbox, "out").lines().map(String::from).collect();
        outputs.push(weights.into_iter().find(|line| line.ends_with("safetensors")).unwrap());
    }
    assert_eq!(outputs[1], outputs[2], "equal seeds sample equal text");
    assert!(outputs[0] != outputs[1] && outputs[1] != outputs[3]);
    // Gradient checkpointing by layer sees the same samples.
    sandbox.write("recipe.toml", on_policy("on_policy = 1", JENSEN_SHANNON, "gradient_checkpointing = true"));
    assert_eq!(perplexity(&sandbox.json("distill recipe.toml --threads 1 --force")).len(), 3);
}

#[test]
fn recipes_that_cannot_sample_are_refused() {
    let sandbox = with_text("llama-tied");
    let cases: [(&str, &str, &str, &[&str]); 6] = [
        ("on_policy = 0.5", "kind = \"labels\"", "", &["on_policy", "no labels"]),
        ("on_policy = 0.5", JENSEN_SHANNON, "cache_teacher = true", &["on_policy", "cached teacher"]),
        ("on_policy = 1.5", JENSEN_SHANNON, "", &["on_policy", "found 1.5"]),
        ("max_new_tokens = 4", JENSEN_SHANNON, "", &["max_new_tokens", "without on_policy"]),
        ("", "kind = \"logits\", beta = 0.5", "", &["beta", "by \"kl\""]),
        ("", "kind = \"logits\", by = \"js\", beta = 1.5", "", &["beta", "found 1.5"]),
    ];
    for (keys, loss, memory, phrases) in cases {
        sandbox.write("recipe.toml", on_policy(keys, loss, memory));
        sandbox.run("distill recipe.toml --quiet --force").assert_fails(2, phrases);
    }
    let encoder = sentences();
    encoder.write("recipe.toml", of_sentences("out", "on_policy = 0.5\nloss = [{ kind = \"embedding\" }]", ""));
    encoder.run("distill recipe.toml --quiet").assert_fails(2, &["on_policy", "samples no text"]);
}

#[test]
fn a_narrow_student_gets_a_dense_module_to_the_width_of_its_teacher() {
    let sandbox = sentences();
    let student =
        "student = { hidden_size = 16, num_attention_heads = 2, intermediate_size = 32 }\nteacher = \"bert-tiny\"\n";
    let keys = format!("{student}loss = [{{ kind = \"embedding\" }}]");
    sandbox.write("recipe.toml", of_sentences("out", &keys, "").replace("epochs = 2", "epochs = 4"));
    let report = sandbox.json("distill recipe.toml --threads 1");
    let epochs = report["trained"][0]["epochs"].as_array().unwrap();
    let cosine = |epoch: usize| epochs[epoch]["metrics"]["cosine"].as_f64().unwrap();
    assert!(cosine(3) > cosine(0), "{epochs:?}");
    let measured = report["evaluation"]["metrics"]["cosine"].as_f64().unwrap();
    let best = (0..4).map(cosine).fold(f64::MIN, f64::max);
    assert!((measured - best).abs() < 1e-3, "{measured} {best}");
    let dense = tensors_of(&sandbox.path("out/2_Dense/model.safetensors"));
    let width = tensors_of(&sandbox.path("bert-tiny"))["embeddings.word_embeddings.weight"].shape[1];
    assert_eq!(dense["linear.weight"].shape, [width, 16]);
    // Later commands keep the module and run it.
    sandbox.ok("compress out -o int8 --quantize int8 --quiet");
    let found = sandbox.json("eval int8 --against bert-tiny --data eval.txt --threads 1");
    let found = found["metrics"]["cosine"].as_f64().unwrap();
    assert!((found - measured).abs() < 0.02, "{found} {measured}");
    sandbox.write(
        "int8/2_Dense/config.json",
        "{\"in_features\": 8, \"out_features\": 4, \"bias\": false, \"activation_function\": \"x\"}",
    );
    sandbox.run("eval int8 --data eval.txt --quiet").assert_fails(4, &["2_Dense/config.json"]);
}

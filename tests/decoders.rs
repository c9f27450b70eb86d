//! Decoders as students: trained on running text, with the teacher run in every epoch or cached.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, repository};
use crate::weights::tensors_of;
use serde_json::Value;

/// Returns a recipe over running text, with windows of 16 tokens in batches of 8.
fn of_text(model: &str, student: &str, loss: &str, memory: &str) -> String {
    format!(
        "[model]\npath = \"{model}\"\n[output]\npath = \"out\"\n[data]\ntrain = \"text.txt\"\neval = \"text.txt\"\n\
         max_length = 16\n[memory]\nbatch_size = 8\n{memory}\n[[stage]]\nkind = \"distill\"\n{student}\nloss = [{loss}]\n\
         epochs = 4\nlearning_rate = 1e-2\nmetric = \"perplexity\"\n[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n\
         [[stage]]\nkind = \"evaluate\"\n"
    )
}

pub(crate) fn with_text(model: &str) -> Sandbox {
    let sandbox = Sandbox::with(&format!("models/{model}"));
    let text = std::fs::read_to_string(repository().join("fixtures/models/text.txt")).unwrap();
    sandbox.write("text.txt", text.repeat(8));
    sandbox
}

#[test]
fn a_decoder_with_fewer_layers_learns_to_predict_tokens() {
    let sandbox = with_text("llama-tied");
    let perplexity = |report: &Value| -> Vec<f64> {
        let epochs = report["trained"][0]["epochs"].as_array().unwrap();
        epochs.iter().map(|epoch| epoch["metrics"]["perplexity"].as_f64().unwrap()).collect()
    };
    let both = "{ kind = \"logits\" }, { kind = \"labels\", weight = 0.5 }";
    let loss = format!("{both}, {{ kind = \"hidden\", layers = \"last\" }}");
    sandbox.write("recipe.toml", of_text("llama-tied", "student = \"layers\"\nlayers = [0]", &loss, ""));
    let report = sandbox.json("distill recipe.toml --threads 1");
    let found = perplexity(&report);
    assert!(found[3] < 0.9 * found[0], "{found:?}");
    let written = report["evaluation"]["metrics"]["perplexity"].as_f64().unwrap();
    assert!((written / found[3] - 1.0).abs() < 0.05, "{written} and {found:?}");
    let config = std::fs::read_to_string(sandbox.path("out/config.json")).unwrap();
    assert!(config.contains("\"num_hidden_layers\": 1"), "{config}");
    let tensors = tensors_of(&sandbox.path("out"));
    assert!(!tensors.contains_key("lm_head.weight") && !tensors.keys().any(|name| name.contains("layers.1.")));
    sandbox.ok("verify out");

    // A cached teacher gives the same logits except for unlikely tokens.
    let recipe = of_text("llama-tied", "student = \"layers\"\nlayers = [0]", both, "cache_teacher = true");
    sandbox.write("cached.toml", recipe);
    let cached = perplexity(&sandbox.json("distill cached.toml --threads 1 --force"));
    assert!(cached[3] < 0.9 * cached[0], "{cached:?}");
    sandbox.write("maps.toml", of_text("llama-tied", "", "{ kind = \"attention\" }", ""));
    sandbox.run("distill maps.toml --quiet --force").assert_fails(2, &["attention", "use another loss"]);
}

#[test]
fn a_decoder_trains_in_half_precision() {
    let sandbox = with_text("llama-tied");
    for dtype in ["bf16", "f16"] {
        let memory = format!("dtype = \"{dtype}\"");
        sandbox.write("recipe.toml", of_text("llama-tied", "", "{ kind = \"labels\" }", &memory));
        let report = sandbox.json("distill recipe.toml --threads 1 --force");
        let epochs = report["trained"][0]["epochs"].as_array().unwrap();
        let perplexity = |epoch: usize| epochs[epoch]["metrics"]["perplexity"].as_f64().unwrap();
        assert!(perplexity(3) < 0.9 * perplexity(0), "{dtype}: {epochs:?}");
    }
}

#[test]
fn a_decoder_of_other_sizes_keeps_the_vocabulary_and_biases_of_its_teacher() {
    let sandbox = with_text("llama-qwen");
    let sizes = "student = { num_hidden_layers = 1, intermediate_size = 16 }";
    sandbox.write("recipe.toml", of_text("llama-qwen", sizes, "{ kind = \"logits\" }", ""));
    sandbox.ok("distill recipe.toml --threads 1 --quiet");
    let tensors = tensors_of(&sandbox.path("out"));
    assert!(tensors.contains_key("model.layers.0.self_attn.q_proj.bias"), "{:?}", tensors.keys());
    let config = std::fs::read_to_string(sandbox.path("out/config.json")).unwrap();
    assert!(!config.contains("layer_types"), "{config}");
    sandbox.write("recipe.toml", of_text("llama-qwen", "student = { vocab_size = 9 }", "{ kind = \"logits\" }", ""));
    sandbox.run("distill recipe.toml --quiet --force").assert_fails(2, &["vocab_size", "must be the same"]);
    sandbox.write("text.txt", " ");
    sandbox.write("recipe.toml", of_text("llama-qwen", sizes, "{ kind = \"logits\" }", ""));
    sandbox.run("distill recipe.toml --quiet --force").assert_fails(4, &["text.txt", "text"]);
}

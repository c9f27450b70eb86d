//! int4 weights with dynamic int8 activations: compressed, verified, evaluated, trained and exported.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, repository};
use crate::weights::tensors_of;
use serde_json::Value;

/// Returns a model with running text and sentences.
fn with_model(name: &str) -> Sandbox {
    let sandbox = Sandbox::with(&format!("models/{name}"));
    for file in ["text.txt", "sentences.txt"] {
        sandbox.write(file, std::fs::read(repository().join("fixtures/models").join(file)).unwrap());
    }
    sandbox
}

#[test]
fn outputs_multiply_integers_and_are_as_good_as_weight_only_int4() {
    for (model, data, metric) in [("llama-tied", "text.txt", "perplexity"), ("bert-tiny", "sentences.txt", "cosine")] {
        let sandbox = with_model(model);
        let eval = |out: &str| sandbox.json(&format!("eval {out} --data {data} --against {model} --threads 1"));
        let of = |document: &Value| document["metrics"][metric].as_f64().unwrap();
        sandbox.ok(&format!("compress {model} -o weights --quantize int4-g32 --quiet"));
        let weights = eval("weights");
        for scheme in ["int4-g32-dynamic", "int4-g32-dynamic-sym"] {
            sandbox.ok(&format!("compress {model} -o out --quantize {scheme} --quiet --force"));
            sandbox.ok(&format!("verify out --against {model}"));
            let found = eval("out");
            let held = found["after"]["held"].as_object().unwrap();
            assert!(held["int4 by int8"]["n_tensors"].as_u64() > Some(8), "{model} {scheme}: {held:?}");
            assert!(!held.contains_key("int4"), "{model} {scheme}: {held:?}");
            let ratio = of(&found) / of(&weights);
            assert!((ratio - 1.0).abs() < 0.02 && ratio != 1.0, "{model} {scheme}: {ratio}");
            // The values of the weights do not depend on the activations.
            sandbox.ok("export out --to dense -o dense --quiet --force");
            sandbox.ok("export weights --to dense -o dense-weights --quiet --force");
            assert_eq!(tensors_of(&sandbox.path("dense")), tensors_of(&sandbox.path("dense-weights")), "{model}");
            sandbox.ok("export out --to briquette --storage entropy -o smaller --quiet --force");
            assert_eq!(of(&eval("smaller")), of(&found), "{model} {scheme}: entropy coding keeps the scheme");
        }
    }
}

#[test]
fn a_decoder_generates_text() {
    let sandbox = with_model("llama-tied");
    sandbox.ok("compress llama-tied -o small --quantize int4-g32-dynamic --quiet");
    let line = "generate small --prompt cat --against llama-tied --max-tokens 8";
    let (found, again) = (sandbox.json(line), sandbox.json(line));
    assert_eq!(found["after"]["sequences"][0]["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(found["after"]["sequences"], again["after"]["sequences"]);
    assert!(found["after"]["weights_bytes"].as_u64() < found["before"]["weights_bytes"].as_u64());
}

#[test]
fn training_in_the_scheme_gives_the_quality_of_the_output() {
    let sandbox = with_model("llama-tied");
    sandbox.write(
        "recipe.toml",
        "[model]\npath = \"llama-tied\"\n[output]\npath = \"out\"\n[data]\ntrain = \"text.txt\"\neval = \"text.txt\"\n\
         max_length = 16\n[memory]\nbatch_size = 8\n[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"labels\" }]\n\
         epochs = 2\nlearning_rate = 1e-2\nmetric = \"perplexity\"\nquantization_aware = true\n[[stage]]\n\
         kind = \"quantize\"\nscheme = \"int4-g32-dynamic\"\n[[stage]]\nkind = \"evaluate\"\n",
    );
    let report = sandbox.json("distill recipe.toml --threads 1");
    let epochs = report["trained"][0]["epochs"].as_array().unwrap();
    let perplexity: Vec<f64> = epochs.iter().map(|epoch| epoch["metrics"]["perplexity"].as_f64().unwrap()).collect();
    let best = perplexity.iter().copied().fold(f64::MAX, f64::min);
    let written = report["evaluation"]["metrics"]["perplexity"].as_f64().unwrap();
    assert!((written / best - 1.0).abs() < 0.05, "{written} and {perplexity:?}");
    assert!(report["evaluation"]["after"]["held"]["int4 by int8"]["n_tensors"].as_u64() > Some(0), "{report}");
}

#[test]
fn a_budget_chooses_between_int4_and_int8_with_dynamic_activations() {
    let sandbox = with_model("llama-tied");
    let report = sandbox.json("compress llama-tied -o out --bytes 23kB --choices int4-g32-dynamic,int8-dynamic");
    let tensors = report["allocation"]["tensors"].as_array().unwrap();
    let used: std::collections::BTreeSet<&str> = tensors.iter().map(|it| it["scheme"].as_str().unwrap()).collect();
    assert_eq!(Vec::from_iter(used), ["int4-g32-dynamic", "int8-dynamic"]);
    sandbox.ok("verify out --against llama-tied");
    let held = sandbox.json("eval out --data text.txt")["after"]["held"].clone();
    assert!(held.get("int4 by int8").is_some() && held.get("int8").is_some(), "{held}");
}

//! Low bit widths: an embedding that is also the head keeps int8, and group sizes need not divide.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of};
use serde_json::Value;

const EMBEDDING: &str = "model.embed_tokens.weight";
const LINEAR: &str = "model.layers.0.mlp.up_proj.weight";

/// Returns how a plan quantizes a tensor.
fn quantized(plan: &Value, name: &str) -> String {
    let tensors = plan["tensors"].as_array().unwrap();
    let tensor = tensors.iter().find(|tensor| tensor["name"] == name).unwrap();
    tensor["quantize"].as_str().unwrap_or("-").to_string()
}

/// A decoder of two tensors, and of a third if the head has a name of its own.
fn decoder(config: &str, head: Option<u64>) -> Sandbox {
    let sandbox = Sandbox::new();
    let mut tensors = vec![Tensor::random(EMBEDDING, &[32, 16], 1), Tensor::random(LINEAR, &[24, 16], 2)];
    tensors.extend(head.map(|seed| Tensor::random("lm_head.weight", &[32, 16], seed)));
    sandbox.write("m/model.safetensors", safetensors_of(&tensors));
    sandbox.write("m/config.json", config);
    sandbox
}

const TIED: &str = r#"{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": true, "vocab_size": 32}"#;
const UNTIED: &str = r#"{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": false, "vocab_size": 32}"#;

#[test]
fn a_tied_embedding_keeps_int8() {
    let (wide, low) = ("8-bit per channel", "4-bit per channel");
    for (config, head, expected) in
        [(TIED, None, wide), (UNTIED, Some(1), wide), (UNTIED, Some(3), low), (UNTIED, None, low)]
    {
        let sandbox = decoder(config, head);
        for format in ["briquette", "dense"] {
            let plan = sandbox.json(&format!("plan m --quantize int4 --format {format}"));
            assert_eq!((quantized(&plan, EMBEDDING).as_str(), quantized(&plan, LINEAR).as_str()), (expected, low));
            let remarks = plan["remarks"].as_array().unwrap();
            assert_eq!(remarks.len(), usize::from(expected == wide), "{remarks:?}");
        }
    }
}

#[test]
fn a_tied_embedding_gets_fewer_bits_on_request() {
    let sandbox = decoder(TIED, None);
    for flags in ["--quantize-roles linear,conv,embedding", "--include model.**"] {
        let plan = sandbox.json(&format!("plan m --quantize int4 {flags}"));
        assert_eq!(quantized(&plan, EMBEDDING), "4-bit per channel", "{flags}");
    }
    sandbox.write(
        "r.toml",
        "[model]\npath = \"m\"\n[output]\npath = \"o\"\n[[stage]]\nkind = \"quantize\"\nscheme = \"int4\"\n\
         overrides = [{ include = [\"**.embed_tokens.*\"], scheme = \"int3\" }]\n",
    );
    assert_eq!(quantized(&sandbox.json("plan r.toml"), EMBEDDING), "3-bit per channel");
    assert_eq!(quantized(&sandbox.json("plan m --quantize int8"), EMBEDDING), "8-bit per channel");
    assert_eq!(sandbox.json("plan m --quantize int8")["remarks"], Value::Array(Vec::new()));
}

#[test]
fn the_report_mentions_the_int8_embedding_once() {
    let sandbox = decoder(TIED, None);
    let report = sandbox.json("compress m -o out --quantize int4");
    let is_said = |remark: &&Value| remark.as_str().unwrap().contains("gets int8");
    assert_eq!(report["remarks"].as_array().unwrap().iter().filter(is_said).count(), 1, "{report}");
    let plan = sandbox.ok("plan m --quantize int4").stdout;
    assert!(plan.contains("gets int8") && plan.contains("--quantize-roles linear,conv,embedding"), "{plan}");
    sandbox.ok("verify out --against m");
}

#[test]
fn a_range_search_without_effect_is_refused() {
    let sandbox = decoder(UNTIED, None);
    sandbox.run("plan m --quantize int4-g8-asym --range hqq").assert_fails(2, &["range: hqq", "whole numbers", "mse"]);
    sandbox.ok("plan m --quantize int4-g8 --range hqq");
}

#[test]
fn a_plan_knows_the_scheme_of_a_head_after_a_change_of_the_network() {
    let sandbox = Sandbox::with("models/llama-tied");
    for flags in ["--shrink 0.25", "--fold equalize"] {
        let plan = sandbox.json(&format!("plan llama-tied {flags} --quantize int4"));
        let report = sandbox.json(&format!("compress llama-tied -o out {flags} --quantize int4 --force"));
        assert_eq!(quantized(&plan, EMBEDDING), "8-bit per channel", "{flags}");
        let [predicted, written] = [&plan["predicted_bytes"], &report["after"]["file_bytes"]];
        assert!(written.as_u64().unwrap() <= predicted.as_u64().unwrap(), "{flags}: {written} {predicted}");
    }
}

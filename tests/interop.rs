//! compressed-tensors for transformers: the layers of each family that are quantized, the `ignore` list, and
//! what is refused.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of};
use serde_json::{Value, json};

/// Creates a directory `model` of this type with matrices of these names.
fn with_model(config: &str, names: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    write_model(&sandbox, config, names);
    sandbox
}

fn write_model(sandbox: &Sandbox, config: &str, names: &[&str]) {
    let shape = |name: &str| if name.ends_with(".bias") { vec![64] } else { vec![64, 64] };
    let tensors: Vec<Tensor> =
        names.iter().enumerate().map(|(i, name)| Tensor::random(name, &shape(name), i as u64 + 1)).collect();
    sandbox.write("model/model.safetensors", safetensors_of(&tensors));
    sandbox.write("model/config.json", config);
}

fn of_type(model_type: &str) -> String {
    json!({ "model_type": model_type }).to_string()
}

/// Returns the `quantization_config` of an output.
fn quantization(sandbox: &Sandbox, out: &str) -> Value {
    let config: Value = serde_json::from_slice(&std::fs::read(sandbox.path(out).join("config.json")).unwrap()).unwrap();
    config["quantization_config"].clone()
}

/// Returns the names of the quantized tensors of an output, without `.weight`.
fn coded(sandbox: &Sandbox, out: &str) -> Vec<String> {
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path(out).join("briquette.json")).unwrap()).unwrap();
    let tensors = manifest["tensors"].as_object().unwrap().iter();
    let is_coded = |(_, entry): &(&String, &Value)| !entry["coding"]["codes"].is_null();
    tensors.filter(is_coded).map(|(name, _)| name.trim_end_matches(".weight").to_string()).collect()
}

/// A model of a family: which layers are quantized, and which `ignore` lists.
struct Case {
    model_type: &'static str,
    coded: &'static [&'static str],
    floats: &'static [&'static str],
    ignore: &'static [&'static str],
}

const CASES: [Case; 13] = [
    Case {
        model_type: "bert",
        coded: &["bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.0.output.dense", "bert.pooler.dense"],
        floats: &["bert.embeddings.word_embeddings", "cls.predictions.other"],
        ignore: &["cls.predictions.decoder", "cls.predictions.other"],
    },
    Case {
        model_type: "albert",
        coded: &[
            "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn",
            "albert.encoder.embedding_hidden_mapping_in",
        ],
        floats: &["albert.embeddings.word_embeddings"],
        ignore: &["albert.pooler", "pooler"],
    },
    Case {
        model_type: "distilbert",
        coded: &["distilbert.transformer.layer.1.attention.q_lin", "vocab_transform"],
        floats: &["distilbert.embeddings.word_embeddings"],
        ignore: &["vocab_projector"],
    },
    Case {
        model_type: "roberta",
        coded: &["roberta.encoder.layer.0.attention.self.key", "roberta.pooler.dense"],
        floats: &["lm_head.dense"],
        ignore: &["lm_head.decoder", "lm_head.dense"],
    },
    Case {
        model_type: "mpnet",
        coded: &["encoder.layer.0.attention.attn.q", "pooler.dense"],
        floats: &["encoder.relative_attention_bias"],
        ignore: &["encoder.relative_attention_bias", "mpnet.encoder.relative_attention_bias"],
    },
    Case {
        model_type: "gpt_neox",
        coded: &["gpt_neox.layers.0.attention.query_key_value"],
        floats: &["embed_out", "gpt_neox.embed_in"],
        ignore: &["embed_out", "lm_head"],
    },
    Case {
        model_type: "opt",
        coded: &["model.decoder.layers.0.fc1", "model.decoder.project_in"],
        floats: &["model.decoder.embed_tokens"],
        ignore: &["lm_head"],
    },
    Case {
        model_type: "t5",
        coded: &["decoder.block.0.layer.1.EncDecAttention.q", "encoder.block.0.layer.1.DenseReluDense.wo"],
        floats: &["encoder.block.0.layer.0.SelfAttention.relative_attention_bias", "shared"],
        ignore: &["encoder.block.0.layer.0.SelfAttention.relative_attention_bias", "lm_head"],
    },
    Case {
        model_type: "whisper",
        coded: &["model.decoder.layers.0.encoder_attn.k_proj", "model.encoder.layers.0.fc2"],
        floats: &["model.decoder.embed_tokens"],
        ignore: &["proj_out"],
    },
    Case {
        model_type: "llama",
        coded: &["model.layers.0.mlp.gate_proj", "model.layers.11.self_attn.o_proj"],
        floats: &["lm_head", "model.embed_tokens"],
        ignore: &["lm_head"],
    },
    Case {
        model_type: "gpt_oss",
        coded: &["model.layers.0.self_attn.q_proj"],
        floats: &["lm_head", "model.layers.0.mlp.router"],
        ignore: &["layers.0.mlp.router", "lm_head", "model.layers.0.mlp.router"],
    },
    Case {
        model_type: "vit",
        coded: &["vit.encoder.layer.0.attention.output.dense", "vit.pooler.dense"],
        floats: &["vit.encoder.layer.0.other.dense"],
        ignore: &[
            "encoder.layer.0.other.dense",
            "layers.0.other.dense",
            "vit.encoder.layer.0.other.dense",
            "vit.layers.0.other.dense",
        ],
    },
    Case {
        model_type: "wav2vec2",
        coded: &["wav2vec2.encoder.layers.0.feed_forward.output_dense"],
        floats: &["lm_head", "wav2vec2.feature_projection.projection"],
        ignore: &["feature_projection.projection", "lm_head", "wav2vec2.feature_projection.projection"],
    },
];

#[test]
fn only_linear_layers_of_a_family_are_quantized_and_all_others_are_ignored() {
    for Case { model_type, coded: expected, floats, ignore } in CASES {
        let names: Vec<String> = expected.iter().chain(floats).map(|name| format!("{name}.weight")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let sandbox = with_model(&of_type(model_type), &names);
        sandbox.ok("compress model -o out --quantize int8-dynamic --format compressed-tensors");
        assert_eq!(coded(&sandbox, "out"), expected, "{model_type}");
        let config = quantization(&sandbox, "out");
        // `ignore` may list layers that transformers does not make Linear, but need not.
        let named: Vec<&str> = config["ignore"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let missing: Vec<_> = ignore.iter().filter(|name| !named.contains(name) && !is_table(name)).collect();
        assert!(missing.is_empty(), "{model_type}: {missing:?} of {named:?}");
        assert!(expected.iter().all(|name| !named.contains(name)), "{model_type}: {named:?}");
        assert_eq!(config["config_groups"]["group_0"]["targets"], json!(["Linear"]));
        sandbox.ok("verify out --against model");
    }
}

/// Returns whether this is a lookup table, whatever its role.
fn is_table(name: &str) -> bool {
    name.ends_with("relative_attention_bias")
}

#[test]
fn the_embedding_model_of_the_readme_has_no_ignored_layers() {
    let sandbox = with_model(
        r#"{"model_type": "bert", "architectures": ["BertModel"]}"#,
        &["embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.value.weight", "pooler.dense.weight"],
    );
    sandbox.ok("compress model -o out --quantize int8-dynamic --format compressed-tensors");
    assert_eq!(quantization(&sandbox, "out")["ignore"], json!([]));
    assert_eq!(coded(&sandbox, "out"), ["encoder.layer.0.attention.self.value", "pooler.dense"]);
}

#[test]
fn ignored_layers_have_their_names_in_models_with_and_without_a_head() {
    let layer = |prefix: &str, i: usize| format!("{prefix}encoder.layer.{i}.output.dense.weight");
    for prefix in ["", "bert."] {
        let names = [layer(prefix, 0), layer(prefix, 1), format!("{prefix}pooler.dense.weight")];
        let sandbox = with_model(&of_type("bert"), &names.each_ref().map(String::as_str));
        let exclude = names[0].as_str();
        sandbox.ok(&format!("compress model -o out --quantize int8 --exclude {exclude} --format compressed-tensors"));
        let expected = json!(["bert.encoder.layer.0.output.dense", "encoder.layer.0.output.dense"]);
        assert_eq!(quantization(&sandbox, "out")["ignore"], expected, "{prefix:?}");
    }
}

#[test]
fn an_unknown_family_is_refused_with_the_reason() {
    let sandbox = with_model(&of_type("reformer"), &["layer.0.rel_attn.q.weight"]);
    sandbox.write("bare.safetensors", std::fs::read(sandbox.path("model/model.safetensors")).unwrap());
    sandbox.ok("compress model -o small --quantize int8");
    let quantize = "--quantize int8 --format compressed-tensors";
    for line in [
        format!("compress model -o out {quantize}"),
        format!("plan model {quantize}"),
        "export small --to compressed-tensors -o out".into(),
    ] {
        sandbox.run(&line).assert_fails(6, &["\"reformer\"", "were not tested", "--allow-untested"]);
    }
    sandbox.run(&format!("compress bare.safetensors -o out {quantize}")).assert_fails(6, &["no config.json"]);
    assert!(!sandbox.path("out").exists());
    // Without codes, nothing can be misread.
    sandbox.ok("compress model -o pruned --prune 0.5 --format compressed-tensors");
    assert_eq!(quantization(&sandbox, "pruned"), Value::Null);
}

#[test]
fn an_unknown_family_is_written_with_a_warning_if_allowed() {
    let sandbox = with_model(&of_type("reformer"), &["layer.0.rel_attn.q.weight", "lm_head.weight", "proj_out.weight"]);
    let quantize = "--quantize int8 --format compressed-tensors --allow-untested";
    let planned = sandbox.ok(&format!("plan model {quantize}"));
    assert!(planned.stdout.contains("Transformers is not known to load this"), "{}", planned.stdout);
    let printed = sandbox.ok(&format!("compress model -o out {quantize}"));
    assert!(printed.stdout.contains("not known to load"), "{}", printed.stdout);
    assert_eq!(coded(&sandbox, "out"), ["layer.0.rel_attn.q"]);
    sandbox.ok("verify out --against model");
    let recipe = |line: &str| {
        let stage = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n";
        let output = format!("[output]\npath = \"again\"\nformat = \"compressed-tensors\"\n{line}");
        format!("[model]\npath = \"model\"\n{output}{stage}")
    };
    sandbox.write("refused.toml", recipe(""));
    sandbox.run("run refused.toml").assert_fails(6, &["output.allow_untested"]);
    sandbox.write("allowed.toml", recipe("allow_untested = true\n"));
    let report = sandbox.json("run allowed.toml");
    let warned = |remark: &Value| remark.as_str().unwrap().contains("\"reformer\"");
    assert!(report["remarks"].as_array().unwrap().iter().any(warned), "{}", report["remarks"]);
    sandbox.ok("compress model -o small --quantize int8");
    sandbox.ok("export small --to compressed-tensors --allow-untested -o exported");
    assert_eq!(coded(&sandbox, "exported"), ["layer.0.rel_attn.q"]);
}

#[test]
fn a_known_family_needs_no_warning() {
    let sandbox = with_model(&of_type("llama"), &["model.layers.0.mlp.up_proj.weight"]);
    let report = sandbox.json("compress model -o out --quantize int8 --format compressed-tensors --allow-untested");
    let remarks = report["remarks"].to_string();
    assert!(!remarks.contains("not known"), "{remarks}");
}

#[test]
fn a_family_without_linear_layers_is_always_refused() {
    let sandbox = with_model(&of_type("gpt2"), &["transformer.h.0.attn.c_attn.weight", "transformer.wte.weight"]);
    for options in ["", "--allow-untested"] {
        sandbox
            .run(&format!("compress model -o out --quantize int8 --format compressed-tensors {options}"))
            .assert_fails(6, &["gpt2", "Conv1D"]);
    }
    let bert = with_model(&of_type("bert"), &["embeddings.word_embeddings.weight"]);
    bert.run("compress model -o out --quantize int8 --format compressed-tensors")
        .assert_fails(6, &["bert would have no codes"]);
}

#[test]
fn a_model_without_linear_layers_is_always_refused() {
    for (config, shape) in [(of_type("superpoint"), [64, 16, 3, 3]), ("{}".into(), [32, 32, 1, 1])] {
        let sandbox = Sandbox::new();
        let filters = ["encoder.conv1.weight", "encoder.conv2.weight"].map(|name| Tensor::random(name, &shape, 1));
        sandbox.write("model/model.safetensors", safetensors_of(&filters));
        sandbox.write("model/config.json", config);
        for options in ["", "--allow-untested"] {
            sandbox
                .run(&format!("compress model -o out --quantize int8 --format compressed-tensors {options}"))
                .assert_fails(6, &["would have no codes", "Linear layer", "choose another format"]);
        }
        assert!(!sandbox.path("out").exists());
        // This run requests no codes.
        sandbox.ok("compress model -o pruned --prune 0.5 --format compressed-tensors");
    }
}

#[test]
fn heads_of_an_unknown_family_are_always_ignored_by_a_pattern() {
    let layer = "decoder.layers.0.fc1.weight";
    for heads in [
        vec![],
        vec!["lm_head.weight"],
        vec!["text_decoder.cls.predictions.decoder.weight", "output_projection.weight"],
    ] {
        let names: Vec<&str> = heads.iter().copied().chain([layer]).collect();
        let sandbox = with_model(&of_type("reformer"), &names);
        sandbox.ok("compress model -o out --quantize int8 --format compressed-tensors --allow-untested");
        assert_eq!(coded(&sandbox, "out"), ["decoder.layers.0.fc1"], "{heads:?}");
        let ignore = quantization(&sandbox, "out")["ignore"].as_array().unwrap().clone();
        let pattern = ignore.iter().filter_map(|name| name.as_str()?.strip_prefix("re:")).next().unwrap();
        assert!(pattern.starts_with("(.*\\.)?(lm_head|") && pattern.contains("|predictions\\.decoder|"), "{pattern}");
        for head in heads {
            assert!(ignore.contains(&json!(head.trim_end_matches(".weight"))), "{head}: {ignore:?}");
        }
    }
}

#[test]
fn packed_codes_are_refused_for_families_that_load_only_int8_dynamic() {
    for (model_type, name) in
        [("t5", "encoder.block.0.layer.0.SelfAttention.q.weight"), ("modernbert", "model.layers.0.mlp.Wi.weight")]
    {
        let sandbox = with_model(&of_type(model_type), &[name]);
        for scheme in ["int8", "int4-g32"] {
            sandbox
                .run(&format!("compress model -o out --quantize {scheme} --format compressed-tensors"))
                .assert_fails(6, &[model_type, name, "int8-dynamic"]);
        }
        sandbox.ok("compress model -o out --quantize int8-dynamic --format compressed-tensors");
        sandbox.ok("compress model -o packed --quantize int8 --format compressed-tensors --allow-untested");
    }
}

/// A layer of Mixtral with two experts.
const MIXTRAL: [&str; 5] = [
    "lm_head.weight",
    "model.layers.0.block_sparse_moe.experts.0.w1.weight",
    "model.layers.0.block_sparse_moe.experts.1.w1.weight",
    "model.layers.0.block_sparse_moe.gate.weight",
    "model.layers.0.self_attn.q_proj.weight",
];

#[test]
fn experts_get_packed_codes_of_one_scheme_or_are_refused() {
    let sandbox = with_model(&of_type("mixtral"), &MIXTRAL);
    let compress = "compress model -o out --force --format compressed-tensors --quantize";
    for options in [
        "int8-dynamic",
        "int4-g32-dynamic",
        "int8 --exclude **.experts.**",
        "int4-g32 --exclude model.layers.0.block_sparse_moe.experts.1.w1.weight",
    ] {
        sandbox.run(&format!("{compress} {options}")).assert_fails(6, &["experts", "int8 or int4-gN"]);
    }
    for scheme in ["int8", "int4-g32"] {
        sandbox.ok(&format!("{compress} {scheme}"));
        assert_eq!(coded(&sandbox, "out").len(), 3, "{scheme}: two experts and the attention");
        let ignore = quantization(&sandbox, "out")["ignore"].to_string();
        assert!(!ignore.contains("experts") && ignore.contains("\"model.layers.0.mlp.gate\""), "{ignore}");
    }
}

#[test]
fn experts_may_have_their_own_scheme_under_one_pattern() {
    let sandbox = with_model(&of_type("mixtral"), &MIXTRAL);
    let stage = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8-dynamic\"\n";
    let other = "overrides = [{ include = [\"**.experts.**\"], scheme = \"int8\" }]\n";
    let output = "[output]\npath = \"out\"\nformat = \"compressed-tensors\"\n";
    sandbox.write("mixed.toml", format!("[model]\npath = \"model\"\n{output}{stage}{other}"));
    sandbox.ok("run mixed.toml");
    let config = quantization(&sandbox, "out");
    assert_eq!(config["format"], "mixed-precision");
    let groups = config["config_groups"].as_object().unwrap();
    let targets: Vec<&Value> = groups.values().map(|group| &group["targets"]).collect();
    let attention = json!(["model.layers.0.self_attn.q_proj", "layers.0.self_attn.q_proj"]);
    assert_eq!(targets, [&json!(["re:.*\\.experts\\..*"]), &attention]);
}

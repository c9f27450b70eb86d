//! Every family of networks through the commands: graphs, runs, calibration, budgets, students and text.
//!
//! The models are tiny and random (`fixtures/make_family_goldens.py`). The tests add a tokenizer of letters.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The data and the metrics of a model.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Encoder,
    Decoder,
    Images,
}
use Kind::{Decoder, Encoder, Images};

/// Fixture, family, and kind.
const MODELS: &[(&str, &str, Kind)] = &[
    ("bert", "BERT", Encoder),
    ("bert-mlm", "BERT", Encoder),
    ("roberta", "RoBERTa", Encoder),
    ("xlm-roberta", "RoBERTa", Encoder),
    ("camembert", "RoBERTa", Encoder),
    ("distilbert", "DistilBERT", Encoder),
    ("distilbert-mlm", "DistilBERT", Encoder),
    ("electra", "ELECTRA", Encoder),
    ("albert", "ALBERT", Encoder),
    ("modernbert", "ModernBERT", Encoder),
    ("modernbert-classify", "ModernBERT", Encoder),
    ("gpt2", "GPT-2", Decoder),
    ("gpt_neox", "GPT-NeoX", Decoder),
    ("opt", "OPT", Decoder),
    ("llama", "Llama", Decoder),
    ("qwen2", "Llama", Decoder),
    ("qwen3", "Llama", Decoder),
    ("phi3", "Llama", Decoder),
    ("olmo2", "Llama", Decoder),
    ("smollm3", "Llama", Decoder),
    ("granite", "Llama", Decoder),
    ("gemma", "Gemma", Decoder),
    ("gemma2", "Gemma", Decoder),
    ("gemma3", "Gemma", Decoder),
    ("vit", "ViT", Images),
    ("deit", "ViT", Images),
    ("dinov2", "ViT", Images),
    ("mobilenet_v2", "MobileNetV2", Images),
    ("mobilenet_v3-large", "MobileNetV3", Images),
    ("mobilenet_v3-small", "MobileNetV3", Images),
    ("efficientnet", "EfficientNet", Images),
    ("efficientnet_v2", "EfficientNet", Images),
    ("efficientnet_lite", "EfficientNet-Lite", Images),
    ("convnext", "ConvNeXt", Images),
    ("convnext-torchvision", "ConvNeXt", Images),
    ("densenet", "DenseNet", Images),
    ("vgg", "VGG", Images),
    ("vgg_bn", "VGG", Images),
];

/// Models with a graph that do not run on data yet, with their families.
const NOT_RUN: &[(&str, &str)] = &[
    // Two values cross the border of its blocks.
    ("mpnet", "MPNet"),
    // Experts.
    ("mixtral", "Llama"),
    ("qwen3_moe", "Llama"),
    // Rotary scaling, and windows that are shorter than a text.
    ("llama-yarn", "Llama"),
    ("llama-dynamic", "Llama"),
    ("mistral", "Llama"),
    // No head.
    ("llama-base", "Llama"),
    ("vit-base", "ViT"),
];

/// Creates a sandbox with a model `m`, its tokenizer, and data: `data` to calibrate on, `held` to evaluate.
fn with(fixture: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let from = repository().join("fixtures/families").join(fixture);
    std::fs::create_dir(sandbox.path("m")).unwrap();
    copy(&from.join("model.safetensors"), &sandbox.path("m/model.safetensors"));
    if from.join("config.json").exists() {
        copy(&from.join("config.json"), &sandbox.path("m/config.json"));
        let config = config_of(&sandbox.path("m"));
        if config.get("vocab_size").is_some() {
            sandbox.write("m/tokenizer.json", tokenizer(&config).to_string());
        }
    }
    copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
    std::fs::remove_file(sandbox.path("images/owl/damaged.png")).unwrap();
    let text = std::fs::read_to_string(repository().join("fixtures/models/text.txt")).unwrap();
    sandbox.write("data.txt", &text);
    sandbox.write("held.txt", "A cat sat on the mat.\nThe dog ran.\nSnow fell on the town, and no one spoke.\n");
    sandbox
}

fn config_of(model: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap()
}

/// Replaces keys of `m/config.json`; a null removes the key.
fn configure(sandbox: &Sandbox, keys: Value) {
    let mut config = config_of(&sandbox.path("m"));
    for (key, value) in keys.as_object().unwrap() {
        match value.is_null() {
            true => drop(config.as_object_mut().unwrap().remove(key)),
            false => config[key] = value.clone(),
        }
    }
    sandbox.write("m/config.json", config.to_string());
}

/// Renames the tensors of `m`; a tensor without a new name is dropped.
fn rename(sandbox: &Sandbox, name: impl Fn(&str) -> Option<String>) {
    let renamed = |tensor: Tensor| Some(Tensor { name: name(&tensor.name)?, ..tensor });
    let tensors: Vec<Tensor> = tensors_of(&sandbox.path("m")).into_values().filter_map(renamed).collect();
    sandbox.write("m/model.safetensors", safetensors_of(&tensors));
}

/// Returns a tokenizer of letters, of at most 40 tokens; encoders get a token before and after a text.
fn tokenizer(config: &Value) -> Value {
    let is_decoder = is_decoder(config);
    let padding = config["pad_token_id"].as_u64().unwrap_or(0);
    let special: &[(&str, u64)] = if is_decoder { &[("<s>", 2)] } else { &[("<s>", 3), ("</s>", 4)] };
    let used: Vec<u64> = special.iter().map(|(_, id)| *id).chain([padding]).collect();
    let mut free = (0_u64..40).filter(|id| !used.contains(id));
    let letters = "abcdefghijklmnopqrstuvwxyzĠ.,'-".chars().map(String::from);
    let mut vocab: serde_json::Map<String, Value> =
        std::iter::once("<unk>".to_string()).chain(letters).map(|token| (token, free.next().unwrap().into())).collect();
    vocab.extend(special.iter().map(|(token, id)| (token.to_string(), json!(id))));
    let token = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let of = |(name, id): &(&str, u64)| (name.to_string(), json!({ "id": name, "ids": [id], "tokens": [name] }));
    let around = json!({
        "type": "TemplateProcessing",
        "single": [token("<s>"), text, token("</s>")], "pair": [token("<s>"), text, token("</s>")],
        "special_tokens": special.iter().map(of).collect::<serde_json::Map<_, _>>(),
    });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": { "type": "Lowercase" }, "pre_tokenizer": bytes, "decoder": bytes,
        "post_processor": if is_decoder { Value::Null } else { around },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    })
}

fn is_decoder(config: &Value) -> bool {
    let class = config["architectures"][0].as_str().unwrap();
    ["CausalLM", "LMHeadModel", "LlamaModel"].iter().any(|end| class.ends_with(end))
}

/// Flags for the data of a model: to calibrate, and to evaluate.
fn flags(kind: Kind) -> [&'static str; 2] {
    match kind {
        Images => ["--data images --samples 2 --size 40", "--data images --size 40"],
        _ => ["--data data.txt --max-length 24 --samples 8", "--data held.txt --max-length 24"],
    }
}

/// Runs `check` on every case, on all cores, and panics with every failure.
fn all<T: Sync>(cases: &[T], name: impl Fn(&T) -> String + Sync, check: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let failed = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(case))).is_err() {
                        failed.lock().unwrap().push(name(case));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{failed:?}; the panics are above");
}

#[test]
fn every_family_has_a_graph_that_gives_roles_and_groups() {
    let run: Vec<(&str, &str)> = MODELS.iter().map(|(fixture, family, _)| (*fixture, *family)).collect();
    let models = [run.as_slice(), NOT_RUN].concat();
    let known = std::fs::read_dir(repository().join("fixtures/families")).unwrap().count();
    assert_eq!(models.len(), known, "a fixture is missing in the table");
    all(&models, |(fixture, _)| fixture.to_string(), |(fixture, family)| {
        let sandbox = with(fixture);
        let found = sandbox.json("graph m --lowered --groups --batch 2 --tokens 9");
        assert_eq!(found["family"], *family);
        let n_bytes: u64 = found["nodes"].as_array().unwrap().iter().map(|node| node["bytes"].as_u64().unwrap()).sum();
        assert_eq!(json!(n_bytes), found["totals"]["weight_bytes"]);
        assert!(!found["coupling"]["groups"].as_array().unwrap().is_empty(), "{fixture} has no groups");
        let text = sandbox.ok("graph m --html g.html").stdout;
        assert!(text.contains(&format!("m: {family}, ")), "{text}");
        for line in text.lines() {
            assert!(!line.contains(" 0 to 0"), "{line}");
        }
        let page = std::fs::read_to_string(sandbox.path("g.html")).unwrap();
        assert!(page.contains("<svg class=\"graph\""));
        let found = sandbox.json("inspect m");
        assert_eq!(found["roles"], json!({ "from": "graph", "family": family, "n_by_name": 0 }));
        assert!(sandbox.ok("plan m --quantize int8-dynamic").stdout.contains("predicted weight files"));
    });
}

#[test]
fn every_family_runs_on_codes_and_as_dense_weights() {
    all(MODELS, |(fixture, ..)| fixture.to_string(), |(fixture, _, kind)| {
        let sandbox = with(fixture);
        let [_, held] = flags(*kind);
        sandbox.ok("compress m -o int8 --quantize int8-dynamic");
        sandbox.ok("verify int8 --against m");
        sandbox.ok("export int8 --to dense -o dense");
        let far = |model: &str, flags: &str| {
            let found = sandbox.json(&format!("eval {model} --against m {held} {flags}"));
            let metric = |name: &str| found["metrics"][name].as_f64().unwrap();
            if *kind == Decoder { metric("kl") } else { 1.0 - metric("cosine") }
        };
        let [codes, dense] = ["int8", "dense"].map(|model| far(model, ""));
        assert!(codes < 0.02 && dense < 0.02, "{fixture}: {codes} and {dense}");
        assert!(far("m", "").abs() < 1e-6);
        if *kind != Images {
            let offloaded = far("dense", "--offload");
            assert!((offloaded - dense).abs() < 1e-5, "{fixture}: {offloaded} and {dense}");
        }
    });
}

#[test]
fn every_family_is_calibrated_rounded_and_fits_into_a_budget() {
    all(MODELS, |(fixture, ..)| fixture.to_string(), |(fixture, _, kind)| {
        let sandbox = with(fixture);
        let [data, held] = flags(*kind);
        sandbox.ok(&format!("calibrate m {data} --gram -o m.stats.safetensors"));
        sandbox.ok("compress m -o wanda --prune 0.3 --prune-method wanda --statistics m.stats.safetensors");
        let of_sensitivity = data.replace("--samples 8", "--samples 4");
        let table = sandbox.ok(&format!("sensitivity m {of_sensitivity}")).stdout;
        assert!(table.lines().count() > 3, "{table}");
        let report = sandbox.json(&format!("compress m -o gptq --quantize int8 --round gptq {}", data_only(*kind)));
        let solved = report["tensors"].as_array().unwrap().iter().filter(|tensor| !tensor["solved"].is_null()).count();
        assert!(solved > 1, "{fixture}: GPTQ updated {solved} tensors");
        let found = sandbox.json(&format!("eval gptq --against m {held}"));
        let metric = |name: &str| found["metrics"][name].as_f64();
        let far = metric("kl").filter(|_| *kind == Decoder).unwrap_or_else(|| 1.0 - metric("cosine").unwrap());
        assert!(far < 0.02, "{fixture}: {far}");
        let outcome = sandbox.run(&format!("compress m -o bits --bits 7 {}", data_only(*kind)));
        assert_eq!(outcome.code, 0, "{fixture}: {}", outcome.stderr);
    });
}

/// Flags of `compress` for the data to calibrate on.
fn data_only(kind: Kind) -> &'static str {
    match kind {
        Images => "--data images --samples 2",
        _ => "--data data.txt --max-length 24 --samples 8",
    }
}

#[test]
fn a_student_of_layers_runs_from_its_files_as_it_was_trained() {
    let texts: Vec<_> = MODELS.iter().filter(|(.., kind)| *kind != Images).collect();
    all(&texts, |(fixture, ..)| fixture.to_string(), |(fixture, _, kind)| {
        let sandbox = with(fixture);
        trains_as_written(&sandbox, fixture, *kind);
    });
}

/// Trains the last of `m`'s layers, and compares the trained network with the written model.
fn trains_as_written(sandbox: &Sandbox, fixture: &str, kind: Kind) {
    let (loss, metric) = if kind == Decoder { ("logits", "perplexity") } else { ("embedding", "cosine") };
    let layers = if fixture == "albert" { "n_layers = 1" } else { "layers = [1]" };
    sandbox.write("recipe.toml", format!(
        "[model]\npath = \"m\"\n[output]\npath = \"student\"\n[data]\ntrain = \"data.txt\"\neval = \"held.txt\"\n\
         max_length = 24\n[[stage]]\nkind = \"distill\"\nstudent = \"layers\"\n{layers}\nloss = [{{ kind = \"{loss}\" }}]\n\
         epochs = 1\n[[stage]]\nkind = \"evaluate\"\n"
    ));
    let report = sandbox.json("distill recipe.toml");
    let trained = report["trained"][0]["epochs"][0]["metrics"][metric].as_f64().unwrap();
    let written = report["evaluation"]["metrics"][metric].as_f64().unwrap();
    assert!((trained / written - 1.0).abs() < 1e-3, "{fixture}: trained {trained}, written {written}");
}

#[test]
fn students_of_old_configs_keep_the_kinds_of_their_layers() {
    // Files of before transformers 5 list no kinds: they follow from the number of a layer.
    let old = [
        ("gemma2", Decoder, json!({ "layer_types": null })),
        ("gemma3", Decoder, json!({ "layer_types": null, "sliding_window_pattern": 2 })),
        ("modernbert", Encoder, json!({ "layer_types": null, "global_attn_every_n_layers": 2 })),
    ];
    for (fixture, kind, keys) in old {
        let sandbox = with(fixture);
        configure(&sandbox, keys);
        trains_as_written(&sandbox, fixture, kind);
    }
    let sandbox = with("smollm3");
    trains_as_written(&sandbox, "smollm3", Decoder);
    assert_eq!(config_of(&sandbox.path("student"))["no_rope_layers"], json!([0]));
}

#[test]
fn every_decoder_generates_the_same_text_from_its_dense_export() {
    let decoders: Vec<_> = MODELS.iter().filter(|(.., kind)| *kind == Decoder).collect();
    all(&decoders, |(fixture, ..)| fixture.to_string(), |(fixture, ..)| {
        let sandbox = with(fixture);
        sandbox.ok("export m --to burnpack -o packed");
        let text = |model: &str| {
            let outcome = sandbox.run(&format!("generate {model} --prompt abc --max-tokens 8 --json"));
            assert_eq!(outcome.code, 0, "{}", outcome.stderr);
            let found: Value = serde_json::from_str(&outcome.stdout).unwrap();
            found["texts"].clone()
        };
        assert_eq!(text("m"), text("packed"), "{fixture}");
    });
}

#[test]
fn names_and_keys_of_older_files_are_known() {
    let bert = with("bert-mlm");
    rename(&bert, |name| {
        Some(name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"))
    });
    let gpt2 = with("gpt2");
    rename(&gpt2, |name| Some(name.strip_prefix("transformer.").unwrap_or(name).to_string()));
    let opt = with("opt");
    rename(&opt, |name| Some(name.replace("model.decoder.", "decoder.")));
    let qwen3 = with("qwen3");
    configure(&qwen3, json!({ "rope_parameters": null, "rope_theta": 10000.0, "rope_scaling": null }));
    for (sandbox, fixture, kind) in
        [(bert, "bert-mlm", Encoder), (gpt2, "gpt2", Decoder), (opt, "opt", Decoder), (qwen3, "qwen3", Decoder)]
    {
        copy(&with(fixture).path("m"), &sandbox.path("new"));
        let found = sandbox.json(&format!("eval m --against new {}", flags(kind)[1]));
        let metric = |name: &str| found["metrics"][name].as_f64().unwrap();
        let far = if kind == Decoder { metric("kl") } else { 1.0 - metric("cosine") };
        assert!(far.abs() < 1e-6, "{fixture}: {far}");
    }
}

#[test]
fn a_model_without_the_head_of_its_task_has_a_graph_and_one_line_of_error() {
    let base = |name: &str, prefix: &str, head: &str| match name.starts_with(head) {
        true => None,
        false => Some(name.strip_prefix(prefix).unwrap_or(name).to_string()),
    };
    for (fixture, class, prefix, head, phrase) in [
        ("gpt2", "GPT2Model", "transformer.", "lm_head", "...ForCausalLM"),
        ("opt", "OPTModel", "model.", "lm_head", "...ForCausalLM"),
        ("dinov2", "Dinov2Model", "dinov2.", "classifier", "...ForImageClassification"),
        ("convnext", "ConvNextModel", "convnext.", "classifier", "...ForImageClassification"),
        ("vit-base", "ViTModel", "vit.", "classifier", "...ForImageClassification"),
    ] {
        let sandbox = with(fixture);
        configure(&sandbox, json!({ "architectures": [class] }));
        rename(&sandbox, |name| base(name, prefix, head));
        sandbox.ok("graph m");
        sandbox.ok("compress m -o int8 --quantize int8");
        let data = if phrase.contains("Image") { "--data images" } else { "--data held.txt" };
        for command in ["eval m", "calibrate m -o s.safetensors"] {
            sandbox.run(&format!("{command} {data}")).assert_fails(4, &["m: it has no ", phrase]);
        }
    }
}

#[test]
fn images_that_a_network_cannot_take_are_one_line() {
    for (fixture, size, phrase) in [
        ("convnext", 8, "data.size: found 8, but this network takes images of at least 16x16"),
        ("densenet", 7, "but this network takes images of at least"),
        ("vgg", 4, "data.size: found 4, but this network takes images of at least 8x8"),
        ("vit", 8, "crop 16x16 is not within size 8"),
    ] {
        let sandbox = with(fixture);
        sandbox.run(&format!("eval m --data images --size {size}")).assert_fails(2, &[phrase]);
    }
    // A network for images of one size takes no other, whatever the size of the usual crop is.
    let sandbox = with("vit");
    configure(&sandbox, json!({ "image_size": 224, "patch_size": 56 }));
    let larger = |tensor: Tensor| match tensor.name.ends_with("projection.weight") {
        true => Tensor::random(&tensor.name, &[16, 3, 56, 56], 1),
        false => tensor,
    };
    let tensors: Vec<Tensor> = tensors_of(&sandbox.path("m")).into_values().map(larger).collect();
    sandbox.write("m/model.safetensors", safetensors_of(&tensors));
    sandbox.run("eval m --data images --size 64").assert_fails(2, &["crop 224x224 is not within size 64"]);
    sandbox.run("eval m --data images --tile 64").assert_fails(2, &["this one is for 224x224"]);
    let recipe = |crop: &str| {
        format!(
            "[model]\npath = \"m\"\n[output]\npath = \"out\"\n[data]\neval = \"images\"\n{crop}\n[[stage]]\n\
             kind = \"cast\"\ndtype = \"f16\"\n[[stage]]\nkind = \"evaluate\"\n"
        )
    };
    sandbox.write("recipe.toml", recipe("crop = [64, 64]"));
    sandbox.run("run recipe.toml").assert_fails(2, &["data.crop: found 64x64, but this network takes only 224x224"]);
    // The preparation of the file of the model: ViT takes whole images, and values from -1 to 1.
    let agreement = |sandbox: &Sandbox| sandbox.json("eval m --data images --against n")["metrics"]["kl"].clone();
    copy(&sandbox.path("m"), &sandbox.path("n"));
    let normal = json!({ "image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0] });
    assert_eq!(agreement(&sandbox), 0.0);
    sandbox.write("m/preprocessor_config.json", normal.to_string());
    assert!(agreement(&sandbox).as_f64().unwrap() > 0.0);
    sandbox.write("m/preprocessor_config.json", json!({ "size": { "height": 0, "width": 9 } }).to_string());
    sandbox.run("eval m --data images").assert_fails(4, &["m/preprocessor_config.json: a size of images is 0"]);
}

#[test]
fn a_model_type_whose_names_belong_to_torchvision_is_explained() {
    let sandbox = with("mobilenet_v2");
    sandbox.write("m/config.json", json!({ "model_type": "mobilenet_v2" }).to_string());
    sandbox
        .run("graph m")
        .assert_fails(4, &["found model_type \"mobilenet_v2\"", "MobileNetV2 (of torchvision)"]);
    sandbox.ok("compress m -o out --quantize int8");
}

#[test]
fn layers_stored_by_input_cannot_be_factorized() {
    let sandbox = with("gpt2");
    let recipe = "[model]\npath = \"m\"\n[output]\npath = \"out\"\n[[stage]]\nkind = \"factorize\"\nbytes = 0.5\n";
    sandbox.write("recipe.toml", recipe);
    sandbox.run("run recipe.toml").assert_fails(2, &["found weights [in, out], such as transformer.h.0.attn.c_attn"]);
}

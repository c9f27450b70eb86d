//! Every family of networks through the commands: graphs, runs, calibration, budgets, students and text.
//!
//! The models are tiny and random (`fixtures/make_family_goldens.py`). The tests add a tokenizer of letters.
#![cfg(feature = "model")]

mod gaps;
mod limits;
pub(crate) mod models;
mod scales;
mod variants;

use crate::sandbox::{Sandbox, repository};
use models::{config_of, configure, with};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The data and the metrics of a model.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Encoder,
    Decoder,
    Images,
    /// Texts and their targets.
    Pairs,
    /// Sounds and their words.
    Sounds,
}
use Kind::{Decoder, Encoder, Images, Pairs, Sounds};

impl Kind {
    fn predicts_tokens(self) -> bool {
        matches!(self, Decoder | Pairs | Sounds)
    }
}

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
    ("modernbert-mean", "ModernBERT", Encoder),
    ("mpnet", "MPNet", Encoder),
    ("bert-tokens", "BERT", Encoder),
    ("camembert-tokens", "RoBERTa", Encoder),
    ("distilbert-tokens", "DistilBERT", Encoder),
    ("electra-tokens", "ELECTRA", Encoder),
    ("albert-classify", "ALBERT", Encoder),
    ("mpnet-classify", "MPNet", Encoder),
    ("modernbert-tokens", "ModernBERT", Encoder),
    ("nomic_bert", "NomicBERT", Encoder),
    ("nomic_bert-classify", "NomicBERT", Encoder),
    ("t5", "T5", Encoder),
    ("t5-gated", "T5", Encoder),
    ("clip-text", "CLIP text", Encoder),
    ("siglip-text", "CLIP text", Encoder),
    ("t5-translate", "T5", Pairs),
    ("t5-translate-gated", "T5", Pairs),
    ("bart", "BART", Pairs),
    ("mbart", "BART", Pairs),
    ("whisper", "Whisper", Sounds),
    ("gpt2", "GPT-2", Decoder),
    ("gpt_neox", "GPT-NeoX", Decoder),
    ("opt", "OPT", Decoder),
    ("llama", "Llama", Decoder),
    ("llama-yarn", "Llama", Decoder),
    ("llama-dynamic", "Llama", Decoder),
    ("mistral", "Llama", Decoder),
    ("qwen2", "Llama", Decoder),
    ("qwen3", "Llama", Decoder),
    ("phi3", "Llama", Decoder),
    ("phi3-longrope", "Llama", Decoder),
    ("olmo2", "Llama", Decoder),
    ("smollm3", "Llama", Decoder),
    ("granite", "Llama", Decoder),
    ("mixtral", "Llama", Decoder),
    ("qwen3_moe", "Llama", Decoder),
    ("gemma", "Gemma", Decoder),
    ("gemma2", "Gemma", Decoder),
    ("gemma3", "Gemma", Decoder),
    ("vit", "ViT", Images),
    ("deit", "ViT", Images),
    ("vit-timm", "ViT", Images),
    ("dinov2", "ViT", Images),
    ("clip-vision", "CLIP", Images),
    ("clip-classify", "CLIP", Images),
    ("siglip-classify", "CLIP", Images),
    ("resnet", "ResNet", Images),
    ("resnet-basic", "ResNet", Images),
    ("resnet-early", "ResNet", Images),
    ("mobilenet_v2", "MobileNetV2", Images),
    ("mobilenet_v2-transformers", "MobileNetV2", Images),
    ("mobilenet_v3-large", "MobileNetV3", Images),
    ("mobilenet_v3-small", "MobileNetV3", Images),
    ("efficientnet", "EfficientNet", Images),
    ("efficientnet_v2", "EfficientNet", Images),
    ("efficientnet_lite", "EfficientNet-Lite", Images),
    ("convnext", "ConvNeXt", Images),
    ("convnext-torchvision", "ConvNeXt", Images),
    ("densenet", "DenseNet", Images),
    ("swin", "Swin", Images),
    ("swin-padded", "Swin", Images),
    ("swin-torchvision", "Swin", Images),
    ("vgg", "VGG", Images),
    ("vgg_bn", "VGG", Images),
];

/// Models without the head of their task, or with two networks: they have a graph, and are compressed without data.
const HEADLESS: &[(&str, &str)] = &[
    ("bart-base", "BART"),
    ("clip", "CLIP"),
    ("llama-base", "Llama"),
    ("llama-classify", "Llama"),
    ("qwen3-tokens", "Llama"),
    ("gpt2-classify", "GPT-2"),
    ("gpt_neox-tokens", "GPT-NeoX"),
    ("opt-classify", "OPT"),
    ("gemma3-images", "Gemma"),
    ("siglip-vision", "CLIP"),
    ("vit-base", "ViT"),
];

/// Flags for the data of a model: to calibrate, and to evaluate.
fn flags(kind: Kind) -> [&'static str; 2] {
    match kind {
        Images => ["--data images --samples 2", "--data images --size 40"],
        Pairs => ["--data pairs.jsonl --max-length 16 --samples 8", "--data held.jsonl --max-length 16"],
        Sounds => ["--data sounds.jsonl --max-length 16 --samples 2", "--data sounds.jsonl --max-length 16"],
        _ => ["--data data.txt --max-length 16 --samples 8", "--data held.txt --max-length 16"],
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
    let models = [run.as_slice(), HEADLESS].concat();
    let known = std::fs::read_dir(repository().join("fixtures/families")).unwrap().count();
    assert_eq!(models.len(), known, "a fixture is missing in the table");
    all(
        &models,
        |(fixture, _)| fixture.to_string(),
        |(fixture, family)| {
            let sandbox = with(fixture);
            let found = sandbox.json("graph m --lowered --groups --batch 2 --tokens 9");
            assert_eq!(found["family"], *family);
            let n_bytes: u64 =
                found["nodes"].as_array().unwrap().iter().map(|node| node["bytes"].as_u64().unwrap()).sum();
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
            assert_eq!((&found["roles"]["from"], &found["roles"]["family"]), (&json!("graph"), &json!(family)));
            // CLIP and DINOv2 have a parameter that only their training uses, and the graph of Gemma 3 has no images.
            let has_others = ["clip", "dinov2", "gemma3-images"].contains(fixture);
            assert_eq!(found["roles"]["n_by_name"] != 0, has_others, "{fixture}");
            assert!(sandbox.ok("plan m --quantize int8-dynamic").stdout.contains("predicted weight files"));
        },
    );
}

#[test]
fn every_family_runs_on_codes_and_as_dense_weights() {
    all(
        MODELS,
        |(fixture, ..)| fixture.to_string(),
        |(fixture, _, kind)| {
            let sandbox = with(fixture);
            let [_, held] = flags(*kind);
            sandbox.ok("compress m -o int8 --quantize int8-dynamic");
            sandbox.ok("verify int8 --against m");
            sandbox.ok("export int8 --to dense -o dense");
            let far = |model: &str, flags: &str| {
                let found = sandbox.json(&format!("eval {model} --against m {held} {flags}"));
                let metric = |name: &str| found["metrics"][name].as_f64().unwrap();
                if kind.predicts_tokens() { metric("kl") } else { 1.0 - metric("cosine") }
            };
            let [codes, dense] = ["int8", "dense"].map(|model| far(model, ""));
            // Logits of T5 without a scale are large, and so is what rounding changes.
            let most = if *kind == Pairs { 0.1 } else { 0.02 };
            assert!(codes < most && dense < most, "{fixture}: {codes} and {dense}");
            assert!(far("m", "").abs() < 1e-6);
            if *kind != Images {
                let offloaded = far("dense", "--offload");
                assert!((offloaded - dense).abs() < 1e-5, "{fixture}: {offloaded} and {dense}");
            }
        },
    );
}

#[test]
fn every_family_is_calibrated_rounded_and_fits_into_a_budget() {
    all(
        MODELS,
        |(fixture, ..)| fixture.to_string(),
        |(fixture, _, kind)| {
            let sandbox = with(fixture);
            let [data, held] = flags(*kind);
            sandbox.ok(&format!("calibrate m {data} --gram -o m.stats.safetensors"));
            sandbox.ok("compress m -o wanda --prune 0.3 --prune-method wanda --statistics m.stats.safetensors");
            let of_sensitivity = data.replace("--samples 8", "--samples 4");
            let table = sandbox.ok(&format!("sensitivity m {of_sensitivity}")).stdout;
            assert!(table.lines().count() > 3, "{table}");
            let report = sandbox.json(&format!("compress m -o gptq --quantize int8 --round gptq {}", data_only(*kind)));
            let solved =
                report["tensors"].as_array().unwrap().iter().filter(|tensor| !tensor["solved"].is_null()).count();
            assert!(solved > 1, "{fixture}: GPTQ updated {solved} tensors");
            let found = sandbox.json(&format!("eval gptq --against m {held}"));
            let metric = |name: &str| found["metrics"][name].as_f64();
            let kl = metric("kl").filter(|_| kind.predicts_tokens());
            let far = kl.unwrap_or_else(|| 1.0 - metric("cosine").unwrap());
            assert!(far < if *kind == Pairs { 0.1 } else { 0.02 }, "{fixture}: {far}");
            // Updated weights of this network take more than 7 bits with the coarsest steps.
            let bits = if *fixture == "mobilenet_v2-transformers" { "7.3" } else { "7" };
            let outcome = sandbox.run(&format!("compress m -o bits --bits {bits} {}", data_only(*kind)));
            assert_eq!(outcome.code, 0, "{fixture}: {}", outcome.stderr);
        },
    );
}

#[test]
fn a_budget_below_the_bytes_of_updated_weights_is_met_by_rounding_to_nearest() {
    let sandbox = with("qwen2");
    let report = sandbox.json(&format!("compress m -o bits --bits 4 {}", data_only(Decoder)));
    let most = report["allocation"]["most_bytes"].as_u64().unwrap();
    assert!(report["after"]["file_bytes"].as_u64().unwrap() <= most, "{report}");
    sandbox.ok("verify bits");
}

/// Flags of `compress` for the data to calibrate on.
fn data_only(kind: Kind) -> &'static str {
    match kind {
        Images => "--data images --samples 2",
        Pairs => "--data pairs.jsonl --max-length 16 --samples 8",
        Sounds => "--data sounds.jsonl --max-length 16 --samples 2",
        _ => "--data data.txt --max-length 16 --samples 8",
    }
}

#[test]
fn a_student_of_layers_runs_from_its_files_as_it_was_trained() {
    let is_layered = |fixture: &str, kind| match kind {
        Images => ["vit", "deit", "dinov2"].contains(&fixture),
        kind => matches!(kind, Encoder | Decoder) && !fixture.starts_with("t5"),
    };
    let models: Vec<_> = MODELS.iter().filter(|(fixture, _, kind)| is_layered(fixture, *kind)).collect();
    all(
        &models,
        |(fixture, ..)| fixture.to_string(),
        |(fixture, _, kind)| {
            let sandbox = with(fixture);
            trains_as_written(&sandbox, fixture, *kind);
        },
    );
}

#[test]
fn layers_of_t5_are_not_chosen_because_the_first_has_the_positions_of_all() {
    let sandbox = with("t5");
    let recipe = "[model]\npath = \"m\"\n[output]\npath = \"student\"\n[data]\ntrain = \"data.txt\"\n[[stage]]\n\
                  kind = \"distill\"\nstudent = \"layers\"\nlayers = [1]\nloss = [{ kind = \"embedding\" }]\n";
    sandbox.write("recipe.toml", recipe);
    sandbox.run("distill recipe.toml").assert_fails(2, &["student", "has no layers to choose from"]);
}

/// Trains the last of `m`'s layers, and compares the trained network with the written model.
fn trains_as_written(sandbox: &Sandbox, fixture: &str, kind: Kind) {
    let (loss, metric, data) = match kind {
        Encoder => ("embedding", "cosine", "train = \"data.txt\"\neval = \"held.txt\"\nmax_length = 16"),
        Decoder => ("logits", "perplexity", "train = \"data.txt\"\neval = \"held.txt\"\nmax_length = 16"),
        Images => ("logits", "cosine", "train = \"images\"\neval = \"images\""),
        Pairs | Sounds => unreachable!("encoder-decoders are not trained"),
    };
    let hidden = if kind == Images { "" } else { ", { kind = \"hidden\", layers = \"every\" }" };
    let layers = if fixture.starts_with("albert") { "n_layers = 1" } else { "layers = [1]" };
    let recipe = format!(
        "[model]\npath = \"m\"\n[output]\npath = \"student\"\n[data]\n{data}\n[[stage]]\nkind = \"distill\"\n\
         student = \"layers\"\n{layers}\nloss = [{{ kind = \"{loss}\" }}{hidden}]\nepochs = 1\n[[stage]]\n\
         kind = \"evaluate\"\n"
    );
    sandbox.write("recipe.toml", recipe);
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
fn every_decoder_generates_the_same_tokens_from_an_export() {
    let decoders: Vec<_> = MODELS.iter().filter(|(.., kind)| kind.predicts_tokens()).collect();
    all(
        &decoders,
        |(fixture, ..)| fixture.to_string(),
        |(fixture, _, kind)| {
            let sandbox = with(fixture);
            sandbox.ok("export m --to burnpack -o packed");
            let prompt = if *kind == Sounds { "a.wav" } else { "abc" };
            let tokens_of = |model: &str| -> Vec<Value> {
                let outcome = sandbox.run(&format!("generate {model} --prompt {prompt} --max-tokens 8 --json"));
                assert_eq!(outcome.code, 0, "{}", outcome.stderr);
                let found: Value = serde_json::from_str(&outcome.stdout).unwrap();
                found["after"]["sequences"][0]["tokens"].as_array().unwrap().clone()
            };
            let tokens = tokens_of("m");
            assert_eq!((tokens.len(), &tokens), (8, &tokens_of("packed")), "{fixture}");
        },
    );
}

#[test]
fn models_of_speech_are_compared_by_their_words() {
    let sandbox = with("whisper");
    sandbox.ok("compress m -o int8 --quantize int8-dynamic");
    let found = sandbox.json("eval int8 --against m --data sounds.jsonl");
    let metric = |name: &str| found["metrics"][name].as_f64().unwrap();
    assert!(metric("wer") > 0.0 && metric("reference_wer") > 0.0, "random weights know no words");
    assert!((0.0..=1.0).contains(&metric("same_words")));
    let same = sandbox.json("eval m --against m --data sounds.jsonl");
    assert_eq!(same["metrics"]["same_words"], json!(1.0));
}

#[test]
fn what_an_encoder_decoder_cannot_do_is_one_line() {
    let (text, sound) = (with("bart"), with("whisper"));
    text.run("eval m --data data.txt").assert_fails(2, &["data.txt: this model takes pairs: .jsonl"]);
    text.run("eval m --data sounds.jsonl").assert_fails(2, &["found a sound as the source, and bart takes a text"]);
    sound.run("eval m --data held.jsonl").assert_fails(2, &["found a text as the source, and whisper takes a sound"]);
    sound.run("generate m --prompt none.wav").assert_fails(4, &["error: none.wav: no such file"]);
    sound.run("generate m --prompt held.jsonl").assert_fails(4, &["held.jsonl: it is no WAV file"]);
    text.run("generate m --prompt abc --system x").assert_fails(2, &["an encoder-decoder has no chat template"]);
    text.write("bad.jsonl", "{\"source\": \"a\"}\n");
    text.run("eval m --data bad.jsonl").assert_fails(4, &["bad.jsonl:1: found another form"]);
    text.write(
        "recipe.toml",
        "[model]\npath = \"m\"\n[output]\npath = \"student\"\n[data]\ntrain = \"pairs.jsonl\"\n[[stage]]\n\
         kind = \"distill\"\nstudent = \"self\"\nloss = [{ kind = \"logits\" }]\nepochs = 1\n",
    );
    text.run("distill recipe.toml").assert_fails(2, &["bart"]);
    configure(&text, json!({ "decoder_start_token_id": null }));
    text.run("eval m --data held.jsonl").assert_fails(4, &["decoder_start_token_id is missing"]);
}

//! Copies of the tiny models, with a tokenizer of letters and data, and changes of their files.

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use serde_json::{Value, json};
use std::path::Path;

/// Creates a sandbox with a model `m`, its tokenizer, and data: `data` to calibrate on, `held` to evaluate.
pub(crate) fn with(fixture: &str) -> Sandbox {
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
    } else {
        // Small images save time.
        let size = json!({ "size": { "height": 40, "width": 40 } });
        sandbox.write("m/preprocessor_config.json", size.to_string());
    }
    copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
    std::fs::remove_file(sandbox.path("images/owl/damaged.png")).unwrap();
    let text = std::fs::read_to_string(repository().join("fixtures/models/text.txt")).unwrap();
    sandbox.write("data.txt", &text);
    sandbox.write("held.txt", "A cat sat on the mat.\nThe dog ran.\nSnow fell on the town, and no one spoke.\n");
    let pair = |(source, target): (&str, &str)| json!({ "source": source, "target": target }).to_string() + "\n";
    let words: Vec<&str> = text.split_whitespace().take(48).collect();
    let pairs: String = words.chunks_exact(3).map(|three| pair((three[..2].join(" ").as_str(), three[2]))).collect();
    sandbox.write("pairs.jsonl", pairs);
    let held = [("A cat", "sat down"), ("The dog ran.", "it ran"), ("Snow fell", "on the town")];
    sandbox.write("held.jsonl", held.map(pair).concat());
    let sound = |(file, target): (&str, &str)| json!({ "audio": file, "target": target }).to_string() + "\n";
    sandbox.write("sounds.jsonl", [("a.wav", "a cat"), ("b.wav", "snow fell")].map(sound).concat());
    for (file, step) in [("a.wav", 7), ("b.wav", 31)] {
        std::fs::write(sandbox.path(file), wave(3200, step)).unwrap();
    }
    sandbox
}

/// Returns a WAV file of 16 bits at 16 kHz with `n` samples of a tone.
fn wave(n: u32, step: i32) -> Vec<u8> {
    let samples = (0..n as i32).flat_map(|at| (((at * step) % 200 - 100) as i16 * 100).to_le_bytes());
    let words = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let format = [words(&[16]), vec![1, 0, 1, 0], words(&[16_000, 32_000]), vec![2, 0, 16, 0]].concat();
    let data = [b"data".to_vec(), words(&[2 * n]), samples.collect()].concat();
    let body = [b"WAVEfmt ".to_vec(), format, data].concat();
    [b"RIFF".to_vec(), words(&[body.len() as u32]), body].concat()
}

pub(super) fn config_of(model: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap()
}

/// Replaces keys of `m/config.json`; a null removes the key.
pub(super) fn configure(sandbox: &Sandbox, keys: Value) {
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
pub(super) fn rename(sandbox: &Sandbox, name: impl Fn(&str) -> Option<String>) {
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

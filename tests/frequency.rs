//! Steps of token embeddings by the frequency of their tokens.

use crate::sandbox::Sandbox;
#[cfg(feature = "model")]
use crate::sandbox::{copy, repository};
use crate::weights::{Random, Tensor, safetensors_of, stored_tensors_of, tensors_of};
use serde_json::Value;

/// The rows of the table, of which the last two have no token.
const N_ROWS: usize = 902;

/// Writes a model with a table of 900 words, and the tokenizer of these words.
fn write_model(sandbox: &Sandbox) {
    let bell = |name: &str, shape: [usize; 2], seed: u64| {
        let mut random = Random(seed);
        let values = (0..shape[0] * shape[1]).map(|_| (0..6).map(|_| random.next_float() - 0.5).sum::<f32>());
        Tensor::f32(name, &shape, values.collect::<Vec<f32>>())
    };
    let tensors = [bell("embed_tokens.weight", [N_ROWS, 128], 1), bell("layers.0.up_proj.weight", [512, 128], 2)];
    sandbox.write("model/model.safetensors", safetensors_of(&tensors));
    let word = |id: usize| [id / 26, id % 26].map(|at| char::from(b'a' + (at % 26) as u8)).iter().collect::<String>();
    let vocab: Vec<String> = (0..N_ROWS - 2).map(|id| format!("\"{}{id}\": {id}", word(id))).collect();
    let text = format!("{{\"model\": {{\"type\": \"WordLevel\", \"vocab\": {{{}}}}}}}", vocab.join(", "));
    sandbox.write("model/tokenizer.json", text);
}

fn manifest(sandbox: &Sandbox, output: &str) -> Value {
    serde_json::from_slice(&std::fs::read(sandbox.path(output).join("briquette.json")).unwrap()).unwrap()
}

#[test]
fn frequent_tokens_have_small_steps_of_one_byte_each() {
    let sandbox = Sandbox::new();
    write_model(&sandbox);
    sandbox.ok("compress model -o out --bytes 90kB --quiet");
    let manifest = manifest(&sandbox, "out");
    assert_eq!(manifest["version"], 6);
    assert_eq!(manifest["tensors"]["embed_tokens.weight"]["coding"]["codes"]["scale"], "LOG8");
    let overrides = manifest["recipe"]["stage"][0]["overrides"].as_array().unwrap();
    let scheme = |name: &str| {
        let rule = overrides.iter().find(|rule| rule["include"][0] == name).unwrap();
        rule["scheme"].as_str().unwrap().to_string()
    };
    assert!(scheme("embed_tokens.weight").ends_with("-frequency"), "{overrides:?}");
    assert!(!scheme("layers.0.up_proj.weight").contains("frequency"), "{overrides:?}");
    let scales =
        stored_tensors_of(&sandbox.path("out/model.briquette.safetensors"))["embed_tokens.weight.scale"].bytes.clone();
    assert_eq!(scales.len(), N_ROWS);
    assert!(scales.is_sorted() && scales[0] + 2 <= scales[N_ROWS - 1], "{scales:?}");
    sandbox.ok("verify out --against model");
    // The recipe of the output makes it again, and other storage keeps the values.
    let flags = ["embed_tokens.weight", "layers.0.up_proj.weight"];
    let text = format!(
        "[model]\npath = \"model\"\n[output]\npath = \"again\"\nstorage = \"entropy\"\n[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\noverrides = [{}]\n",
        flags.map(|name| format!("{{ include = [{name:?}], scheme = {:?} }}", scheme(name))).join(", ")
    );
    sandbox.write("again.toml", text);
    sandbox.ok("run again.toml --quiet --threads 1");
    let weights = |output: &str| std::fs::read(sandbox.path(output).join("model.briquette.safetensors")).unwrap();
    assert!(weights("out") == weights("again"), "other bytes from its own recipe");
    sandbox.ok("export out --to briquette --storage auto -o codes");
    sandbox.ok("export out --to dense -o dense");
    let values = |output: &str| tensors_of(&sandbox.path(output))["embed_tokens.weight"].floats();
    assert!(values("dense") == values("out") && values("codes") == values("out"));
    let mut damaged = weights("out");
    let place = damaged.windows(scales.len()).position(|bytes| bytes == scales).unwrap();
    damaged[place + 7] ^= 1;
    sandbox.write("out/model.briquette.safetensors", damaged);
    sandbox.run("verify out").assert_fails(4, &["model.briquette.safetensors"]);
}

#[test]
fn steps_by_frequency_need_tokens() {
    let sandbox = Sandbox::new();
    write_model(&sandbox);
    let line = |model: &str, flags: &str| format!("compress {model} -o none --quantize step0.05-frequency {flags}");
    sandbox.run(&line("model", "")).assert_fails(2, &["up_proj", "an embedding of the tokens"]);
    sandbox.run(&line("model/model.safetensors", "--include embed_tokens.weight")).assert_ok();
    std::fs::remove_file(sandbox.path("model/tokenizer.json")).unwrap();
    sandbox.run(&line("model", "--include embed_tokens.weight --force")).assert_fails(2, &["tokenizer.json"]);
    // Without a tokenizer, a budget chooses plain steps.
    sandbox.ok("compress model -o plain --bytes 90kB --quiet");
    assert_eq!(manifest(&sandbox, "plain")["version"], 4);
}

#[test]
#[cfg(feature = "model")]
fn a_table_that_a_training_freezes_keeps_its_codes() {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    let recipe = |keys: &str| {
        format!(
            "[model]\npath = \"bert-tiny\"\n[output]\npath = \"out\"\n[budget]\nbytes = \"24kB\"\n[data]\ntrain = \"text.txt\"\n\
             max_length = 16\n[calibration]\ndata = \"text.txt\"\nmax_length = 16\n[[stage]]\nkind = \"distill\"\n\
             loss = [{{ kind = \"embedding\" }}]\nepochs = 1\ndropout = false\nquantization_aware = true\n{keys}\n[[stage]]\n\
             kind = \"quantize\"\nscheme = \"step-dynamic\"\nround = \"gptq\"\n"
        )
    };
    let scheme_of_table = |report: &Value| {
        let tensors = report["allocation"]["tensors"].as_array().unwrap();
        let table = tensors.iter().find(|tensor| tensor["name"].as_str().unwrap().ends_with("word_embeddings.weight"));
        table.unwrap()["scheme"].as_str().unwrap().to_string()
    };
    let table = |output: &str| {
        let tensors = stored_tensors_of(&sandbox.path(output).join("model.briquette.safetensors"));
        let parts = tensors.into_iter().filter(|(name, _)| name.contains("word_embeddings.weight"));
        parts.map(|(name, tensor)| (name, tensor.bytes)).collect::<Vec<_>>()
    };
    sandbox.write("r.toml", recipe("freeze = [\"embeddings.**\"]"));
    let report = sandbox.json("distill r.toml --quiet --device cpu");
    assert!(scheme_of_table(&report).contains("-frequency"), "{report}");
    // The pooler is not trained, and takes none of the bytes.
    let n_bytes = report["after"]["file_bytes"].as_u64().unwrap();
    assert!((23_760..=24_000).contains(&n_bytes), "{report}");
    sandbox.ok("verify out");
    // The budget alone chooses and rounds the table of a model without it in the same way.
    let weights = tensors_of(&sandbox.path("bert-tiny/model.safetensors")).into_values();
    let kept: Vec<Tensor> = weights.filter(|tensor| !tensor.name.starts_with("pooler")).collect();
    sandbox.write("bert-tiny/model.safetensors", safetensors_of(&kept));
    sandbox.ok(
        "compress bert-tiny -o plain --bytes 24kB --data text.txt --max-length 16 --quantize step-dynamic --device cpu --quiet",
    );
    assert!(table("out") == table("plain"), "the training changed the table");

    sandbox.write("r.toml", recipe(""));
    let report = sandbox.json("distill r.toml --quiet --device cpu --force");
    assert!(!scheme_of_table(&report).contains("frequency"), "{report}");
}

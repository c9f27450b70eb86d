//! `eval` of text classifiers: classes of texts and of tokens.

use crate::sandbox::{Sandbox, copy, repository};

/// A classifier of texts or tokens, with a tokenizer of its vocabulary.
fn classifier(family: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    copy(&repository().join("fixtures/families").join(family), &sandbox.path("m"));
    let words: Vec<String> = (5..40).map(|id| format!("\"w{id}\": {id}")).collect();
    let tokenizer = format!(
        "{{\"version\": \"1.0\", \"pre_tokenizer\": {{\"type\": \"Whitespace\"}}, \
         \"model\": {{\"type\": \"WordLevel\", \"unk_token\": \"[UNK]\", \"vocab\": {{\"[UNK]\": 1, {}}}}}}}",
        words.join(", ")
    );
    sandbox.write("m/tokenizer.json", tokenizer);
    let line = |at: usize| format!("{{\"text\": \"w{} w{} w{}\", \"label\": {}}}\n", 5 + at, 9 + at, 20 + at, at % 2);
    sandbox.write("labelled.jsonl", (0..16).map(line).collect::<String>());
    sandbox
}

#[test]
fn a_classifier_of_texts_has_accuracy_and_agreement() {
    let sandbox = classifier("bert");
    sandbox.ok("compress m -o out --quantize int8-dynamic");
    let found = sandbox.json("eval out --against m --data labelled.jsonl --device cpu");
    let metrics = found["metrics"].as_object().unwrap();
    for name in ["accuracy", "reference_accuracy", "f1", "agreement", "kl", "cosine"] {
        assert!(metrics.contains_key(name), "{name}: {found}");
    }
    assert!(metrics["agreement"].as_f64().unwrap() > 0.9 && metrics["kl"].as_f64().unwrap() < 0.01, "{found}");
    assert!(!metrics.contains_key("pair_spearman"), "{found}");
    let offloaded = sandbox.json("eval m --data labelled.jsonl --device cpu --offload");
    assert_eq!(offloaded["metrics"]["accuracy"], metrics["reference_accuracy"]);
}

#[test]
fn a_classifier_of_tokens_is_compared_token_by_token() {
    let sandbox = classifier("bert-tokens");
    sandbox.ok("compress m -o out --quantize int8-dynamic");
    let found = sandbox.json("eval out --against m --data labelled.jsonl --device cpu");
    assert_eq!(found["n_items"], 48, "three tokens in each of 16 texts: {found}");
    assert!(found["metrics"]["agreement"].as_f64().unwrap() > 0.9, "{found}");
    assert!(found["metrics"].get("accuracy").is_none(), "labels of texts are not those of tokens: {found}");
}

#[test]
fn labels_are_names_or_numbers_of_the_models_classes() {
    let sandbox = classifier("bert");
    let named = "{\"text\": \"w5\", \"label\": \"LABEL_1\"}\n{\"text\": \"w6\", \"label\": \"LABEL_0\"}\n";
    sandbox.write("named.jsonl", named);
    let config = std::fs::read_to_string(sandbox.path("m/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["id2label"] = serde_json::json!({"0": "LABEL_0", "1": "LABEL_1"});
    sandbox.write("m/config.json", config.to_string());
    let found = sandbox.json("eval m --data named.jsonl --device cpu");
    assert!(found["metrics"]["accuracy"].is_number(), "{found}");
    let line = "eval m --data bad.jsonl --device cpu";
    sandbox.write("bad.jsonl", named.replace("LABEL_1", "good"));
    sandbox.run(line).assert_fails(4, &["bad.jsonl", "label \"good\" is not a class", "expected LABEL_0, LABEL_1"]);
    sandbox.write("bad.jsonl", "{\"text\": \"w5\", \"label\": 2}\n");
    sandbox.run(line).assert_fails(4, &["bad.jsonl", "label 2 is out of range", "0 to 1"]);
    sandbox.write("bad.jsonl", "{\"sentence1\": \"w5\", \"sentence2\": \"w6\", \"label\": 1}\n");
    sandbox.run(line).assert_fails(2, &["bad.jsonl", "found pairs of sentences"]);
}

#[test]
fn decoders_with_classes_read_the_last_token_or_each_token() {
    for (family, n_items) in [("llama-classify", 16), ("gpt2-classify", 16), ("opt-classify", 16), ("qwen3-tokens", 48)]
    {
        let sandbox = classifier(family);
        sandbox.ok("compress m -o out --quantize int8-dynamic");
        let line = "eval out --against m --data labelled.jsonl --device cpu";
        let found = sandbox.json(line);
        assert_eq!(found["n_items"], n_items, "{family}: {found}");
        assert!(found["metrics"]["agreement"].as_f64().unwrap() > 0.8, "{family}: {found}");
        assert_eq!(found["metrics"].get("accuracy").is_some(), n_items == 16, "{family}: {found}");
        // Texts of a batch have padding; those of a run by block have none.
        let offloaded = sandbox.json(&format!("{line} --offload"));
        assert_eq!(offloaded["metrics"]["accuracy"], found["metrics"]["accuracy"], "{family}");
    }
}

#[test]
fn a_decoder_without_a_head_gives_embeddings_of_the_last_token() {
    let sandbox = classifier("llama-base");
    let modules = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]"#;
    sandbox.write("m/modules.json", modules);
    sandbox.write("m/1_Pooling/config.json", r#"{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false}"#);
    sandbox.write("texts.txt", "w5 w6\nw7\nw8 w9 w10 w11\n");
    sandbox.ok("compress m -o out --quantize int8");
    let found = sandbox.json("eval out --against m --data texts.txt --device cpu");
    assert!(found["metrics"]["cosine"].as_f64().unwrap() > 0.999, "{found}");
    let alone = sandbox.json("eval out --against m --data texts.txt --device cpu --batch-size 1");
    let cosine = |found: &serde_json::Value| found["metrics"]["cosine"].as_f64().unwrap();
    assert!((cosine(&alone) - cosine(&found)).abs() < 1e-6, "padding does not count: {alone} {found}");
}

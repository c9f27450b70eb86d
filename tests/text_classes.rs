//! `eval` of text classifiers: classes of texts and of tokens.

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{safetensors_of, tensors_of};

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
fn classifiers_in_onnx_are_evaluated_as_their_checkpoints_are() {
    for family in ["bert", "bert-tokens"] {
        let sandbox = classifier(family);
        sandbox.ok("export m --to onnx -o n --quiet");
        let of = |model: &str| sandbox.json(&format!("eval {model} --against m --data labelled.jsonl --device cpu"));
        let (found, expected) = (of("n"), of("m"));
        assert_eq!(found["n_items"], expected["n_items"], "{family}: {found}");
        let metrics = found["metrics"].as_object().unwrap();
        assert_eq!(
            metrics.keys().collect::<Vec<_>>(),
            expected["metrics"].as_object().unwrap().keys().collect::<Vec<_>>()
        );
        assert_eq!(metrics["agreement"], 1.0, "{family}: {found}");
        assert!(metrics["kl"].as_f64().unwrap() < 1e-6, "{family}: {found}");
        assert_eq!(metrics.get("accuracy"), expected["metrics"].get("accuracy"), "{family}: {found}");
    }
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
}

/// Pairs of texts as word ids, and the class that transformers 5.23 gives each; another one if all tokens are in one segment.
const PAIRS: [(&[u32], &[u32], usize); 16] = [
    (&[7], &[6, 22], 0),
    (&[6, 22, 15], &[39, 11], 0),
    (&[18, 22, 23], &[9], 0),
    (&[35, 10], &[9, 31], 0),
    (&[6], &[32, 31], 0),
    (&[17], &[23, 21], 0),
    (&[7], &[25, 28], 0),
    (&[25, 6], &[13, 8], 0),
    (&[26, 22, 37], &[7], 1),
    (&[28], &[12, 11], 1),
    (&[24, 16], &[11], 1),
    (&[36, 12], &[22], 1),
    (&[36, 20], &[6, 26], 1),
    (&[10, 21], &[25], 1),
    (&[9], &[11], 1),
    (&[23, 39], &[16], 1),
];

/// A classifier whose tokenizer separates the texts of a pair as BERT's does, and `pairs.jsonl` for it.
fn pair_classifier() -> Sandbox {
    let sandbox = classifier("bert");
    let tokenizer = std::fs::read_to_string(sandbox.path("m/tokenizer.json")).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&tokenizer).unwrap();
    let special = |name: &str, segment: usize| serde_json::json!({"SpecialToken": {"id": name, "type_id": segment}});
    let text = |name: &str, segment: usize| serde_json::json!({"Sequence": {"id": name, "type_id": segment}});
    let token = |name: &str, id: usize| serde_json::json!({"id": name, "ids": [id], "tokens": [name]});
    let single = vec![special("[CLS]", 0), text("A", 0), special("[SEP]", 0)];
    let pair: Vec<_> = single.iter().cloned().chain([text("B", 1), special("[SEP]", 1)]).collect();
    tokenizer["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing", "single": single, "pair": pair,
        "special_tokens": {"[CLS]": token("[CLS]", 2), "[SEP]": token("[SEP]", 3)},
    });
    (tokenizer["model"]["vocab"]["[CLS]"], tokenizer["model"]["vocab"]["[SEP]"]) = (2.into(), 3.into());
    sandbox.write("m/tokenizer.json", tokenizer.to_string());
    let words = |ids: &[u32]| ids.iter().map(|id| format!("w{id}")).collect::<Vec<_>>().join(" ");
    let line = |&(first, second, label): &(&[u32], &[u32], usize)| {
        format!("{{\"sentence1\": \"{}\", \"sentence2\": \"{}\", \"label\": {label}}}\n", words(first), words(second))
    };
    sandbox.write("pairs.jsonl", PAIRS.iter().map(line).collect::<String>());
    sandbox
}

#[test]
fn a_classifier_reads_pairs_with_their_segments() {
    let sandbox = pair_classifier();
    for line in ["eval m --data pairs.jsonl --device cpu", "eval m --data pairs.jsonl --device cpu --offload"] {
        let found = sandbox.json(line);
        assert_eq!((&found["n_items"], &found["metrics"]["accuracy"]), (&16.into(), &1.0.into()), "{line}: {found}");
    }
    sandbox.write("m/tokenizer_config.json", "{\"model_input_names\": [\"input_ids\", \"attention_mask\"]}");
    let found = sandbox.json("eval m --data pairs.jsonl --device cpu");
    assert_eq!(found["metrics"]["accuracy"], 0.0, "all tokens are in one segment: {found}");
    std::fs::remove_file(sandbox.path("m/tokenizer_config.json")).unwrap();
    sandbox.ok("compress m -o out --quantize int8-dynamic --round gptq --data pairs.jsonl --device cpu");
    let found = sandbox.json("eval out --against m --data pairs.jsonl --device cpu");
    assert!(found["metrics"]["kl"].as_f64().unwrap() < 1e-3, "{found}");
    sandbox.ok("sensitivity m --data pairs.jsonl --device cpu");
    let short = sandbox.run("eval m --data pairs.jsonl --device cpu --max-length 3");
    short.assert_fails(2, &["max_length is 3, expected more than 3 for pairs of texts"]);
}

/// A model that gives each pair of texts one score, as those that rank search results.
fn scorer() -> Sandbox {
    let sandbox = pair_classifier();
    keep_one_class(&sandbox.path("m/model.safetensors"));
    let config = std::fs::read_to_string(sandbox.path("m/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["id2label"] = serde_json::json!({"0": "LABEL_0"});
    sandbox.write("m/config.json", config.to_string());
    sandbox
}

#[test]
fn a_single_score_is_learned_by_its_squared_error() {
    let sandbox = scorer();
    sandbox.write("recipe.toml", recovery("pairs.jsonl", "{ kind = \"logits\" }", ""));
    let parts = ["loss \"logits\"", "found one score, whose softmax is always 1", "expected \"mse\""];
    sandbox.run("distill recipe.toml --device cpu").assert_fails(2, &parts);
    sandbox.write("recipe.toml", recovery("pairs.jsonl", "{ kind = \"logits\", by = \"mse\" }", ""));
    let report = sandbox.json("distill recipe.toml --device cpu");
    let curve = report["trained"][0]["curve"].as_array().unwrap();
    let [first, last] = [&curve[0], &curve[curve.len() - 1]].map(|step| step["loss"].as_f64().unwrap());
    assert!(last < 0.5 * first, "{first} {last}");
    sandbox.write("recipe.toml", recovery("pairs.jsonl", "{ kind = \"logits\", by = \"mse\", temperature = 2 }", ""));
    sandbox.run("distill recipe.toml --device cpu --force").assert_fails(2, &["temperature", "loss by \"mse\""]);
}

#[test]
fn a_single_score_is_compared_by_rank() {
    let sandbox = scorer();
    sandbox.ok("compress m -o out --quantize int8-dynamic");
    let found = sandbox.json("eval out --against m --data pairs.jsonl --device cpu");
    let metrics = found["metrics"].as_object().unwrap();
    let names: Vec<&str> = metrics.keys().map(String::as_str).collect();
    assert_eq!(names, ["reference_sts_spearman", "score_spearman", "sts_spearman"], "{found}");
    assert!(metrics["score_spearman"].as_f64().unwrap() > 0.9, "{found}");
    let found = sandbox.json("sensitivity m --data pairs.jsonl --device cpu");
    assert_eq!(found["unit"], "squared error of the score / 2");
    let of_pooler = |tensor: &&serde_json::Value| tensor["name"] == "bert.pooler.dense.weight";
    let loss =
        found["tensors"].as_array().unwrap().iter().find(of_pooler).map(|tensor| tensor["loss"].as_f64().unwrap());
    assert!(loss.is_some_and(|loss| loss > 0.0), "the score depends on the pooler: {found}");
}

/// Removes all but the first row of the layer of classes.
fn keep_one_class(path: &std::path::Path) {
    let mut tensors = tensors_of(path);
    for tensor in tensors.values_mut().filter(|tensor| tensor.name.starts_with("classifier.")) {
        tensor.bytes.truncate(tensor.bytes.len() / tensor.shape[0]);
        tensor.shape[0] = 1;
    }
    std::fs::write(path, safetensors_of(&tensors.into_values().collect::<Vec<_>>())).unwrap();
}

/// A recipe that prunes the model and trains it on a file with these losses.
fn recovery(data: &str, losses: &str, memory: &str) -> String {
    format!(
        "[model]\npath = \"m\"\n[output]\npath = \"out\"\n[data]\ntrain = \"{data}\"\neval = \"{data}\"\n\
         [memory]\nbatch_size = 8\n{memory}\n[[stage]]\nkind = \"prune\"\nsparsity = 0.3\n\
         [[stage]]\nkind = \"distill\"\nloss = [{losses}]\nepochs = 8\nlearning_rate = 1e-3\ndropout = false\n\
         [[stage]]\nkind = \"evaluate\"\n"
    )
}

/// Returns a metric after the first and the last epoch.
fn first_and_last(report: &serde_json::Value, metric: &str) -> [f64; 2] {
    let epochs = report["trained"][0]["epochs"].as_array().unwrap();
    [&epochs[0], &epochs[epochs.len() - 1]].map(|epoch| epoch["metrics"][metric].as_f64().unwrap())
}

#[test]
fn classifiers_of_texts_tokens_and_pairs_learn_the_teachers_classes() {
    let pairs = pair_classifier();
    for (sandbox, data) in [
        (&classifier("bert"), "labelled.jsonl"),
        (&classifier("bert-tokens"), "labelled.jsonl"),
        (&pairs, "pairs.jsonl"),
    ] {
        sandbox.write("recipe.toml", recovery(data, "{ kind = \"logits\" }", ""));
        let [first, last] = first_and_last(&sandbox.json("distill recipe.toml --device cpu"), "kl");
        assert!(last < 0.6 * first, "{data}: {first} {last}");
    }
}

#[test]
fn a_classifier_of_texts_learns_labels_and_one_of_tokens_has_none() {
    let sandbox = classifier("bert");
    sandbox.write("recipe.toml", recovery("labelled.jsonl", "{ kind = \"labels\" }", "").replace("1e-3", "1e-2"));
    let [first, last] = first_and_last(&sandbox.json("distill recipe.toml --device cpu"), "accuracy");
    assert!(last > first && last > 0.8, "{first} {last}");
    let sandbox = classifier("bert-tokens");
    sandbox.write("recipe.toml", recovery("labelled.jsonl", "{ kind = \"labels\" }", ""));
    sandbox.run("distill recipe.toml --device cpu").assert_fails(2, &["labels"]);
    sandbox.write("recipe.toml", recovery("labelled.jsonl", "{ kind = \"logits\" }", "cache_teacher = true"));
    sandbox.run("distill recipe.toml --device cpu").assert_fails(2, &["memory.cache_teacher", "classifier of tokens"]);
}

#[test]
fn embeddings_follow_the_last_norm_also_beside_losses_of_hidden_states() {
    let sandbox = classifier("modernbert");
    let first_loss = |losses: &str| {
        let recipe = recovery("labelled.jsonl", losses, "").replace("[[stage]]\nkind = \"evaluate\"\n", "");
        sandbox.write("recipe.toml", recipe.replace("epochs = 8", "epochs = 1"));
        let report = sandbox.json("distill recipe.toml --device cpu --force");
        report["trained"][0]["curve"][0]["loss"].as_f64().unwrap()
    };
    let alone = first_loss("{ kind = \"embedding\" }");
    let beside = first_loss("{ kind = \"embedding\" }, { kind = \"hidden\", weight = 1e-9 }");
    assert!((beside / alone - 1.0).abs() < 1e-4, "{alone} {beside}");
}

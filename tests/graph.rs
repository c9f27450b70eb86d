//! `briquette graph`: text, JSON, page, unknown families, and files that do not fit their config.json.

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use serde_json::{Value, json};

fn with(fixture: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    copy(&repository().join("fixtures/models").join(fixture), &sandbox.path("m"));
    sandbox
}

/// Replaces keys of `m/config.json`.
fn configure(sandbox: &Sandbox, keys: &[(&str, Value)]) {
    let path = sandbox.path("m/config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value) in keys {
        config[*key] = value.clone();
    }
    std::fs::write(path, config.to_string()).unwrap();
}

#[test]
fn equal_blocks_are_listed_once_with_shapes_bytes_and_multiply_adds() {
    let sandbox = with("bert-tiny");
    let text = sandbox.ok("graph m --tokens 10").stdout;
    let row = |start: &str| text.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
    let words = |start: &str| row(start).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        words("attention.self.query"),
        "attention.self.query linear weight [32, 32], bias [32] 4.22 kB 10.24 k [1, 10, 32]"
    );
    assert!(words("2 × encoder.layer.0 to 1").starts_with("2 × encoder.layer.0 to 1 block 60.03 kB"), "{text}");
    assert_eq!(text.matches("attention.self.query").count(), 1, "{text}");
    assert!(text.lines().last().unwrap().starts_with("m: BERT, 33 nodes, 18.11 k parameters"), "{text}");
    let all = sandbox.ok("graph m --all").stdout;
    assert_eq!(all.matches("attention.self.query").count(), 2, "{all}");
}

#[test]
fn json_follows_its_schema_and_its_sums_are_the_totals() {
    let sandbox = with("llama-tied");
    let found = sandbox.json("graph m --lowered --groups --batch 2 --tokens 8");
    assert_eq!((&found["format"], &found["version"]), (&json!("briquette-graph"), &json!(1)));
    let sum = |list: &str, key: &str| -> u64 {
        found[list].as_array().unwrap().iter().map(|entry| entry[key].as_u64().unwrap()).sum()
    };
    assert_eq!(json!(sum("nodes", "bytes")), found["totals"]["weight_bytes"]);
    assert_eq!(json!(sum("weights", "bytes")), found["totals"]["weight_bytes"], "a tied weight counts once");
    assert_eq!(json!(sum("primitives", "multiply_adds")), found["totals"]["multiply_adds"]);
    assert_eq!(found["values"][0], json!({ "name": "input_ids", "shape": [2, 8] }));
    let head = found["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "lm_head").unwrap();
    assert_eq!(
        (&head["op"], &head["inputs"][1], &head["bytes"]),
        (&json!("linear"), &json!({ "weight": 0 }), &json!(0))
    );
    assert_eq!(found["coupling"]["groups"][0]["places"][0]["name"], "model.embed_tokens.weight");
    let schema = sandbox.json("recipe schema graph");
    let allowed: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    for key in found.as_object().unwrap().keys() {
        assert!(allowed.contains(&key), "{key}");
    }
    let plain = sandbox.json("graph m");
    assert!(plain.get("primitives").is_none() && plain.get("coupling").is_none());
}

#[test]
fn groups_show_how_many_parameters_stay_at_half() {
    let sandbox = with("bert-tiny");
    let text = sandbox.ok("graph m --groups").stdout;
    assert!(text.contains("50 % of each group: 10.80 k of 18.11 k parameters stay (59.6 %)"), "{text}");
    assert!(text.contains("encoder.layer.0.attention.self.query.weight/0 × 8"), "{text}");
    let lowered = sandbox.ok("graph m --lowered").stdout;
    assert!(lowered.contains("transpose, [0, 2, 1, 3]") && lowered.contains("softmax, axis 3"), "{lowered}");
}

#[test]
fn a_page_is_written_once_and_never_among_the_files_of_the_model() {
    let sandbox = with("bert-tiny");
    let text = sandbox.ok("graph m --html g.html").stdout;
    assert!(text.lines().last().unwrap() == "wrote g.html", "{text}");
    let page = std::fs::read_to_string(sandbox.path("g.html")).unwrap();
    assert!(page.contains("<svg class=\"graph\"") && page.contains("2 × encoder.layer.0 to 1"), "{page}");
    sandbox.run("graph m --html g.html").assert_fails(6, &["g.html: exists already", "--force"]);
    sandbox.ok("graph m --html g.html --force");
    sandbox.run("graph m --html m/g.html").assert_fails(6, &["m/g.html", "in the model's directory"]);
}

#[test]
fn the_report_of_a_run_draws_the_network_of_a_known_family() {
    let sandbox = with("bert-tiny");
    sandbox.ok("compress m -o out --quantize int8");
    let page = std::fs::read_to_string(sandbox.path("out/report.html")).unwrap();
    assert!(page.contains("id=\"network\"") && page.contains("2 × encoder.layer.0 to 1"), "{page}");
    sandbox.ok("report out");
    assert_eq!(page, std::fs::read_to_string(sandbox.path("out/report.html")).unwrap());
    configure(&sandbox, &[("model_type", json!("yolo"))]);
    sandbox.ok("compress m -o other --quantize int8");
    let page = std::fs::read_to_string(sandbox.path("other/report.html")).unwrap();
    assert!(!page.contains("id=\"network\""), "{page}");
}

#[test]
fn an_unknown_family_is_one_line_that_names_known_ones_and_other_commands() {
    let sandbox = with("bert-tiny");
    configure(&sandbox, &[("model_type", json!("yolo"))]);
    let phrases =
        ["m: found model_type \"yolo\"", "BERT (bert)", "ResNet", "inspect, plan, compress and export need no graph"];
    sandbox.run("graph m").assert_fails(4, &phrases);
    assert!(sandbox.ok("inspect m").stdout.contains("\nroles: from names\n"));
    sandbox.ok("compress m -o out --quantize int8");
}

#[test]
fn a_config_that_lies_is_an_error_of_graph_and_names_decide_elsewhere() {
    for (key, value, phrase) in [
        ("hidden_size", json!(48), "hidden_size is 48, but word_embeddings.weight has 32"),
        ("vocab_size", json!(u64::MAX), "expected 1 to 2147483648"),
        ("num_hidden_layers", json!(3), "num_hidden_layers is 3"),
        ("num_attention_heads", json!(0), "num_attention_heads: found 0"),
        ("num_attention_heads", json!(5), "5 heads (num_attention_heads) do not divide"),
    ] {
        let sandbox = with("bert-tiny");
        let roles = |found: Value| -> Vec<Value> {
            found["tensors"].as_array().unwrap().iter().map(|tensor| tensor["role"].clone()).collect()
        };
        let before = sandbox.json("inspect m");
        assert_eq!(before["roles"], json!({ "from": "graph", "family": "BERT", "n_by_name": 0 }));
        configure(&sandbox, &[(key, value)]);
        sandbox.run("graph m").assert_fails(4, &["m: config.json: ", phrase]);
        let after = sandbox.json("inspect m");
        assert_eq!(after["roles"]["from"], "names");
        assert!(after["roles"]["why"].as_str().unwrap().contains(phrase), "{after}");
        assert_eq!(roles(before), roles(after), "{key}");
        let text = sandbox.ok("inspect m").stdout;
        assert!(text.contains("roles: from names, because there is no graph: config.json: "), "{text}");
    }
}

#[test]
fn a_missing_weight_and_a_weight_of_another_shape_are_named() {
    let sandbox = with("bert-tiny");
    let (name, other) = ("encoder.layer.1.output.dense.weight", "encoder.layer.0.intermediate.dense.weight");
    let tensors = || tensors_of(&sandbox.path("m")).into_values();
    let partial: Vec<Tensor> = tensors().filter(|tensor| tensor.name != name).collect();
    let misfit: Vec<Tensor> = tensors()
        .map(|tensor| if tensor.name == other { Tensor::random(other, &[47, 32], 1) } else { tensor })
        .collect();
    sandbox.write("m/model.safetensors", safetensors_of(&partial));
    sandbox.run("graph m").assert_fails(4, &[name, "the checkpoint lacks this tensor"]);
    assert!(sandbox.ok("inspect m").stdout.contains("roles: from names, because there is no graph: encoder.layer.1"));
    sandbox.ok("compress m -o out --quantize int8");
    sandbox.write("m/model.safetensors", safetensors_of(&misfit));
    sandbox
        .run("graph m")
        .assert_fails(4, &["node \"encoder.layer.0.intermediate.dense\"", "[48] does not fit: expected [47]"]);
}

#[test]
fn sizes_of_inputs_at_their_limits_are_one_line() {
    let sandbox = with("bert-tiny");
    copy(&repository().join("fixtures/models/resnet50-tiny.safetensors"), &sandbox.path("r.safetensors"));
    let most = 1_u64 << 31;
    sandbox.run(&format!("graph m --batch {most} --groups")).assert_fails(4, &["too many elements"]);
    sandbox.ok(&format!("graph m --tokens {most}"));
    sandbox
        .run(&format!("graph r.safetensors --batch {most} --image 65536x65536"))
        .assert_fails(4, &["more elements than memory"]);
    sandbox.run("graph r.safetensors --image 1x1").assert_ok();
    for wrong in ["--batch 0", "--tokens 99999999999", "--image 0x4", "--image 224x"] {
        sandbox.run(&format!("graph r.safetensors {wrong}")).assert_fails(2, &[]);
    }
}

//! Smaller networks from the command line: plans, outputs that every command reads, and errors.

use crate::sandbox::Sandbox;
#[cfg(feature = "model")]
use crate::sandbox::repository;
#[cfg(feature = "model")]
use briquette::formats::input_stats::StatisticsFile;
#[cfg(feature = "model")]
use serde_json::Value;

#[test]
fn flags_shrink_and_quantize_a_network_that_every_command_reads() {
    let sandbox = Sandbox::with("digits");
    let plan = sandbox.ok("plan digits --shrink 0.25 --quantize int8").stdout;
    assert!(plan.contains("Multiply-adds fall from") && plan.contains("channels: "), "{plan}");
    let figures = sandbox.json("plan digits --shrink 0.25 --quantize int8");
    let report = sandbox.json("compress digits -o out --shrink 0.25 --quantize int8");
    assert_eq!(figures["predicted_bytes"], report["after"]["file_bytes"]);
    let shrunk = &report["shrunk"][0];
    let [before, after] = [0, 1].map(|at| shrunk["multiply_adds"][at].as_u64().unwrap());
    assert!(after * 10 < before * 7, "{shrunk}");
    let conv = report["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == "conv2.weight").unwrap();
    assert_eq!(conv["shape"], serde_json::json!([24, 12, 3, 3]));
    sandbox.ok("verify out");
    sandbox.ok("inspect out");
    assert!(sandbox.ok("graph out").stdout.contains("24"));
    sandbox.run("verify out --against digits").assert_fails(2, &["--against", "smaller than those of the original"]);
    assert!(!sandbox.names().contains(&"out.stages".to_string()));
}

#[test]
fn a_plan_whose_sizes_are_not_known_gives_a_bound() {
    let sandbox = Sandbox::with("digits");
    let head = "[model]\npath = \"digits\"\n[output]\npath = \"out\"\nformat = \"dense\"\n[[stage]]\nkind =";
    let plan = |stage: &str| {
        sandbox.write("recipe.toml", format!("{head} {stage}\n"));
        sandbox.json("plan recipe.toml")["prediction_is_exact"].as_bool().unwrap()
    };
    assert!(plan("\"shrink\"\nratio = 0.25"));
    assert!(!plan("\"shrink\"\nratio = 0.25\nscope = \"global\""));
    assert!(!plan("\"shrink\"\nlatency = 0.8"));
    assert!(!plan("\"factorize\"\nbytes = 0.5"));
    assert!(sandbox.ok("plan recipe.toml").stdout.contains("predicted weight files: at most"));
}

#[test]
fn wrong_flags_are_one_line() {
    let sandbox = Sandbox::with("digits");
    let cases = [
        ("compress digits -o out --shrink 1", 2, "--shrink"),
        ("compress digits -o out --shrink 0.5 --shrink-parts head", 2, "--shrink-parts: found \"head\""),
        ("compress digits -o out --shrink 0.5 --shrink-method osscar", 2, "needs layer inputs"),
        ("compress digits -o out --shrink 0.5 --shrink-parts heads", 2, "the network has no heads"),
        ("plan digits --shrink 0.001", 2, "no unit of"),
    ];
    for (line, code, expected) in cases {
        sandbox.run(line).assert_fails(code, &[expected]);
    }
    assert_eq!(sandbox.names(), ["digits"]);
}

#[cfg(feature = "model")]
#[test]
fn a_shrunk_network_is_calibrated_refitted_trained_and_evaluated() {
    let sandbox = Sandbox::with("digits");
    let data = "digits-data.safetensors";
    sandbox.write(data, std::fs::read(repository().join("fixtures").join(data)).unwrap());
    sandbox.ok(&format!("calibrate digits --data {data} --gram -o stats.safetensors"));
    let accuracy = |report: &Value| report["evaluation"]["metrics"]["accuracy"].as_f64().unwrap();
    let run = |name: &str, keys: &str, more: &str| {
        let text = format!(
            "[model]\npath = \"digits\"\n[output]\npath = \"{name}\"\n[data]\ntrain = \"{data}\"\neval = \"{data}\"\n[memory]\n\
             batch_size = 64\n[[stage]]\nkind = \"shrink\"\nratio = 0.5\n{keys}\n{more}[[stage]]\nkind = \"evaluate\"\n"
        );
        sandbox.write("recipe.toml", text);
        sandbox.json("run recipe.toml --threads 1")
    };
    let random = accuracy(&run("random", "method = \"random\"", ""));
    let refitted = run("refitted", "statistics = \"stats.safetensors\"", "");
    assert!(refitted["shrunk"][0]["n_refitted"].as_u64().unwrap() >= 2, "{}", refitted["shrunk"]);
    let distill = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"logits\" }]\nepochs = 3\nlearning_rate = 2e-3\n";
    let trained = run("trained", "statistics = \"stats.safetensors\"", distill);
    let (refitted, trained) = (accuracy(&refitted), accuracy(&trained));
    assert!(refitted > random && trained > random + 0.05, "{random} {refitted} {trained}");
    let again = sandbox.json(&format!("eval trained --data {data}"));
    assert!((again["metrics"]["accuracy"].as_f64().unwrap() - trained).abs() < 1e-9);
}

#[cfg(feature = "model")]
#[test]
fn blocks_with_the_least_influence_in_the_statistics_are_dropped() {
    let sandbox = Sandbox::with("models/bert-tiny");
    sandbox.write("text.txt", std::fs::read(repository().join("fixtures/models/sentences.txt")).unwrap());
    sandbox.ok("calibrate bert-tiny --data text.txt --max-length 16 -o stats.safetensors --quiet");
    let influence = StatisticsFile::read_block_influence(&sandbox.path("stats.safetensors")).unwrap();
    assert!(influence.len() == 2 && influence.iter().all(|value| (0.0..2.0).contains(value)), "{influence:?}");
    let least = if influence[0] < influence[1] { 0 } else { 1 };
    let recipe = |keys: &str| {
        let text = "[model]\npath = \"bert-tiny\"\n[output]\npath = \"out\"\nformat = \"dense\"\n[[stage]]\nkind = \"shrink\"\n";
        sandbox.write("recipe.toml", format!("{text}{keys}\n"));
    };
    let of_file = "statistics = \"stats.safetensors\"";
    recipe(&format!("drop_n_blocks = 1\n{of_file}"));
    let plan = sandbox.ok("plan recipe.toml").stdout;
    assert!(plan.contains(&format!("{least}")), "{plan}");
    let report = sandbox.json("run recipe.toml");
    assert_eq!(report["shrunk"][0]["dropped_blocks"], serde_json::json!([least]));
    sandbox.ok("eval out --data text.txt --max-length 16");

    let without: Vec<_> = (0..3).map(|_| 0.5).collect();
    let stats = StatisticsFile::read(&sandbox.path("stats.safetensors")).unwrap();
    StatisticsFile { block_influence: without, ..stats.clone() }.write(&sandbox.path("three")).unwrap();
    StatisticsFile { block_influence: Vec::new(), ..stats }.write(&sandbox.path("none")).unwrap();
    for (keys, code, phrase) in [
        ("drop_n_blocks = 1", 2, "statistics: missing; drop_n_blocks needs layer inputs"),
        (&format!("drop_n_blocks = 2\n{of_file}"), 2, "drop_n_blocks: found 2, expected fewer than the 2 blocks"),
        (&format!("drop_n_blocks = 0\n{of_file}"), 2, "drop_n_blocks"),
        (&format!("drop_n_blocks = 1\ndrop_blocks = [0]\n{of_file}"), 2, "drop_blocks already names the blocks"),
        ("drop_n_blocks = 1\nstatistics = \"none\"", 4, "found the influence of 0 blocks, expected that of 2"),
        ("drop_n_blocks = 1\nstatistics = \"three\"", 4, "found the influence of 3 blocks"),
    ] {
        recipe(keys);
        sandbox.run("run recipe.toml --force").assert_fails(code, &[phrase]);
    }
}

//! Students of other sizes: their initial weights, predicted sizes and reports.
#![cfg(feature = "model")]

use crate::distill::{LAYERS, RECIPE, digits, of_sentences, sentences};
use crate::sandbox::{Sandbox, repository};
use serde_json::Value;

/// Returns a recipe that distills the digits network into another student, quantizes and evaluates it.
fn of_digits(student: &str, keys: &str) -> String {
    let head = &RECIPE[..RECIPE.find("[[stage]]").unwrap()];
    format!(
        "{head}[[stage]]\nkind = \"distill\"\nstudent = {student}\nloss = [{{ kind = \"labels\" }}]\nepochs = 2\n\
         learning_rate = 3e-3\n{keys}\n[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n[[stage]]\nkind = \"evaluate\"\n"
    )
}

const SMALL: &str = "{ hidden_size = 24, conv_channels = [8, 8] }";

fn first_loss(report: &Value) -> f64 {
    report["trained"][0]["curve"][0]["loss"].as_f64().unwrap()
}

#[test]
fn a_resized_student_starts_at_the_loss_of_uniform_logits() {
    for model in ["llama-tied", "llama-untied", "llama-qwen"] {
        let sandbox = Sandbox::with(&format!("models/{model}"));
        let text = std::fs::read_to_string(repository().join("fixtures/models/text.txt")).unwrap();
        sandbox.write("text.txt", text.repeat(4));
        sandbox.write(
            "recipe.toml",
            format!(
                "[model]\npath = \"{model}\"\n[output]\npath = \"out\"\n[data]\ntrain = \"text.txt\"\nmax_length = 16\n[memory]\n\
                 batch_size = 4\n[[stage]]\nkind = \"distill\"\nstudent = {{ hidden_size = 64 }}\nloss = [{{ kind = \"labels\" }}]\n"
            ),
        );
        let found = first_loss(&sandbox.json("distill recipe.toml --threads 1"));
        let config: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/config.json")).unwrap()).unwrap();
        let expected = config["vocab_size"].as_f64().unwrap().ln();
        assert!((found - expected).abs() < 0.1, "{model}: {found}, and ln(vocabulary) is {expected}");
    }
    let sandbox = digits(&of_digits(SMALL, ""));
    let found = first_loss(&sandbox.json("distill recipe.toml --threads 1"));
    assert!((found - 10.0_f64.ln()).abs() < 0.3, "{found}, and ln(classes) is 2.3");
}

#[test]
fn a_plan_predicts_the_bytes_of_the_student() {
    let cases: [(Sandbox, String); 5] = [
        (digits(""), RECIPE.to_string()),
        (digits(""), of_digits(SMALL, "")),
        (digits(""), of_digits("{ conv_channels = [8, 16], separable = true }", "")),
        (sentences(), of_sentences("out", &format!("{LAYERS}loss = [{{ kind = \"embedding\" }}]"), "")),
        (sentences(), of_sentences("out", "loss = [{ kind = \"embedding\" }]", "")),
    ];
    for (sandbox, recipe) in cases {
        sandbox.write("recipe.toml", &recipe);
        let plan = sandbox.json("plan recipe.toml");
        let report = sandbox.json("run recipe.toml --threads 1");
        assert_eq!(plan["predicted_bytes"], report["after"]["file_bytes"], "{recipe}");
        // A quantized tensor may have zeros, which take fewer bytes as a bitmask.
        let is_open = recipe.contains("\"quantize\"") && !recipe.contains("\"prune\"");
        assert_eq!(plan["prediction_is_exact"], !is_open, "{recipe}");
        let names = |of: &Value| -> Vec<(String, Value)> {
            let of = of["tensors"].as_array().unwrap().iter();
            let mut names: Vec<_> =
                of.map(|tensor| (tensor["name"].as_str().unwrap().to_string(), tensor["shape"].clone())).collect();
            names.sort_by(|a, b| a.0.cmp(&b.0));
            names
        };
        assert_eq!(names(&plan), names(&report), "{recipe}");
        let text = sandbox.ok("plan recipe.toml").stdout;
        assert!(is_open || text.contains("predicted weight files: exactly"), "{text}");
    }
    // Zeros from pruning may make the file smaller than the plan and the report predict, never larger.
    let sandbox = sentences();
    let prune = "[[stage]]\nkind = \"prune\"\nsparsity = 0.5\n[[stage]]\nkind = \"distill\"";
    let recipe = of_sentences("out", &format!("{LAYERS}loss = [{{ kind = \"embedding\" }}]"), "");
    sandbox.write("recipe.toml", recipe.replace("[[stage]]\nkind = \"distill\"", prune));
    let plan = sandbox.json("plan recipe.toml");
    let report = sandbox.json("run recipe.toml --threads 1");
    let after = report["after"]["file_bytes"].as_u64().unwrap();
    for predicted in [&plan, &report] {
        assert!(
            predicted["prediction_is_exact"] == false && predicted["predicted_bytes"].as_u64().unwrap() >= after,
            "{after}: {plan}"
        );
    }
    let pruned = of_digits("\"self\"", "prune = { sparsity = 0.8 }").replace("labels", "logits");
    let sandbox = digits(&pruned);
    let plan = sandbox.json("plan recipe.toml");
    let after = sandbox.json("run recipe.toml --threads 1")["after"]["file_bytes"].as_u64().unwrap();
    assert_eq!(plan["prediction_is_exact"], false);
    assert!(plan["predicted_bytes"].as_u64().unwrap() >= after, "{plan}");
}

#[test]
fn a_plan_refuses_the_students_that_a_run_refuses() {
    let cases = [
        ("{ hiden_size = 24 }", "unknown size \"hiden_size\""),
        ("{ num_labels = 7 }", "num_labels: the student has 7"),
        ("{ hidden_size = 0 }", "hidden_size: found 0"),
        ("{ hidden_size = \"wide\" }", "hidden_size: found \"wide\""),
        ("{ conv_channels = [8] }", "conv_channels: found [8], expected two sizes"),
        ("\"layers\"\nn_layers = 1", "digits-cnn has no layers to choose from"),
    ];
    for (student, phrase) in cases {
        let sandbox = digits(&of_digits(student, ""));
        let [plan, run] = ["plan", "run"].map(|command| sandbox.run(&format!("{command} recipe.toml --quiet")));
        plan.assert_fails(2, &[phrase]);
        assert_eq!((run.code, &run.stderr), (2, &plan.stderr), "{student}");
        assert!(!sandbox.path("out.stages").exists(), "before anything is written");
    }
    let sandbox = sentences();
    for (keys, phrase) in [
        ("student = { initializer_range = -1 }", "initializer_range: found -1"),
        ("student = { num_attention_heads = 5 }", "5 heads (num_attention_heads) do not divide"),
        ("student = \"layers\"\nn_layers = 9", "9"),
    ] {
        sandbox.write("recipe.toml", of_sentences("out", &format!("{keys}\nloss = [{{ kind = \"embedding\" }}]"), ""));
        for command in ["plan", "run"] {
            sandbox.run(&format!("{command} recipe.toml --quiet")).assert_fails(2, &[phrase]);
        }
    }
    // A pattern that matches no tensor of the student is refused before training.
    let stage = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\nexclude = [\"encoder.layer.1.**\"]\n";
    let recipe = of_sentences("out", &format!("{LAYERS}loss = [{{ kind = \"embedding\" }}]"), "");
    sandbox.write(
        "recipe.toml",
        recipe.replace("[[stage]]\nkind = \"evaluate\"", &format!("{stage}[[stage]]\nkind = \"evaluate\"")),
    );
    sandbox.run("run recipe.toml --quiet").assert_fails(2, &["encoder.layer.1.**"]);
    assert!(!sandbox.path("out.stages").exists());
}

#[test]
fn the_report_compares_a_smaller_student_with_the_original_and_times_its_training() {
    let sandbox = digits(&of_digits(SMALL, "metric = \"accuracy\""));
    let report = sandbox.json("run recipe.toml --threads 1");
    let before = report["before"]["tensor_bytes"].as_u64().unwrap();
    let sum = |list: &str, key: &str| -> u64 {
        report[list].as_array().unwrap().iter().map(|tensor| tensor[key].as_u64().unwrap()).sum()
    };
    assert_eq!(sum("tensors", "before_bytes") + sum("gone", "bytes"), before);
    let of = |name: &str| report["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == name).unwrap();
    assert_eq!((&of("fc1.weight")["is_new"], &of("fc1.weight")["before_bytes"]), (&true.into(), &0.into()));
    assert_eq!(of("fc2.bias")["before_bytes"], 40, "ten classes, as in the original");
    assert_eq!(report["model_format"], "safetensors");

    let trained = report["trained"][0]["wall_seconds"].as_f64().unwrap();
    let phases = report["seconds"].as_array().unwrap();
    assert!(phases[0][0] == "distill 1" && phases[0][1].as_f64().unwrap() >= trained, "{phases:?}");
    let total = report["total_seconds"].as_f64().unwrap();
    let all: f64 = phases.iter().map(|phase| phase[1].as_f64().unwrap()).sum();
    assert!(total >= 0.99 * all && trained > report["trained"][0]["seconds"].as_f64().unwrap(), "{total} of {all}");

    let page = std::fs::read_to_string(sandbox.path("out/report.html")).unwrap();
    let section = |id: &str| page.split_once(&format!("id=\"{id}\"")).unwrap().1.split_once("</section>").unwrap().0;
    let in_words = |n: u64| format!("{:.2} kB", n as f64 / 1e3);
    let files = report["before"]["file_bytes"].as_u64().unwrap();
    assert!(page.contains(&format!("<h1><span>{} <span", in_words(files))));
    assert!(section("composition").contains(&format!("<b>Before</b> {}", in_words(before))), "{before}");
    assert!(section("measured").contains("distill 1") && !section("measured").contains("accuracy"));
    assert!(section("quality").contains("accuracy") && page.find("\"quality\"") < page.find("\"composition\""));
    assert!(!page.contains("briquette (briquette"));
}

#[test]
fn a_student_with_fewer_layers_reports_their_number() {
    let sandbox = sentences();
    sandbox.write("recipe.toml", of_sentences("out", &format!("{LAYERS}loss = [{{ kind = \"embedding\" }}]"), ""));
    let report = sandbox.json("distill recipe.toml --threads 1");
    assert_eq!(report["stages"][0], "distill layers 1 of 2, epochs 2");
    assert_eq!(report["trained"][0]["student"], "1 of its 2 layers");
    let gone = report["gone"].as_array().unwrap();
    assert!(gone.iter().any(|tensor| tensor["name"] == "encoder.layer.1.output.dense.weight"), "{gone:?}");
}

#[test]
fn the_report_warns_if_the_best_epoch_was_chosen_on_the_evaluation_data() {
    let sandbox = sentences();
    let recipe = of_sentences("out", "loss = [{ kind = \"embedding\" }]", "");
    sandbox.write("recipe.toml", &recipe);
    let said = "was kept for its cosine on";
    let report = sandbox.json("distill recipe.toml --threads 1");
    assert!(report["remarks"].to_string().contains(said), "{}", report["remarks"]);
    assert!(sandbox.ok("report out").stdout.replace("\n  ", " ").contains(said));
    assert!(std::fs::read_to_string(sandbox.path("out/report.html")).unwrap().contains(said));

    let lines = std::fs::read_to_string(sandbox.path("train.txt")).unwrap();
    sandbox.write("a/select.txt", lines.lines().take(20).collect::<Vec<_>>().join("\n"));
    // The path is relative to the recipe, as other data paths are.
    let other = recipe
        .replace("path = \"bert-tiny\"", "path = \"../bert-tiny\"")
        .replace("= \"train.txt\"", "= \"../train.txt\"");
    let other = other.replace("eval = \"eval.txt\"", "eval = \"../eval.txt\"\nselect = \"select.txt\"");
    let failing = format!("{other}[gate]\nmin = {{ cosine = 1 }}\n");
    sandbox.write("a/recipe.toml", &failing);
    sandbox.run("distill a/recipe.toml --threads 1 --quiet").assert_fails(6, &["gate"]);
    sandbox.write("a/select.txt", "The cat sat on the mat.\nA dog ran.");
    sandbox.run("distill a/recipe.toml --threads 1 --quiet").assert_fails(6, &["select", "--force"]);
    sandbox.write("a/recipe.toml", &other);
    let report = sandbox.json("distill a/recipe.toml --threads 1 --force");
    assert!(!report["remarks"].to_string().contains("was kept for its"), "{}", report["remarks"]);
    assert!(report["trained"][0]["epochs_on"].as_str().unwrap().ends_with("select.txt"));
    assert!(report["evaluation"]["data"].as_str().unwrap().ends_with("eval.txt"));
    let page = std::fs::read_to_string(sandbox.path("a/out/report.html")).unwrap();
    assert!(page.contains("select.txt"), "the epoch table names its data");
}

#[test]
fn selection_data_without_effect_is_refused_in_one_line() {
    let with = |select: &str| RECIPE.replace("eval = ", &format!("select = \"{select}\"\neval = "));
    let cases = [
        (with("digits-data.safetensors"), 2, "data.select: found the same data as data.eval"),
        (with("other.npz").replace("metric = \"accuracy\"\n", ""), 2, "data.select: no distill stage"),
        (with("nothing.npz"), 4, "nothing.npz"),
    ];
    for (recipe, code, phrase) in cases {
        digits(&recipe).run("distill recipe.toml --quiet").assert_fails(code, &[phrase]);
    }
    let alone = RECIPE.replace("eval = \"digits-data.safetensors\"\n", "");
    let alone = &alone[..alone.rfind("[[stage]]\nkind = \"evaluate\"").unwrap()];
    digits(alone).run("distill recipe.toml --quiet").assert_fails(2, &["set data.eval or data.select"]);
}

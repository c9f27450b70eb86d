//! Evaluation: by command, as a stage, and with a gate.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};

const RECIPE: &str = r#"
[model]
path = "digits"
[output]
path = "out"
[data]
eval = "digits-data.safetensors"
[[stage]]
kind = "quantize"
scheme = "int8"
[[stage]]
kind = "evaluate"
"#;

fn digits() -> Sandbox {
    let sandbox = Sandbox::with("digits");
    let data = "digits-data.safetensors";
    copy(&repository().join("fixtures").join(data), &sandbox.path(data));
    sandbox
}

#[test]
fn a_model_is_measured_against_its_original() {
    let sandbox = digits();
    sandbox.ok("compress digits -o out --quantize int8");
    let found = sandbox.json("eval out --data digits-data.safetensors --against digits --device cpu");
    let metric = |name: &str| found["metrics"][name].as_f64().unwrap();
    assert!((metric("reference_accuracy") - 355.0 / 360.0).abs() < 1e-9, "torch has another accuracy");
    assert!(metric("accuracy") > 0.98 && metric("agreement") > 0.99 && metric("kl") < 0.01);
    for run in ["before", "after"] {
        let memory = &found[run]["memory"][0];
        let (weights, predicted) =
            (memory["weights_bytes"].as_f64().unwrap(), memory["predicted_bytes"].as_f64().unwrap());
        assert!(weights > 0.0 && predicted > 40e3, "{run}: {weights} measured, {predicted} predicted");
        assert!(memory["peak_bytes"].as_f64().unwrap() >= weights, "{run}");
        assert!(found[run]["p50_ms"].as_f64().unwrap() > 0.0, "{run}");
    }
    let text = sandbox.ok("eval out --data digits-data.safetensors --against digits").stdout;
    for word in ["accuracy", "agreement", "latency", "memory", "before", "after", "360 items"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_single_model_has_no_after_column() {
    let sandbox = digits();
    let text = sandbox.ok("eval digits --data digits-data.safetensors --device cpu").stdout;
    assert!(text.contains("model") && !text.contains("after") && !text.contains("before"), "{text}");
}

#[test]
fn quality_is_in_the_first_lines_and_in_the_job_table() {
    let sandbox = digits();
    sandbox.write("good.toml", RECIPE);
    let text = sandbox.ok("run good.toml").stdout;
    assert!(text.lines().nth(1).unwrap().contains("accuracy 0.9") && text.contains("(original 0.98"), "{text}");
    let page = std::fs::read_to_string(sandbox.path("out/report.html")).unwrap();
    assert!(page.split_once("</header>").unwrap().0.contains("accuracy 0.9"), "{page}");
    sandbox.write("jobs.toml", "[[job]]\nname = \"a\"\nrecipe = \"good.toml\"\n");
    std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    let text = sandbox.ok("run jobs.toml").stdout;
    assert!(text.lines().next().unwrap().contains("; accuracy 0.9"), "{text}");
    assert!(text.lines().nth(2).unwrap().contains("accuracy  agreement"), "{text}");
}

#[test]
fn a_gate_passes_only_outputs_within_its_bounds() {
    let sandbox = digits();
    sandbox.write("good.toml", format!("{RECIPE}\n[gate]\nmin = {{ accuracy = 0.95 }}\nmax = {{ kl = 0.1 }}\n"));
    let report = sandbox.json("run good.toml");
    assert!(report["evaluation"]["metrics"]["accuracy"].as_f64().unwrap() > 0.95);
    sandbox.ok("verify out --against digits");
    let before = sandbox.files("");
    sandbox.write("bad.toml", RECIPE.replace("\"out\"", "\"bad\"") + "\n[gate]\nmin = { accuracy = 0.999 }\n");
    sandbox.run("run bad.toml").assert_fails(6, &["gate", "accuracy is 0.9", "at least 0.999"]);
    std::fs::remove_file(sandbox.path("bad.toml")).unwrap();
    assert_eq!(sandbox.files(""), before, "nothing was written");
}

#[test]
fn a_memory_limit_below_the_original_is_refused_before_encoding() {
    let sandbox = digits();
    sandbox.write("limit.toml", format!("{RECIPE}\n[memory]\nlimit = \"40kB\"\n"));
    let before = sandbox.files("");
    sandbox.run("run limit.toml --quiet").assert_fails(6, &["memory.limit", "run", "digits", "at most 40000"]);
    sandbox.run("plan limit.toml --quiet").assert_fails(6, &["memory.limit", "at most 40000"]);
    assert_eq!(sandbox.files(""), before);
    sandbox.run("run limit.toml --trace trace.json").assert_fails(6, &["memory.limit"]);
    let trace = std::fs::read_to_string(sandbox.path("trace.json")).unwrap();
    assert!(!trace.contains("encode"), "{trace}");
    sandbox.write("jobs.toml", "[[job]]\nname = \"a\"\nrecipe = \"limit.toml\"\n");
    let plan = sandbox.run("plan jobs.toml");
    assert!(plan.code == 3 && plan.stdout.contains("memory.limit"), "{}{}", plan.stdout, plan.stderr);
}

#[test]
fn devices_are_listed_with_or_without_a_gpu() {
    let sandbox = Sandbox::new();
    let text = sandbox.ok("devices").stdout;
    let line = text.lines().find(|line| line.starts_with("cuda")).unwrap();
    let found = sandbox.json("devices");
    let n = found["cuda"].as_array().unwrap().len();
    let is_built = !line.contains("not in this build");
    assert_eq!(is_built, cfg!(feature = "cuda"), "{line}");
    assert_eq!(n == 0, line.contains("not in this build") || line.contains("none found"), "{line}");
    assert!(found["cpus"].as_u64().unwrap() > 0 && found["runs_models"] == true);
}

#[test]
fn batch_sizes_are_chosen_to_fit_and_reported() {
    let sandbox = digits();
    let eval = "eval digits --data digits-data.safetensors --batch-size auto";
    let (free, tight) = (sandbox.json(eval), sandbox.json(&format!("{eval} --memory-limit 20MB")));
    assert!(free["is_batch_auto"].as_bool().unwrap() && free["batch_size"].as_u64().unwrap() > 1);
    assert!(tight["batch_size"].as_u64().unwrap() <= free["batch_size"].as_u64().unwrap());
    assert_eq!(free["metrics"]["accuracy"], tight["metrics"]["accuracy"]);
    let text = sandbox.ok(eval).stdout;
    assert!(text.contains("in batches of") && text.contains("as many as fit"), "{text}");
}

#[test]
fn devices_list_the_instructions_of_int8_products() {
    let sandbox = digits();
    let path = sandbox.json("devices")["int8_path"].as_str().unwrap().to_string();
    assert!(["amx", "avx512-vnni", "avx-vnni", "avx2", "neon-dot", "scalar"].contains(&path.as_str()), "{path}");
    assert!(sandbox.ok("devices").stdout.contains(&format!("int8 products use {path}")));
}

#[test]
fn settings_without_effect_or_out_of_range_are_refused() {
    let sandbox = digits();
    sandbox.write("lines.txt", "one\ntwo\n");
    copy(&repository().join("fixtures/models/bert-tiny"), &sandbox.path("bert"));
    copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
    let text = "eval bert --data lines.txt";
    let cases: [(String, i32, &[&str]); 8] = [
        (format!("{text} --labels /nonexistent"), 2, &["data.labels: ", "(--labels)", "labels of an array"]),
        (format!("{text} --size 7"), 2, &["data.size: ", "(--size)", "this model takes text"]),
        (format!("{text} --tile 9"), 2, &["data.tile: ", "(--tile)", "leave it out"]),
        (format!("{text} --strict"), 2, &["data.strict: ", "(--strict)"]),
        ("eval digits --data images --labels /nonexistent".into(), 2, &["data.labels", "a folder of images"]),
        ("eval digits --data images --max-length 3".into(), 2, &["data.max_length: ", "(--max-length)", "cuts texts"]),
        ("eval digits --data images --size 100000".into(), 2, &["data.size: found 100000", "from 1 to 16384"]),
        ("run settings.toml".into(), 2, &["data.max_length", "the data is an array"]),
    ];
    sandbox.write(
        "settings.toml",
        RECIPE.replace("eval = \"digits-data.safetensors\"", "eval = \"digits-data.safetensors\"\nmax_length = 4"),
    );
    let before = sandbox.files("");
    for (line, code, phrases) in cases {
        sandbox.run(&line).assert_fails(code, phrases);
    }
    assert_eq!(sandbox.files(""), before);
}

#[test]
fn a_batch_may_be_larger_than_the_data() {
    let sandbox = digits();
    for n in ["1000000000000", "18446744073709551615"] {
        let found = sandbox.json(&format!("eval digits --data digits-data.safetensors --batch-size {n}"));
        assert!(found["batch_size"].as_u64().unwrap() <= 360, "{found}");
    }
    // A sparse file takes no disk space and may be larger than memory.
    let holes = std::fs::File::create(sandbox.path("holes.npy")).unwrap();
    holes.set_len(1 << 42).unwrap();
    sandbox.run("eval digits --data holes.npy").assert_fails(5, &["holes.npy", "cannot read", "memory"]);
}

#[test]
fn unsupported_models_are_refused_in_one_line() {
    let sandbox = digits();
    sandbox.write("lines.txt", "one\ntwo\n");
    sandbox.write("nothing.txt", "\n");
    copy(&repository().join("fixtures/models/bert-tiny"), &sandbox.path("bert"));
    sandbox.write(
        "no-stage.toml",
        RECIPE.replace("kind = \"evaluate\"", "kind = \"quantize\"\nscheme = \"int8\"")
            + "[gate]\nmin = { accuracy = 0.9 }\n",
    );
    sandbox.write("no-data.toml", RECIPE.replace("eval = \"digits-data.safetensors\"", ""));
    sandbox.write("metric.toml", format!("{RECIPE}\n[gate]\nmin = {{ perplexity = 9 }}\n"));
    sandbox.write("limit.toml", format!("{RECIPE}\n[memory]\nlimit = \"lots\"\n"));
    let cases: [(&str, i32, &[&str]); 16] = [
        ("eval digits", 2, &["--data"]),
        ("eval bert --data nothing.txt", 4, &["nothing.txt", "nothing to evaluate"]),
        (
            "eval digits --data digits-data.safetensors --arch resnet18",
            4,
            &["not a type of resnet18", "set arch = \"digits-cnn\""],
        ),
        ("eval digits --data absent.npy", 4, &["absent.npy", "no such file"]),
        ("eval digits --data lines.txt", 4, &["lines.txt"]),
        ("eval digits --data digits-data.safetensors --device gpu", 2, &["device", "auto, cpu, cuda"]),
        ("eval digits --data digits-data.safetensors --device cuda:7", 2, &["cuda:7"]),
        ("eval digits --data digits-data.safetensors --memory-limit 1kB", 6, &["memory.limit", "1000"]),
        (
            "eval digits --data digits-data.safetensors --memory-limit 2MB",
            6,
            &["memory.limit", "a batch of 1 needs about", "at most 2000000", "smaller items"],
        ),
        (
            "eval digits --data digits-data.safetensors --batch-size 0",
            2,
            &["memory.batch_size: found 0, expected a whole number from 1"],
        ),
        ("eval digits --data digits-data.safetensors --batch-size many", 2, &["memory.batch_size", "many"]),
        ("eval digits --data digits-data.safetensors --tile 4", 2, &["tile is 4", "8x8"]),
        ("run no-stage.toml", 2, &["gate", "evaluate stage"]),
        ("run no-data.toml", 2, &["data.eval", "missing"]),
        ("run metric.toml", 2, &["perplexity", "not measured"]),
        ("run limit.toml", 2, &["memory.limit", "lots"]),
    ];
    let before = sandbox.files("");
    for (line, code, phrases) in cases {
        sandbox.run(line).assert_fails(code, phrases);
    }
    assert_eq!(sandbox.files(""), before);
}

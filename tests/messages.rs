//! Common mistakes: the error is one line that says what to write instead.

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{safetensors_of, tiny};

fn with_tiny() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.safetensors", safetensors_of(&tiny()));
    sandbox.write("text.txt", "one\ntwo\n");
    sandbox
}

#[test]
fn errors_in_flags_suggest_flags() {
    let sandbox = with_tiny();
    let compress = "compress tiny.safetensors -o out";
    let cases: [(String, &[&str]); 17] = [
        (
            format!("{compress} --min cosine=1.5 --eval text.txt"),
            &["--min", "expected cosine as a number from -1 to 1"],
        ),
        (format!("{compress} --min accuracy=98 --eval text.txt"), &["expected accuracy as a number from 0 to 1"]),
        (format!("{compress} --max perplexity=0.5 --eval text.txt"), &["expected perplexity as a number from 1 to"]),
        (format!("{compress} --bytes 9.4"), &["--bytes: found \"9.4\"", "did you mean \"9.4MB\"?"]),
        (format!("{compress} --bytes 9"), &["--bytes: found \"9\"", "did you mean \"9MB\"?"]),
        (
            format!("{compress} --quantize int8 --format safetensors"),
            &["--format: found \"safetensors\"", "did you mean \"dense\"?"],
        ),
        ("export tiny.safetensors --to safetensors -o out".into(), &["--to: found", "did you mean \"dense\"?"]),
        (
            format!("{compress} --bytes 1MB --quantize int8"),
            &["--quantize: found int8", "remove --quantize", "--choices int8"],
        ),
        ("compress tiny.safetensors out/x --quantize int8".into(), &["'out/x'", "-o out/x"]),
        ("compress tiny.safetensors int8 -o out".into(), &["'int8'", "--quantize int8"]),
        ("quantize tiny.safetensors int8".into(), &["'quantize'", "briquette compress MODEL -o OUT --quantize int8"]),
        ("prune tiny.safetensors 0.4".into(), &["briquette compress MODEL -o OUT --prune 0.4"]),
        ("convert tiny.safetensors".into(), &["briquette export MODEL --to dense -o OUT"]),
        (format!("{compress} --prune 40"), &["from 0 to below 1", "for 40 % give 0.4"]),
        (format!("{compress} --prune 40%"), &["for 40 % give 0.4"]),
        (format!("{compress} --quantize int8 --range mxe"), &["--range: found \"mxe\"", "did you mean \"mse\"?"]),
        (format!("{compress} --bits 3 --choices int8,int99"), &["--choices: "]),
    ];
    for (line, phrases) in cases {
        let outcome = sandbox.run(&line);
        outcome.assert_fails(2, phrases);
        for word in ["[[stage]]", "stage with", "budget.", "output.", "calibration."] {
            assert!(!outcome.stderr.contains(word), "{line}: the error suggests a recipe key: {}", outcome.stderr);
        }
        assert!(!sandbox.path("out").exists(), "{line}");
    }
}

#[test]
fn the_same_errors_in_a_recipe_suggest_keys() {
    let sandbox = with_tiny();
    let head = "[model]\npath = \"tiny.safetensors\"\n[output]\npath = \"out\"\n";
    let quantize = "[[stage]]\nkind = \"quantize\"\nscheme = \"step\"\n";
    let cases = [
        (format!("{head}format = \"safetensors\"\n"), "r.toml:5: output.format: found \"safetensors\""),
        (format!("{head}[budget]\nbytes = \"9.4\"\n{quantize}"), "r.toml:6: budget.bytes: found \"9.4\""),
        (
            format!("{head}[gate.min]\ncosine = 1.5\n[data]\neval = \"text.txt\"\n[[stage]]\nkind = \"evaluate\"\n"),
            "r.toml:6: gate.min.cosine: found 1.5, expected a number from -1 to 1",
        ),
        (
            format!("{head}[[stage]]\nkind = \"prune\"\nsparsty = 0.4\n"),
            "unknown key \"sparsty\", expected one of kind, exclude, include, method,",
        ),
    ];
    for (recipe, expected) in cases {
        sandbox.write("r.toml", recipe);
        for line in ["run r.toml", "plan r.toml", "compress --recipe r.toml"] {
            sandbox.run(line).assert_fails(2, &[expected]);
        }
    }
}

#[test]
fn a_bare_command_prints_its_help() {
    let sandbox = Sandbox::new();
    for line in ["", "recipe"] {
        let help = sandbox.ok(line).stdout;
        assert!(help.contains("Usage: briquette") && help.contains("Commands:"), "{line}: {help}");
        assert_eq!(help, sandbox.ok(&format!("{line} -h")).stdout, "{line}");
    }
    let outcome = sandbox.run("--json");
    assert_eq!(outcome.code, 2, "{}", outcome.stdout);
}

#[test]
fn every_flag_of_a_command_with_many_flags_has_a_heading() {
    let sandbox = Sandbox::new();
    for command in ["compress", "sweep", "plan", "eval", "calibrate", "sensitivity", "generate"] {
        let help = sandbox.ok(&format!("{command} --help")).stdout;
        let (_, options) = help.split_once("\nOptions:\n").unwrap();
        let own: Vec<&str> = options.lines().take_while(|line| !line.is_empty()).collect();
        assert!(own.len() <= 2 && own[0].contains("--help"), "{command}: {own:?}");
        assert!(help.contains("\nInput:\n") && help.contains("\nCommon:\n"), "{command}: {help}");
    }
}

#[test]
#[cfg(feature = "model")]
fn errors_of_a_sweep_show_paths_as_given() {
    let sandbox = Sandbox::with("digits");
    copy(&repository().join("fixtures/digits-data.safetensors"), &sandbox.path("data.safetensors"));
    let here = sandbox.path("").canonicalize().unwrap();
    let weights = std::fs::read(sandbox.path("digits/model.safetensors")).unwrap();
    for (name, bytes) in [("model.safetensors", &weights[..weights.len() - 9]), ("config.json", b"{".as_slice())] {
        sandbox.write(&format!("digits/{name}"), bytes);
        let refused =
            sandbox.run("sweep digits -o sizes --bytes 6kB..9kB --eval data.safetensors --device cpu --quiet");
        assert_ne!(refused.code, 0);
        let stderr = &refused.stderr;
        assert!(stderr.contains("digits") && !stderr.contains(here.to_str().unwrap()), "{name}: {stderr}");
        sandbox.write("digits/model.safetensors", &weights);
    }
}

#[test]
fn a_hub_model_name_in_a_recipe_gives_the_download_command() {
    let sandbox = Sandbox::with("digits");
    let id = "sentence-transformers/all-MiniLM-L6-v2";
    let stage = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n";
    let recipe = format!("[model]\npath = \"{id}\"\n[output]\npath = \"out\"\n{stage}");
    sandbox.write("configs/recipe.toml", &recipe);
    let jobs = format!(
        "[base.model]\npath = \"{id}\"\n{}[matrix]\n\"output.path\" = [\"out\"]\n",
        stage.replace("stage", "base.stage")
    );
    sandbox.write("configs/jobs.toml", jobs);
    let mut lines = vec![("run configs/recipe.toml", 4), ("plan configs/recipe.toml", 4), ("run configs/jobs.toml", 3)];
    if cfg!(feature = "model") {
        let teacher = format!("teacher = \"{id}\"\nloss = [{{ kind = \"logits\" }}]\n");
        let train = "[data]\ntrain = \"../data.safetensors\"\n[[stage]]\nkind = \"distill\"\n";
        let recipe = recipe.replace(id, "../digits").replace(stage, &format!("{train}{teacher}"));
        sandbox.write("configs/teacher.toml", recipe);
        copy(&repository().join("fixtures/digits-data.safetensors"), &sandbox.path("data.safetensors"));
        lines.push(("run configs/teacher.toml", 4));
    }
    for (line, code) in lines {
        let outcome = sandbox.run(line);
        assert_eq!(outcome.code, code, "{line}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(&format!("hf download {id} --local-dir")), "{line}: {}", outcome.stderr);
    }
}

#[test]
fn a_hub_model_name_gives_the_download_command_or_the_cached_path() {
    let sandbox = Sandbox::new();
    let id = "sentence-transformers/all-MiniLM-L6-v2";
    let run = |line: &str| {
        let output = sandbox.command(line).env("HF_HUB_CACHE", sandbox.path("hub")).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{line}");
        String::from_utf8(output.stderr).unwrap()
    };
    let snapshot = sandbox.path("hub/models--sentence-transformers--all-MiniLM-L6-v2/snapshots/c9745ed1");
    let lines = [
        format!("inspect {id}"),
        format!("compress {id} -o out --quantize int8"),
        format!("plan {id} --quantize int8"),
        format!("diff {id} {id}"),
        format!("export {id} --to dense -o out"),
    ];
    for line in &lines {
        let error = run(line);
        assert!(error.contains(&format!("hf download {id} --local-dir models/all-MiniLM-L6-v2")), "{line}: {error}");
        assert!(error.contains("hub/models--sentence-transformers--all-MiniLM-L6-v2/snapshots"), "{line}: {error}");
        assert_eq!(error.lines().count(), 1, "{line}: {error}");
    }
    std::fs::create_dir_all(&snapshot).unwrap();
    for line in &lines {
        let error = run(line);
        assert!(
            error.contains(&format!("use {}", snapshot.display())) && !error.contains("hf download"),
            "{line}: {error}"
        );
    }
    std::fs::create_dir_all(sandbox.path("sentence-transformers")).unwrap();
    assert!(!run(&lines[0]).contains("hub"), "a directory of that name is no organization");
}

#[test]
#[cfg(feature = "model")]
fn json_files_are_refused_as_text() {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/llama-tied"), &sandbox.path("llama-tied"));
    let lines = [
        "eval bert-tiny --data bert-tiny/config.json",
        "eval llama-tied --data llama-tied/config.json",
        "calibrate bert-tiny --data bert-tiny/tokenizer.json -o stats.safetensors",
        "compress bert-tiny -o out --bits 3 --data bert-tiny/config.json",
    ];
    for line in lines {
        sandbox.run(line).assert_fails(4, &["found a JSON document, expected text, or .jsonl"]);
    }
}

#[test]
#[cfg(feature = "model")]
fn a_decoder_without_a_head_is_refused_with_the_missing_tensor() {
    use crate::weights::tensors_of;
    let sandbox = Sandbox::with("models/llama-untied");
    let tensors: Vec<_> = tensors_of(&sandbox.path("llama-untied")).into_values().collect();
    let cut = |renamed: fn(&str) -> Option<String>| {
        let renamed = tensors.iter().filter_map(|tensor| {
            let mut tensor = tensor.clone();
            tensor.name = renamed(&tensor.name)?;
            Some(tensor)
        });
        safetensors_of(&renamed.collect::<Vec<_>>())
    };
    let weights = |bytes: Vec<u8>| {
        for name in std::fs::read_dir(sandbox.path("llama-untied")).unwrap().flatten() {
            let name = name.file_name().into_string().unwrap();
            if name.starts_with("model") {
                std::fs::remove_file(sandbox.path(&format!("llama-untied/{name}"))).unwrap();
            }
        }
        sandbox.write("llama-untied/model.safetensors", bytes);
    };
    sandbox.write("text.txt", "some words to run it on");
    let line = "eval llama-untied --data text.txt --device cpu";
    weights(cut(|name| name.strip_prefix("model.").map(str::to_string)));
    // An embedding model, as LlamaModel is saved.
    sandbox.ok(line);
    weights(cut(|name| Some(name.replace("lm_head", "score"))));
    sandbox.run(line).assert_fails(4, &["and no lm_head.weight, like a LlamaForSequenceClassification"]);
    weights(cut(|name| (name != "lm_head.weight").then(|| name.to_string())));
    sandbox.run(line).assert_fails(4, &["it has no lm_head.weight", "tie_word_embeddings"]);
    weights(cut(|name| Some(name.to_string())));
    sandbox.ok(line);
}

#[test]
#[cfg(feature = "model")]
fn a_weight_file_given_without_its_directory_says_to_give_the_directory() {
    let sandbox = Sandbox::with("models/llama-untied");
    sandbox.write("text.txt", "some words to run it on");
    let line = "eval llama-untied/model.safetensors --data text.txt --device cpu --arch llama";
    sandbox.run(line).assert_fails(4, &["config.json: it is read only with its directory; give llama-untied instead"]);
    std::fs::remove_file(sandbox.path("llama-untied/config.json")).unwrap();
    sandbox.run(line).assert_fails(4, &["config.json: it is missing", "put it next to the weights"]);
}

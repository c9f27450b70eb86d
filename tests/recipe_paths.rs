//! Paths of recipes that train: relative to their file, part of the run's identity, and never overwritten by
//! outputs.

use crate::distill::{RECIPE, digits, sums};
use crate::sandbox::{Sandbox, copy, repository};
use serde_json::Value;
use std::time::Duration;

/// Position of the first training pixel and of the first test pixel in the digits data.
const FIRST_TO_TRAIN: usize = 288 + 23_400;
const FIRST_TO_TEST: usize = 288;

/// One epoch with a teacher; paths are relative to the recipe.
const STAGES: &str = r#"
[[stage]]
kind = "distill"
teacher = "teacher"
loss = [{ kind = "logits" }]
learning_rate = 1e-3
metric = "accuracy"
save_every = 2
[[stage]]
kind = "quantize"
scheme = "int8"
[[stage]]
kind = "evaluate"
"#;
const DATA: &str = "[data]\ntrain = \"train.safetensors\"\neval = \"test.safetensors\"\n[memory]\nbatch_size = 64\n";

/// Creates a model, a teacher, data and a recipe in `work`, with decoy files of the same names outside.
fn work() -> Sandbox {
    let sandbox = Sandbox::new();
    let fixtures = repository().join("fixtures");
    for name in ["model", "teacher"] {
        copy(&fixtures.join("digits"), &sandbox.path(&format!("work/{name}")));
        sandbox.write(&format!("{name}/config.json"), "not this one");
    }
    for name in ["train.safetensors", "test.safetensors"] {
        copy(&fixtures.join("digits-data.safetensors"), &sandbox.path(&format!("work/{name}")));
        sandbox.write(name, "not this one");
    }
    sandbox.write("work/recipe.toml", format!("[model]\npath = \"model\"\n[output]\npath = \"alone\"\n{DATA}{STAGES}"));
    sandbox
}

/// Changes one bit of a file.
fn flip(sandbox: &Sandbox, name: &str, at: usize) {
    let mut bytes = std::fs::read(sandbox.path(name)).unwrap();
    bytes[at] ^= 1;
    std::fs::write(sandbox.path(name), bytes).unwrap();
}

/// Returns the stages as keys of a job or a base.
fn stages_of(table: &str) -> String {
    STAGES.replace("[[stage]]", &format!("[[{table}.stage]]"))
}

#[test]
fn paths_are_relative_to_the_file_that_names_them() {
    let sandbox = work();
    sandbox.ok("distill work/recipe.toml --threads 1 --quiet");
    let expected = sums(&sandbox, "work/alone");
    let data = DATA.replace("[data]", "[job.data]").replace("[memory]", "[job.memory]");
    let other = "set = { \"output.path\" = \"set\", \"model.path\" = \"model\", \"stage.0.teacher\" = \"teacher\", \
                 data.train = \"train.safetensors\", data.eval = \"test.safetensors\" }";
    sandbox.write("work/below/recipe.toml", format!("[model]\npath = \"x\"\n[output]\npath = \"y\"\n{DATA}{STAGES}"));
    let jobs = format!(
        "[[job]]\n[job.model]\npath = \"model\"\n[job.output]\npath = \"inline\"\n{data}{}\n[[job]]\nrecipe = \
         \"below/recipe.toml\"\n{other}\n[[job]]\nrecipe = \"recipe.toml\"\nset = {{ \"output.path\" = \"named\" }}\n",
        stages_of("job")
    );
    sandbox.write("work/jobs.toml", jobs);
    sandbox.ok("run work/jobs.toml --threads 1 --quiet");
    for output in ["inline", "set", "named"] {
        assert_eq!(sums(&sandbox, &format!("work/{output}")), expected, "{output}");
    }
}

/// A batch of two jobs that share a training stage.
fn batch() -> Sandbox {
    let sandbox = work();
    let data = DATA.replace("[data]", "[base.data]").replace("[memory]", "[base.memory]");
    let jobs = format!(
        "[base.model]\npath = \"model\"\n[base.output]\npath = \"out/{{stage.1.scheme}}\"\n{data}{}\n[matrix]\n\
         \"stage.1.scheme\" = [\"int8\", \"int4\"]\n",
        stages_of("base")
    );
    sandbox.write("work/jobs.toml", jobs);
    sandbox
}

fn jobs_of(sandbox: &Sandbox, line: &str) -> Vec<Value> {
    sandbox.json(line)["jobs"].as_array().unwrap().clone()
}

#[test]
fn training_shared_by_a_matrix_runs_once_and_again_after_its_inputs_change() {
    let sandbox = batch();
    let line = "run work/jobs.toml --threads 1 --resume --trace trace.json";
    let n_trained = || {
        let trace: Value = serde_json::from_slice(&std::fs::read(sandbox.path("trace.json")).unwrap()).unwrap();
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == "train").count()
    };
    let first = jobs_of(&sandbox, line);
    assert_eq!((n_trained(), &first[1]["trained_with"]), (1, &Value::from("int8")));
    sandbox.ok("distill work/recipe.toml --threads 1 --quiet");
    assert_eq!(sums(&sandbox, "work/out/int8"), sums(&sandbox, "work/alone"), "shared training gives another output");
    assert!(!sandbox.path("work/out/jobs.stages").exists());
    let page = std::fs::read_to_string(sandbox.path("work/out/jobs.report.html")).unwrap();
    assert!(page.contains(">accuracy</th>") && page.contains("trained once for int8"), "{page}");
    assert!(first.iter().all(|job| job["metrics"]["accuracy"].as_f64().unwrap() > 0.9), "{first:?}");
    let statuses =
        |jobs: &[Value]| jobs.iter().map(|job| job["status"].as_str().unwrap().to_string()).collect::<Vec<_>>();
    assert_eq!(statuses(&jobs_of(&sandbox, line)), ["skipped", "skipped"]);

    let cases = [
        ("train.safetensors", FIRST_TO_TRAIN, "data.train"),
        ("test.safetensors", FIRST_TO_TEST, "data.eval"),
        ("teacher/model.safetensors", 100_000, "stage.0.teacher"),
        ("model/model.safetensors", 100_000, "model.path"),
    ];
    for (name, at, key) in cases {
        flip(&sandbox, &format!("work/{name}"), at);
        let again = jobs_of(&sandbox, line);
        assert_eq!((statuses(&again), n_trained()), (vec!["done".to_string(); 2], 1), "{key}");
        assert_eq!(again[0]["redone"], format!("the content of {key} changed"));
    }
    // The location of the folder does not matter.
    std::fs::rename(sandbox.path("work"), sandbox.path("moved")).unwrap();
    assert_eq!(statuses(&jobs_of(&sandbox, &line.replace("work", "moved"))), ["skipped", "skipped"]);
}

#[test]
fn a_killed_training_run_is_not_resumed_with_other_evaluation_data() {
    let sandbox = work();
    let recipe = std::fs::read_to_string(sandbox.path("work/recipe.toml")).unwrap();
    sandbox.write("work/recipe.toml", recipe.replace("learning_rate", "epochs = 20\nlearning_rate"));
    let line = "distill work/recipe.toml --threads 1 --quiet";
    let mut child = sandbox.command(line).spawn().unwrap();
    while !sandbox.path("work/alone.stages/1-training/last.json").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the run finished before its first checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    flip(&sandbox, "work/test.safetensors", FIRST_TO_TEST);
    sandbox.run(line).assert_fails(6, &["alone.stages", "the content of data.eval changed", "--force"]);
    // With its old content, the file is accepted again.
    flip(&sandbox, "work/test.safetensors", FIRST_TO_TEST);
    let again = sandbox.run("distill work/recipe.toml --threads 1");
    assert!(again.code == 0 && again.stderr.contains("resumed from step"), "{}", again.stderr);
}

#[test]
fn training_never_overwrites_its_inputs() {
    let sandbox = work();
    sandbox.ok("compress work/model -o work/ours --quantize int8");
    let recipe = std::fs::read_to_string(sandbox.path("work/recipe.toml")).unwrap();
    let with = |from: &str, to: &str| recipe.replace(from, to);
    let cases = [
        (with("path = \"alone\"", "path = \"ours\"").replace("\"teacher\"", "\"ours\""), "ours"),
        (with("path = \"alone\"", "path = \"../work\""), "the output may not"),
        (with("train.safetensors", "alone.stages/train.safetensors"), "alone.stages"),
    ];
    std::fs::create_dir(sandbox.path("work/alone.stages")).unwrap();
    copy(&sandbox.path("work/train.safetensors"), &sandbox.path("work/alone.stages/train.safetensors"));
    let before = sandbox.files("work");
    for (text, phrase) in cases {
        sandbox.write("work/case.toml", text);
        sandbox
            .run("distill work/case.toml --threads 1 --quiet --force")
            .assert_fails(6, &["may not be, contain or lie inside", phrase]);
        std::fs::remove_file(sandbox.path("work/case.toml")).unwrap();
    }
    assert_eq!(sandbox.files("work"), before);
}

#[test]
fn eval_resolves_data_paths_relative_to_the_recipe() {
    let sandbox = work();
    sandbox.write("elsewhere/recipe.toml", "[model]\npath = \"../work/model\"\n[data]\neval = \"absent\"\n");
    sandbox.run("eval work/teacher --recipe elsewhere/recipe.toml").assert_fails(4, &["elsewhere/absent"]);
    sandbox.write(
        "elsewhere/recipe.toml",
        "[model]\npath = \"../work/model\"\n[data]\neval = \"../work/test.safetensors\"\n",
    );
    sandbox.ok("eval work/teacher --recipe elsewhere/recipe.toml --threads 1");
}

#[test]
fn missing_data_is_refused_before_any_work_with_its_key() {
    let sandbox = digits(&RECIPE.replacen("eval = \"digits-data.safetensors\"", "eval = \"absent.safetensors\"", 1));
    for line in ["distill recipe.toml", "run recipe.toml"] {
        sandbox.run(&format!("{line} --quiet")).assert_fails(4, &["data.eval: ", "absent.safetensors"]);
        assert!(!sandbox.path("out.stages").exists());
    }
}

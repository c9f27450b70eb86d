//! Batches: several processes, the report page, shared stages, and recovery after a kill.

use crate::sandbox::{Outcome, Sandbox};
use crate::weights::{Random, Tensor, safetensors_of};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Output};
use std::time::{Duration, Instant};

/// Stages that factorize, which several jobs share; each job then quantizes with its own scheme.
const FACTORS: &str = r#"
[base.model]
path = "model.safetensors"
[base.output]
path = "out/{stage.1.scheme}"
[[base.stage]]
kind = "factorize"
bytes = 0.5
[[base.stage]]
kind = "quantize"
scheme = "int8"
[matrix]
"stage.1.scheme" = ["int8", "int4", "int8-dynamic"]
"#;
const SCHEMES: [&str; 3] = ["int8", "int4", "int8-dynamic"];

/// Returns a recipe that factorizes and quantizes.
fn recipe_of(scheme: &str) -> String {
    format!(
        "[model]\npath = \"model.safetensors\"\n[output]\npath = \"alone-{scheme}\"\n[[stage]]\nkind = \"factorize\"\n\
         bytes = 0.5\n[[stage]]\nkind = \"quantize\"\nscheme = \"{scheme}\"\n"
    )
}

/// Creates a directory with a model of `n_tensors` square matrices.
fn with_model(n_tensors: u64, width: usize) -> Sandbox {
    let sandbox = Sandbox::new();
    let tensor = |seed| Tensor::random(&format!("layers.{seed}.weight"), &[width, width], seed + 1);
    let tensors: Vec<Tensor> = (0..n_tensors).map(tensor).collect();
    sandbox.write("model.safetensors", safetensors_of(&tensors));
    sandbox
}

fn sums(sandbox: &Sandbox, output: &str) -> Vec<u8> {
    std::fs::read(sandbox.path(output).join("SHA256SUMS")).unwrap()
}

fn outcome_of(line: &str, output: Output) -> Outcome {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap_or(-1);
    Outcome { line: line.into(), code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[test]
fn of_four_concurrent_resumes_one_works_and_the_others_are_refused() {
    let sandbox = with_model(2, 1024);
    let schemes: Vec<String> =
        ["int8", "int4", "int8-dynamic", "int4-g32", "int4-g64"].map(|s| format!("{s:?}")).into();
    let jobs = format!(
        "[base.model]\npath = \"model.safetensors\"\n[base.output]\npath = \"out/{{stage.0.scheme}}\"\n[[base.stage]]\n\
         kind = \"quantize\"\nscheme = \"int8\"\n[matrix]\n\"stage.0.scheme\" = [{}]\n",
        schemes.join(", ")
    );
    sandbox.write("jobs.toml", jobs);
    let (line, mut n_refused) = ("run jobs.toml --resume --quiet", 0);
    for _ in 0..6 {
        let children: Vec<Child> = (0..4).map(|_| sandbox.command(line).spawn().unwrap()).collect();
        let outcomes = children.into_iter().map(|child| outcome_of(line, child.wait_with_output().unwrap()));
        let (done, refused): (Vec<Outcome>, Vec<Outcome>) = outcomes.partition(|outcome| outcome.code == 0);
        assert!(!done.is_empty());
        done.into_iter().for_each(|outcome| drop(outcome.assert_ok()));
        for outcome in &refused {
            outcome.assert_fails(6, &["jobs.journal.jsonl", "another run uses these jobs", "--shard"]);
        }
        n_refused += refused.len();
        for output in ["int8", "int4", "int4-g64"] {
            sandbox.ok(&format!("verify out/{output}"));
        }
        assert!(!sandbox.files("out").keys().any(|name| name.contains("lock") || name.contains("partial")));
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
    assert!(n_refused > 0, "the runs never overlapped");
}

/// Returns the table rows of a batch's page.
fn rows(sandbox: &Sandbox, page: &str) -> Vec<String> {
    let page = std::fs::read_to_string(sandbox.path(page)).unwrap();
    page.lines().filter(|line| line.starts_with("<tr><th scope=\"row\">")).map(str::to_string).collect()
}

#[test]
fn a_batch_page_lists_every_job_including_failed_and_unreached_ones() {
    let sandbox = with_model(1, 256);
    let gone = "[[job]]\nname = \"gone <b>\"\n[job.model]\npath = \"absent\"\n[job.output]\npath = \"out/gone\"\n[[job.stage]]\n\
                kind = \"quantize\"\nscheme = \"int8\"\n";
    sandbox.write("jobs.toml", format!("{gone}{FACTORS}"));
    assert_eq!(sandbox.run("run jobs.toml --quiet").code, 3);
    let page = "out/jobs.report.html";
    let found = rows(&sandbox, page);
    assert_eq!(found.len(), 4);
    assert!(found[0].contains("gone &lt;b&gt;") && found[0].contains("no such file"), "{}", found[0]);
    for (row, scheme) in found[1..].iter().zip(SCHEMES) {
        let link = row.split_once("href=\"").unwrap().1.split_once('"').unwrap().0.to_string();
        assert!(sandbox.path("out").join(&link).is_file() && link.contains(scheme), "{link}");
        let report: Value =
            serde_json::from_slice(&std::fs::read(sandbox.path(&format!("out/{scheme}/report.json"))).unwrap())
                .unwrap();
        let after = report["after"]["file_bytes"].as_u64().unwrap();
        assert!(row.contains(">done<") && row.contains(&format!("data-v=\"{after}\"")), "{row}");
    }
    assert!(found[2].contains("trained once for int8"), "{}", found[2]);

    assert_eq!(sandbox.run("run jobs.toml --quiet --resume").code, 3);
    assert_eq!(rows(&sandbox, page).iter().filter(|row| row.contains(">done before<")).count(), 3);
    sandbox.ok("verify out/int4");
    let text = sandbox.run("run jobs.toml --resume").stdout;
    assert!(text.contains("page: out/jobs.report.html"), "{text}");
}

/// Returns how often a phase of this name begins in a trace.
fn n_phases(sandbox: &Sandbox, trace: &str, name: &str) -> usize {
    let trace: Value = serde_json::from_slice(&std::fs::read(sandbox.path(trace)).unwrap()).unwrap();
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X" && event["name"] == name).count()
}

#[test]
fn shared_stages_run_once_and_give_the_same_bytes() {
    let sandbox = with_model(2, 128);
    sandbox.write("jobs.toml", FACTORS);
    let report = sandbox.json("run jobs.toml --trace trace.json");
    assert_eq!(n_phases(&sandbox, "trace.json", "factorize"), 1);
    let with: Vec<&Value> = report["jobs"].as_array().unwrap().iter().map(|job| &job["trained_with"]).collect();
    assert_eq!(with, [&Value::Null, &"int8".into(), &"int8".into()]);
    for scheme in SCHEMES {
        sandbox.write("recipe.toml", recipe_of(scheme));
        sandbox.ok("run recipe.toml --quiet");
        assert_eq!(sums(&sandbox, &format!("out/{scheme}")), sums(&sandbox, &format!("alone-{scheme}")), "{scheme}");
    }
    let names = sandbox.files("out").into_keys().filter(|name| !name.trim_end_matches('/').contains('/'));
    let expected = ["int4/", "int8-dynamic/", "int8/", "jobs.journal.jsonl", "jobs.report.html"];
    assert_eq!(names.collect::<Vec<_>>(), expected, "the shared stages were not removed");
}

#[test]
fn a_killed_batch_with_shared_stages_resumes_and_leaves_no_files() {
    let sandbox = with_model(3, 256);
    sandbox.write("jobs.toml", FACTORS);
    let line = "run jobs.toml --quiet --resume";
    let since = Instant::now();
    sandbox.ok(line);
    let whole = since.elapsed();
    let expected = SCHEMES.map(|scheme| sums(&sandbox, &format!("out/{scheme}")));
    let (mut random, mut n_left) = (Random(5), 0);
    for _ in 0..12 {
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
        let mut child = sandbox.command(line).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(random.below(1000) as f64 / 1000.0));
        child.kill().unwrap();
        child.wait().unwrap();
        n_left += usize::from(sandbox.path("out/jobs.stages").exists());
        sandbox.ok(line);
        assert_eq!(SCHEMES.map(|scheme| sums(&sandbox, &format!("out/{scheme}"))), expected);
        let left: Vec<String> =
            sandbox.files("out").into_keys().filter(|name| name.contains("stages") || name.contains("lock")).collect();
        assert_eq!(left, [] as [&str; 0]);
    }
    assert!(n_left > 0, "no kill came during a run");
}

#[test]
fn resume_repeats_a_job_whose_journal_line_is_missing() {
    let sandbox = with_model(2, 256);
    let jobs = "[base.model]\npath = \"model.safetensors\"\n[base.output]\npath = \"out/{budget.bytes}\"\n\
        [[base.stage]]\nkind = \"quantize\"\nscheme = \"step\"\n[matrix]\n\"budget.bytes\" = [\"60kB\", \"90kB\"]\n";
    sandbox.write("jobs.toml", jobs);
    sandbox.ok("run jobs.toml --quiet");
    let (journal, expected) = (sandbox.path("out/jobs.journal.jsonl"), sums(&sandbox, "out/90kB"));
    let text = std::fs::read_to_string(&journal).unwrap();
    let kept: Vec<&str> = text.lines().filter(|line| !(line.contains("\"job\"") && line.contains("90kB"))).collect();
    assert_eq!(kept.len() + 1, text.lines().count());
    std::fs::write(&journal, kept.join("\n") + "\n").unwrap();
    let report = sandbox.json("run jobs.toml --resume --quiet");
    assert_eq!((report["n_done"].as_u64(), report["n_skipped"].as_u64()), (Some(1), Some(1)), "{report}");
    assert_eq!(sums(&sandbox, "out/90kB"), expected);
    // An output that no job of this file began is not replaced.
    std::fs::remove_file(&journal).unwrap();
    std::fs::remove_dir_all(sandbox.path("out/60kB")).unwrap();
    let other = sandbox.run("run jobs.toml --resume --quiet");
    assert_eq!(other.code, 3, "{}", other.stderr);
    assert_eq!(sums(&sandbox, "out/90kB"), expected);
}

/// Leaves the state of a kill between publishing and cleanup: a foreign file in `OUT.stages` prevents its
/// removal.
fn run_without_cleanup(sandbox: &Sandbox, line: &str, output: &str) {
    let mut child = sandbox.command(line).spawn().unwrap();
    let stages = sandbox.path(&format!("{output}.stages"));
    while !stages.join("recipe.json").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the run finished before its stages were found");
        std::thread::sleep(Duration::from_micros(100));
    }
    std::fs::write(stages.join("note.txt"), "x").unwrap();
    assert!(child.wait().unwrap().success());
    std::fs::remove_file(stages.join("note.txt")).unwrap();
}

#[test]
fn the_same_command_finishes_the_cleanup_of_a_killed_run() {
    let sandbox = with_model(4, 256);
    sandbox.write("recipe.toml", recipe_of("int8"));
    sandbox.write("other.toml", recipe_of("int4").replace("alone-int4", "alone-int8"));
    let line = "run recipe.toml";
    for force in ["", " --force"] {
        run_without_cleanup(&sandbox, line, "alone-int8");
        assert!(sandbox.path("alone-int8.stages").exists());
        let before = sandbox.files("alone-int8");
        let again = sandbox.run(&format!("{line}{force}"));
        assert_eq!(again.code, 0, "{}", again.stderr);
        assert!(again.stdout.contains("alone-int8"), "the existing output is not reported: {}", again.stdout);
        assert_eq!(sandbox.files("alone-int8"), before);
        assert_eq!(sandbox.names(), ["alone-int8", "model.safetensors", "other.toml", "recipe.toml"]);
        sandbox.run(line).assert_fails(6, &["alone-int8", "--force"]);
        std::fs::remove_dir_all(sandbox.path("alone-int8")).unwrap();
    }

    // The command does not finish an output of another recipe or a damaged one.
    run_without_cleanup(&sandbox, line, "alone-int8");
    sandbox.run("run other.toml").assert_fails(6, &["alone-int8", "--force"]);
    let weights = "alone-int8/model.briquette.safetensors";
    let mut bytes = std::fs::read(sandbox.path(weights)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(sandbox.path(weights), bytes).unwrap();
    sandbox.run(line).assert_fails(6, &["alone-int8", "--force"]);
    sandbox.ok(&format!("{line} --force --quiet"));
    sandbox.ok("verify alone-int8");
    assert!(!sandbox.path("alone-int8.stages").exists());
}

#[test]
fn the_same_command_finishes_a_killed_run() {
    let sandbox = with_model(2, 256);
    sandbox.write("recipe.toml", recipe_of("int8"));
    let line = "run recipe.toml --quiet";
    let since = Instant::now();
    sandbox.ok(line);
    let (whole, expected) = (since.elapsed(), sums(&sandbox, "alone-int8"));
    let mut random = Random(6);
    for _ in 0..25 {
        std::fs::remove_dir_all(sandbox.path("alone-int8")).unwrap();
        let mut child = sandbox.command(line).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(0.5 + random.below(700) as f64 / 1000.0));
        child.kill().unwrap();
        child.wait().unwrap();
        let is_over = sandbox.path("alone-int8").exists() && !sandbox.path("alone-int8.stages").exists();
        let again = sandbox.run(line);
        assert_eq!(again.code, if is_over { 6 } else { 0 }, "{}", again.stderr);
        assert_eq!(sums(&sandbox, "alone-int8"), expected);
        assert_eq!(sandbox.names(), ["alone-int8", "model.safetensors", "recipe.toml"]);
    }
}

#[test]
fn the_first_error_of_a_large_matrix_is_printed_immediately() {
    let sandbox = Sandbox::new();
    let seeds: Vec<String> = (0..1000).map(|seed| seed.to_string()).collect();
    let shares: Vec<String> = (1..=100).map(|share| format!("0.{share:03}")).collect();
    let jobs = |method: &str| {
        format!(
            "[base.model]\npath = \"absent\"\n[base.output]\npath = \"out/{{stage.0.seed}}-{{stage.0.sparsity}}\"\n[[base.stage]]\n\
             kind = \"prune\"\nmethod = \"{method}\"\n[matrix]\n\"stage.0.seed\" = [{}]\n\"stage.0.sparsity\" = [{}]\n",
            seeds.join(", "),
            shares.join(", ")
        )
    };
    sandbox.write("jobs.toml", jobs("rndom"));
    let since = Instant::now();
    sandbox
        .run("run jobs.toml")
        .assert_fails(2, &["base with stage.0.seed = 0, stage.0.sparsity = 0.001", "method: found \"rndom\""]);
    sandbox.write("jobs.toml", jobs("random"));
    let mut child = sandbox.command("run jobs.toml --quiet").spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.contains("job \"0-0.001\"") && first.contains("absent"), "{first}");
    // An idle machine needs a tenth of this.
    assert!(since.elapsed() < Duration::from_secs(20), "took {:?}", since.elapsed());
}

#[test]
fn a_trace_overwrites_no_file_of_a_batch() {
    let sandbox = with_model(1, 64);
    sandbox.write("jobs.toml", FACTORS);
    for path in ["out/jobs.journal.jsonl", "out/jobs.report.html", "out/int4", "out/int4.stages/x", "model.safetensors"]
    {
        sandbox.run(&format!("run jobs.toml --trace {path}")).assert_fails(6, &["--trace", "choose another file"]);
    }
    assert!(!sandbox.path("out").exists());
}

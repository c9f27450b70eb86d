//! Jobs files: a bad job, resuming after a stop, shards.

use crate::sandbox::{Outcome, Sandbox};
use crate::weights::{Tensor, safetensors_of};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const OUTPUTS: [&str; 4] = ["p0.2-int4", "p0.2-int8", "p0.5-int4", "p0.5-int8"];
const JOURNAL: &str = "out/jobs.journal.jsonl";

const JOBS: &str = r#"
[base]
set = { "output.path" = "out/p{stage.0.sparsity}-{stage.1.scheme}" }
[base.model]
path = "model.safetensors"
[base.output]
path = "out/unused"
[[base.stage]]
kind = "prune"
sparsity = 0.1
[[base.stage]]
kind = "quantize"
scheme = "int8"
[matrix]
"stage.0.sparsity" = [0.2, 0.5]
"stage.1.scheme" = ["int8", "int4"]
"#;

const BAD: &str = r#"
[[job]]
name = "bad"
[job.model]
path = "absent"
[job.output]
path = "out/bad"
[[job.stage]]
kind = "quantize"
scheme = "int8"
"#;

/// Writes a jobs file of four jobs over a model of `n_tensors` × 4 MiB; a bad job precedes them if there is
/// one.
fn with_jobs(n_tensors: u64, bad: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let tensor = |seed| Tensor::random(&format!("layers.{seed}.weight"), &[1024, 1024], seed + 1);
    let tensors: Vec<Tensor> = (0..n_tensors).map(tensor).collect();
    sandbox.write("model.safetensors", safetensors_of(&tensors));
    sandbox.write("jobs.toml", format!("{bad}{JOBS}"));
    sandbox
}

/// Returns `SHA256SUMS` of each output that exists.
fn sums(sandbox: &Sandbox) -> BTreeMap<String, Vec<u8>> {
    let files = sandbox.files("out").into_iter();
    files.filter_map(|(name, bytes)| Some((name.strip_suffix("/SHA256SUMS")?.to_string(), bytes))).collect()
}

/// Returns the names of the finished jobs in a journal.
fn journal(sandbox: &Sandbox, path: &str) -> Vec<String> {
    let text = std::fs::read_to_string(sandbox.path(path)).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter_map(|line| Some(line["job"].as_str()?.to_string())).collect()
}

fn counts(outcome: &Outcome) -> [u64; 3] {
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    ["n_done", "n_skipped", "n_failed"].map(|key| report[key].as_u64().unwrap())
}

#[test]
fn one_bad_job_gives_exit_code_3_and_resume_skips_finished_jobs() {
    let sandbox = with_jobs(1, BAD);
    let first = sandbox.run("run jobs.toml --json");
    assert_eq!((first.code, counts(&first)), (3, [4, 0, 1]), "{}", first.stderr);
    assert!(first.stderr.lines().count() == 1 && first.stderr.contains("job \"bad\""), "{}", first.stderr);
    assert_eq!(journal(&sandbox, JOURNAL).len(), 5);
    let before = sandbox.files("out");
    for output in OUTPUTS {
        sandbox.ok(&format!("verify out/{output} --against model.safetensors"));
    }

    let resumed = sandbox.run("run jobs.toml --resume --json");
    assert_eq!((resumed.code, counts(&resumed)), (3, [0, 4, 1]));
    let is_output = |name: &&String| name.contains('/');
    let after = sandbox.files("out");
    assert!(before.iter().filter(|(name, _)| is_output(name)).eq(after.iter().filter(|(name, _)| is_output(name))));

    std::fs::copy(sandbox.path("model.safetensors"), sandbox.path("absent")).unwrap();
    let healed = sandbox.run("run jobs.toml --resume --json");
    assert_eq!((healed.code, counts(&healed), healed.stderr.as_str()), (0, [1, 4, 0], ""));

    let before = sandbox.files("out");
    let phrases = ["out/jobs.journal.jsonl: 5 outputs exist from an earlier run", "--resume", "--force"];
    sandbox.run("run jobs.toml").assert_fails(6, &phrases);
    assert!(before == sandbox.files("out"), "without --resume or --force nothing is replaced");
    sandbox.ok("run jobs.toml --force --quiet");
}

#[test]
fn shards_run_each_job_once_and_give_the_same_bytes() {
    let whole = with_jobs(1, "");
    whole.ok("run jobs.toml --quiet");
    let sandbox = with_jobs(1, "");
    let mut jobs = Vec::new();
    for index in 0..3 {
        let outcome = sandbox.run(&format!("run jobs.toml --shard {index}/3 --json"));
        let n_mine = if index == 0 { 2 } else { 1 };
        assert_eq!((outcome.code, counts(&outcome)), (0, [n_mine, 0, 0]), "{}", outcome.stderr);
        jobs.extend(journal(&sandbox, &format!("out/jobs.journal.{index}-of-3.jsonl")));
    }
    jobs.sort();
    assert_eq!(jobs, OUTPUTS);
    assert_eq!(sums(&sandbox), sums(&whole));
    assert_eq!(counts(&sandbox.run("run jobs.toml --resume --json")), [0, 4, 0]);
    sandbox.run("run jobs.toml --shard 3/3").assert_fails(2, &["--shard", "found shard 3 of 3"]);
}

/// Starts a batch and sends it SIGTERM once `n_outputs` outputs exist; returns its exit code.
fn stopped_after(sandbox: &Sandbox, line: &str, n_outputs: usize) -> Option<i32> {
    let child = sandbox.command(line).spawn().unwrap();
    let since = Instant::now();
    let is_there = |output: &&&str| sandbox.path(&format!("out/{output}/SHA256SUMS")).exists();
    while OUTPUTS.iter().filter(is_there).count() < n_outputs && since.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(20));
    kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    child.wait_with_output().unwrap().status.code()
}

#[test]
fn a_stopped_and_resumed_batch_gives_the_bytes_of_an_undisturbed_one() {
    let whole = with_jobs(6, "");
    whole.ok("run jobs.toml --quiet");
    let sandbox = with_jobs(6, "");
    let mut n_stopped = 0;
    for n_outputs in 1..OUTPUTS.len() {
        if stopped_after(&sandbox, "run jobs.toml --quiet --resume", n_outputs) == Some(143) {
            n_stopped += 1;
        }
        let sums = sums(&sandbox);
        assert!(sums.len() >= n_outputs, "finished outputs are missing: {:?}", sums.keys());
        assert!(!sandbox.files("out").keys().any(|name| name.contains("partial")), "a draft was left behind");
    }
    assert!(n_stopped > 0, "no run was stopped");
    sandbox.ok("run jobs.toml --quiet --resume");
    assert_eq!(sums(&sandbox), sums(&whole));
    assert_eq!(journal(&sandbox, JOURNAL).len(), OUTPUTS.len(), "a job ran more than once");
}

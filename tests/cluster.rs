//! The cluster recipes of configs/cluster, with the environment variables that Slurm and Kubernetes set.

use crate::sandbox::{Outcome, Sandbox, copy, repository};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

const N_JOBS: usize = 9;
const SWEEP: &str = "configs/digits-sweep.toml";
const ARRAY: &str = "bash configs/cluster/slurm-array.sh configs/digits-sweep.toml";

/// Creates a sandbox with the digits network and the recipes.
fn checkout() -> Sandbox {
    let sandbox = Sandbox::new();
    copy(&repository().join("configs"), &sandbox.path("configs"));
    copy(&repository().join("fixtures/digits"), &sandbox.path("fixtures/digits"));
    sandbox
}

/// Runs a command line with the tested binary on PATH and only these variables.
fn run(sandbox: &Sandbox, words: &[&str], variables: &[(&str, usize)]) -> Outcome {
    let binary = Path::new(env!("CARGO_BIN_EXE_briquette")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("/usr/bin/env");
    command.arg("-i").arg(format!("PATH={path}"));
    command.args(variables.iter().map(|(name, value)| format!("{name}={value}"))).args(words);
    command.current_dir(sandbox.path("")).stdin(Stdio::null());
    Outcome::of(&words.join(" "), &mut command)
}

/// Returns the variables of task `id` of an array `min-max` with `count` tasks.
fn task(id: usize, (min, max, count): (usize, usize, usize)) -> [(&'static str, usize); 6] {
    [
        ("SLURM_ARRAY_TASK_ID", id),
        ("SLURM_ARRAY_TASK_MIN", min),
        ("SLURM_ARRAY_TASK_MAX", max),
        ("SLURM_ARRAY_TASK_COUNT", count),
        ("SLURM_ARRAY_TASK_STEP", 1),
        ("SLURM_CPUS_PER_TASK", 1),
    ]
}

/// Returns `SHA256SUMS` of each output of the sweep.
fn sums(sandbox: &Sandbox) -> BTreeMap<String, Vec<u8>> {
    let files = sandbox.files("out/digits-sweep").into_iter();
    files.filter(|(name, _)| name.ends_with("/SHA256SUMS")).collect()
}

/// Checks that each index runs one job, that the outputs equal those of one process, and that a later run skips
/// all jobs.
fn assert_one_job_per_index(sandbox: &Sandbox, run_index: impl Fn(usize) -> Outcome) {
    for index in 0..N_JOBS {
        let outcome = run_index(index).assert_ok();
        assert!(outcome.stdout.contains("1 done, 0 skipped, 0 failed"), "{index}: {}", outcome.stdout);
        assert_eq!(sums(sandbox).len(), index + 1, "outputs after index {index}");
    }
    let again = run_index(4).assert_ok();
    assert!(again.stdout.contains("0 done, 1 skipped, 0 failed"), "{}", again.stdout);

    let whole = checkout();
    whole.ok(&format!("run {SWEEP} --quiet"));
    assert_eq!(sums(sandbox), sums(&whole));
    let merged = sandbox.json(&format!("run {SWEEP} --resume"));
    assert_eq!((merged["n_done"].as_u64(), merged["n_skipped"].as_u64()), (Some(0), Some(9)));
}

#[test]
fn a_slurm_array_runs_one_job_per_task() {
    let sandbox = checkout();
    let words: Vec<&str> = ARRAY.split(' ').collect();
    assert_one_job_per_index(&sandbox, |index| run(&sandbox, &words, &task(index, (0, 8, N_JOBS))));
}

#[test]
fn a_part_of_a_slurm_array_needs_the_length_of_the_full_array() {
    let sandbox = checkout();
    let words: Vec<&str> = ARRAY.split(' ').collect();
    let part = task(5, (3, 5, 2));
    run(&sandbox, &words, &part).assert_fails(2, &["only some of the indices", "length of the full array"]);
    assert!(!sandbox.path("out").exists());

    let outcome = run(&sandbox, &[&words[..], &["9"]].concat(), &part).assert_ok();
    assert!(outcome.stdout.contains("1 done") && outcome.stdout.contains("shard 5-of-9"), "{}", outcome.stdout);
    assert_eq!(sums(&sandbox).into_keys().collect::<Vec<_>>(), ["p0.4-int4/SHA256SUMS"]);

    run(&sandbox, &words, &[]).assert_fails(2, &["SLURM_ARRAY_TASK_ID is not set", "--array"]);
    run(&sandbox, &words[..2], &part).assert_fails(2, &["usage: sbatch"]);
}

/// Returns the value of a key in the YAML file; each key has a line of its own.
fn value<'a>(yaml: &'a str, key: &str) -> &'a str {
    let found = yaml.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
    let found: Vec<&str> = found.collect();
    assert_eq!(found.len(), 1, "{key}");
    found[0]
}

#[test]
fn a_kubernetes_job_runs_one_job_per_completion_index() {
    let sandbox = checkout();
    let yaml = std::fs::read_to_string(sandbox.path("configs/cluster/kubernetes-job.yaml")).unwrap();
    assert_eq!((value(&yaml, "completionMode"), value(&yaml, "completions")), ("Indexed", "9"));
    let words: Vec<String> = serde_json::from_str(value(&yaml, "command")).unwrap();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_one_job_per_index(&sandbox, |index| run(&sandbox, &words, &[("JOB_COMPLETION_INDEX", index)]));
}

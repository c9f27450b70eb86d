//! Output of commands: errors if it cannot be written, JSON, one manual page.

use crate::sandbox::Sandbox;
use std::fs::File;
use std::process::Stdio;

const LINES: [&str; 10] = [
    "inspect digits",
    "graph digits",
    "graph digits --json",
    "inspect digits --json",
    "plan digits --quantize int8",
    "recipe schema",
    "completions bash",
    "man",
    "--help",
    "compress --help",
];

#[test]
fn a_full_disk_behind_stdout_gives_exit_code_5() {
    let sandbox = Sandbox::with("digits");
    for line in LINES {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = sandbox.command(line).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(5), 1), "{line}: {stderr}");
        assert!(stderr.contains("stdout: cannot write"), "{line}: {stderr}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let sandbox = Sandbox::with("digits");
    for line in LINES {
        let mut child = sandbox.command(line).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{line}");
    }
}

#[test]
fn a_json_plan_has_the_pruning_and_the_bytes_of_each_tensor() {
    let sandbox = Sandbox::with("digits");
    let pruned = |flags: &str, key: &str| {
        let plan = sandbox.json(&format!("plan digits {flags}"));
        let tensors = plan["tensors"].as_array().unwrap();
        let total: u64 = tensors.iter().map(|tensor| tensor["predicted_bytes"].as_u64().unwrap()).sum();
        assert!(total > 0 && total < plan["predicted_bytes"].as_u64().unwrap(), "headers come on top: {plan}");
        let tensor = tensors.iter().find(|tensor| tensor["name"] == "fc1.weight").unwrap();
        assert!(!plan.to_string().contains("Pool("), "{plan}");
        tensor["prune"][key].clone()
    };
    assert_eq!(pruned("--prune 0.5 --scope global", "scope"), "global");
    assert_eq!(pruned("--prune 0.5 --scope global", "sparsity"), 0.5);
    assert_eq!(pruned("--prune 0.5 --quantize int8", "scope"), "layer");
    assert_eq!(pruned("--nm 2:4 --exclude conv1.weight", "pattern"), "2:4");
}

#[test]
fn stopping_a_command_that_writes_nothing_does_not_mention_files() {
    let options = briquette::RunOptions::default();
    options.stop.request(15);
    let digits = crate::sandbox::repository().join("fixtures/digits");
    let diff = briquette::pipeline::diff::diff(&digits, &digits, &briquette::formats::Choice::default(), &options)
        .unwrap_err();
    assert_eq!((diff.to_string().as_str(), diff.exit_code()), ("stopped by signal 15", 143));
}

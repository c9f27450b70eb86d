//! Memory limits: a run ends with one line of error, and the next run removes any leftovers.

use crate::sandbox::{Outcome, Sandbox};
use std::process::Command;

/// Runs a command with at most this address space.
fn limited(sandbox: &Sandbox, kilobytes: usize, line: &str) -> Outcome {
    let script = format!("ulimit -v {kilobytes} && exec \"$0\" {line}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_briquette")]).current_dir(sandbox.path(""));
    Outcome::of(&script, &mut command)
}

/// Returns the smallest address space in which the program starts; below it, the system's loader fails.
fn least(sandbox: &Sandbox) -> usize {
    (8..)
        .map(|megabytes| megabytes << 10)
        .find(|kilobytes| limited(sandbox, *kilobytes, "--version").code == 0)
        .unwrap()
}

#[test]
fn too_little_memory_gives_one_line_and_exit_code_5() {
    let sandbox = Sandbox::with("digits");
    // One tensor of 48 MB, so that buffers are large.
    let header = r#"{"fc.weight":{"dtype":"F32","shape":[3000,4000],"data_offsets":[0,48000000]}}"#;
    let model = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0x3c; 48_000_000]].concat();
    sandbox.write("large.safetensors", &model);
    let least = least(&sandbox);
    let mut n_failed = 0;
    for input in ["digits", "large.safetensors"] {
        for step in 0..16 {
            let kilobytes = least + (step * step) * 1024;
            let outcome = limited(
                &sandbox,
                kilobytes,
                &format!("compress {input} -o out --force --quantize int8 --threads 4 --quiet"),
            );
            if outcome.code == 0 {
                sandbox.ok("verify out --quiet");
                continue;
            }
            // If there is no room for thread-local storage, the C library ends the process, before or after our
            // error line.
            if outcome.stderr.contains("Fatal glibc error") {
                continue;
            }
            outcome.assert_fails(5, &[]);
            n_failed += 1;
        }
    }
    assert!(n_failed > 0, "no limit was too low");
    sandbox.ok("compress digits -o out --force --quantize int8 --quiet");
    let left: Vec<String> = sandbox.names().into_iter().filter(|name| name.contains("partial")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn out_of_memory_prints_one_document_with_json() {
    let sandbox = Sandbox::with("digits");
    let least = least(&sandbox);
    let outcomes = (0..40)
        .map(|step| limited(&sandbox, least + step * 512, "compress digits -o out --force --quantize int8 --json"));
    let is_ours = |outcome: &Outcome| outcome.code != 0 && !outcome.stderr.contains("Fatal glibc error");
    for outcome in outcomes.filter(is_ours) {
        assert_eq!(outcome.code, 5, "{}", outcome.stderr);
        let document: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(document["error"]["exit_code"], 5);
    }
}

//! Runs that are ended from outside: a closed terminal, a signal at any time, a removed directory.

use crate::sandbox::Sandbox;
use crate::weights::{Random, Tensor, safetensors_of};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MODEL: &str = "model.safetensors";
const LINE: &str = "compress model.safetensors -o out --quiet --prune 0.5 --scope global --quantize int4-g32";

/// A directory with a model of 64 MiB.
fn with_model() -> Sandbox {
    let sandbox = Sandbox::new();
    let tensors: Vec<Tensor> =
        (0..16).map(|seed| Tensor::random(&format!("layers.{seed}.weight"), &[1024, 1024], seed + 1)).collect();
    sandbox.write(MODEL, safetensors_of(&tensors));
    sandbox
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Waits until a run has created its draft.
fn wait_for_draft(sandbox: &Sandbox) {
    let since = Instant::now();
    while sandbox.partials().is_empty() {
        assert!(since.elapsed() < Duration::from_secs(20), "the run never began to write");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_closed_terminal_leaves_no_files() {
    let sandbox = with_model();
    let child = sandbox.command(LINE).spawn().unwrap();
    wait_for_draft(&sandbox);
    send(&child, Signal::HUP);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(129), 1), "{stderr}");
    assert!(stderr.contains("stopped by signal 1; nothing was written"), "{stderr}");
    assert_eq!(sandbox.names(), [MODEL]);
}

/// Ignores SIGHUP from the start, as `nohup` does.
#[test]
fn a_run_under_nohup_survives_its_terminal() {
    let sandbox = with_model();
    let binary = env!("CARGO_BIN_EXE_briquette");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' HUP; exec '{binary}' {LINE}")]).current_dir(sandbox.path(""));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_draft(&sandbox);
    send(&child, Signal::HUP);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8(output.stderr).unwrap());
    sandbox.ok("verify out");
}

/// Before the handler is installed, a signal kills the process; afterwards, it requests a stop.
#[test]
fn early_signals_are_not_lost() {
    let sandbox = with_model();
    let (mut random, mut n_by_signal) = (Random(5), 0);
    for i in 0..120 {
        let (signal, code) = if i % 2 == 0 { (Signal::TERM, 143) } else { (Signal::HUP, 129) };
        let child = sandbox.command(LINE).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(4000)));
        send(&child, signal);
        let status = child.wait_with_output().unwrap().status;
        n_by_signal += u32::from(status.signal().is_some());
        assert!(status.code() == Some(code) || status.signal() == Some(code - 128), "{status:?}");
        assert_eq!(sandbox.names(), [MODEL]);
    }
    assert!(n_by_signal > 0, "no signal came before the handler was installed");
}

#[test]
fn a_directory_removed_during_a_run_is_an_io_error() {
    let sandbox = with_model();
    let line = LINE.replace("-o out", "-o gone/out");
    for pause in [0, 20, 60, 150, 300] {
        std::fs::create_dir_all(sandbox.path("gone")).unwrap();
        let child = sandbox.command(&line).spawn().unwrap();
        let since = Instant::now();
        while std::fs::read_dir(sandbox.path("gone")).unwrap().next().is_none() {
            assert!(since.elapsed() < Duration::from_secs(20), "the run never began to write");
        }
        std::thread::sleep(Duration::from_millis(pause));
        while sandbox.path("gone").exists() {
            // The run may write more files during the removal.
            let _ = std::fs::remove_dir_all(sandbox.path("gone"));
        }
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        // The run may have finished before.
        if output.status.code() != Some(0) {
            assert_eq!((output.status.code(), stderr.lines().count()), (Some(5), 1), "after {pause} ms: {stderr}");
            assert!(stderr.contains("gone"), "{stderr}");
        }
    }
}

#[test]
fn an_invalid_output_path_is_a_config_error() {
    let sandbox = with_model();
    let recipe = |output: &str| {
        format!(
            "[model]\npath = \"{MODEL}\"\n[output]\npath = \"{output}\"\n[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n"
        )
    };
    sandbox.write("r.toml", recipe("a\\u0000b"));
    for line in ["run r.toml", "plan r.toml", "compress --recipe r.toml"] {
        sandbox.run(line).assert_fails(2, &["r.toml", "output.path: found a NUL"]);
    }
    sandbox.write("jobs.toml", "[[job]]\nrecipe = \"r.toml\"\n");
    sandbox.run("run jobs.toml").assert_fails(2, &["output.path: found a NUL"]);
}

//! Runs stopped by signals at any time: the output is the old or the new one.

use crate::sandbox::{Outcome, Sandbox};
use crate::weights::{Random, Tensor, safetensors_of};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;
use std::time::{Duration, Instant};

const MODEL: &str = "model.safetensors";

/// Creates a directory with a model of `n_tensors` × 4 MiB.
fn with_model(n_tensors: u64) -> Sandbox {
    let sandbox = Sandbox::new();
    let mut tensors: Vec<Tensor> = Vec::new();
    for seed in 0..n_tensors {
        tensors.push(Tensor::random(&format!("layers.{seed}.weight"), &[1024, 1024], seed + 1));
    }
    sandbox.write(MODEL, safetensors_of(&tensors));
    sandbox
}

fn is_torture() -> bool {
    std::env::var_os("BRIQUETTE_TORTURE").is_some_and(|value| value == "1")
}

/// Starts a run, sends it a signal after `after`, and waits for its end. Also returns the time from signal to
/// end.
fn run_and_signal(sandbox: &Sandbox, line: &str, after: Duration, signal: Signal) -> (Outcome, Option<i32>, Duration) {
    let child = sandbox.command(line).spawn().unwrap();
    std::thread::sleep(after);
    // A child that was not waited for keeps its PID even after it ends.
    kill_process(pid_of(&child), signal).unwrap();
    let since = Instant::now();
    let output = child.wait_with_output().unwrap();
    let killed_by = std::os::unix::process::ExitStatusExt::signal(&output.status);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    let code = output.status.code().unwrap_or(-1);
    (Outcome { line: line.into(), code, stdout, stderr }, killed_by, since.elapsed())
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap()).unwrap()
}

/// Returns the duration of an undisturbed run.
fn time_of(sandbox: &Sandbox, line: &str) -> Duration {
    let since = Instant::now();
    sandbox.ok(line);
    since.elapsed()
}

/// Returns a random time between 0 and slightly more than `whole`.
fn some_time(random: &mut Random, whole: Duration) -> Duration {
    whole.mul_f64(random.below(1100) as f64 / 1000.0)
}

#[test]
fn an_interrupted_run_exits_within_two_seconds_and_leaves_no_files() {
    let sandbox = with_model(16);
    let line = "compress model.safetensors -o out --quiet --prune 0.5 --scope global --quantize int4-g32";
    let whole = time_of(&sandbox, &line.replace("out", "first"));
    let (mut random, mut n_stopped) = (Random(7), 0);
    for i in 0..if is_torture() { 100 } else { 12 } {
        let (signal, code) = if i % 2 == 0 { (Signal::INT, 130) } else { (Signal::TERM, 143) };
        let after = some_time(&mut random, whole);
        let (outcome, killed_by, took) = run_and_signal(&sandbox, line, after, signal);
        assert!(took < Duration::from_secs(2), "exited after {took:?}");
        if outcome.code == 0 {
            sandbox.ok("verify out");
            std::fs::remove_dir_all(sandbox.path("out")).unwrap();
        } else if killed_by.is_none() {
            // Otherwise the signal came before the handler was installed, and nothing was written.
            outcome.assert_fails(code, &["stopped by signal", "nothing was written"]);
            n_stopped += 1;
        }
        assert_eq!(sandbox.names(), ["first", MODEL], "after {after:?}");
    }
    assert!(n_stopped > 0, "no run was stopped");
}

/// The file is too large to hash within the allowed time.
#[test]
fn hashing_a_huge_file_stops_immediately() {
    let sandbox = with_model(1);
    sandbox.ok("compress model.safetensors -o out --quiet --quantize int8");
    let weights = std::fs::File::options().write(true).open(sandbox.path("out/model.briquette.safetensors")).unwrap();
    weights.set_len(256 << 30).unwrap();
    let (outcome, killed_by, took) = run_and_signal(&sandbox, "verify out", Duration::from_millis(500), Signal::INT);
    assert_eq!(killed_by, None, "the signal came before the handler was installed");
    outcome.assert_fails(130, &["stopped by signal"]);
    // An idle machine needs a tenth of this.
    assert!(took < Duration::from_secs(2), "exited after {took:?}");
}

/// The first signal requests a stop, which takes a moment; the second ends the process.
#[test]
fn a_second_signal_ends_the_run_immediately() {
    let sandbox = with_model(16);
    let line = "compress model.safetensors -o out --quiet --prune 0.5 --scope global --quantize int4-g32";
    let whole = time_of(&sandbox, &line.replace("out", "first"));
    let mut n_at_once = 0;
    for i in 0..8_u32 {
        let (first, second) = if i % 2 == 0 { (Signal::INT, Signal::TERM) } else { (Signal::TERM, Signal::INT) };
        let child = sandbox.command(line).spawn().unwrap();
        std::thread::sleep(whole * (i + 1) / 10);
        kill_process(pid_of(&child), first).unwrap();
        kill_process(pid_of(&child), second).unwrap();
        let since = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert!(since.elapsed() < Duration::from_secs(2), "exited after {:?}", since.elapsed());
        // The second signal ends the process without a message; otherwise the first one sufficed or the run had
        // finished.
        n_at_once += u32::from(output.stderr.is_empty() && !output.status.success());
        let _ = std::fs::remove_dir_all(sandbox.path("out"));
    }
    assert!(n_at_once > 0, "no run was ended by the second signal");
    sandbox.ok(line);
    assert_eq!(sandbox.names(), ["first", MODEL, "out"], "the next run did not remove the draft");
}

/// `timeout` sends its signal to the process and then to its group, which includes the process.
#[test]
fn the_same_signal_twice_counts_once_and_leaves_no_files() {
    let sandbox = with_model(8);
    let line = "compress model.safetensors -o out --quiet --prune 0.5 --scope global --quantize int4-g32";
    let whole = time_of(&sandbox, &line.replace("out", "first"));
    let (mut random, mut n_stopped) = (Random(11), 0);
    for i in 0..if is_torture() { 200 } else { 24 } {
        let (signal, code) = if i % 2 == 0 { (Signal::INT, 130) } else { (Signal::TERM, 143) };
        let child = sandbox.command(line).spawn().unwrap();
        std::thread::sleep(some_time(&mut random, whole));
        kill_process(pid_of(&child), signal).unwrap();
        std::thread::sleep(Duration::from_micros(random.below(2000)));
        kill_process(pid_of(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        n_stopped += u32::from(output.status.code() == Some(code));
        let _ = std::fs::remove_dir_all(sandbox.path("out"));
        assert_eq!(sandbox.names(), ["first", MODEL]);
    }
    assert!(n_stopped > 0, "no run was stopped");
}

/// A scale per tensor needs one search over all of its weights.
#[test]
fn a_long_scale_search_stops_within_two_seconds() {
    let sandbox = Sandbox::new();
    sandbox.write(MODEL, safetensors_of(&[Tensor::random("wide.weight", &[2, 3 << 20], 1)]));
    sandbox.write(
        "r.toml",
        "[model]\npath = \"model.safetensors\"\n[output]\npath = \"out\"\n[[stage]]\nkind = \"quantize\"\nbits = 4\n\
         group = \"tensor\"\nrange = \"hqq\"\n",
    );
    for line in ["run r.toml --threads 1", "compress model.safetensors -o out --quantize int4 --range hqq --threads 1"]
    {
        let whole = time_of(&sandbox, line);
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
        let (outcome, _, took) = run_and_signal(&sandbox, line, whole / 2, Signal::TERM);
        outcome.assert_fails(143, &["stopped by signal"]);
        assert!(took < Duration::from_secs(2), "{line}: exited after {took:?}");
        assert_eq!(sandbox.names(), [MODEL, "r.toml"]);
    }
}

#[test]
fn the_next_run_removes_the_draft_of_a_killed_run() {
    let sandbox = with_model(6);
    let line = "compress model.safetensors -o out --quiet --quantize int8";
    let whole = time_of(&sandbox, &line.replace("out", "first"));
    let (mut random, mut n_partials) = (Random(8), 0);
    for _ in 0..if is_torture() { 200 } else { 30 } {
        let (_, _, _) = run_and_signal(&sandbox, line, some_time(&mut random, whole), Signal::KILL);
        n_partials += sandbox.partials().len();
        if sandbox.path("out").exists() {
            sandbox.ok("verify out");
            std::fs::remove_dir_all(sandbox.path("out")).unwrap();
        }
        sandbox.ok(line);
        assert_eq!(sandbox.names(), ["first", MODEL, "out"]);
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
    assert!(n_partials > 0, "no kill came during a run");
}

#[test]
fn a_run_killed_while_replacing_leaves_the_old_or_the_new_output() {
    let sandbox = with_model(2);
    sandbox.ok("compress model.safetensors -o out --quiet --quantize int8");
    let lines = ["int4-g32", "int8"]
        .map(|scheme| format!("compress model.safetensors -o out --quiet --force --quantize {scheme}"));
    let whole = time_of(&sandbox, &lines[1]);
    let mut random = Random(9);
    for i in 0..if is_torture() { 200 } else { 30 } {
        run_and_signal(&sandbox, &lines[i % 2], some_time(&mut random, whole), Signal::KILL);
        sandbox.ok("verify out");
        let sums = std::fs::read(sandbox.path("out/SHA256SUMS")).unwrap();
        sandbox.ok(&lines[1]);
        assert_eq!(sandbox.names(), [MODEL, "out"]);
        assert!(!sums.is_empty());
    }
}

#[test]
fn of_two_runs_on_one_output_one_wins_and_the_other_is_refused() {
    let sandbox = with_model(4);
    let line = "compress model.safetensors -o out --quiet --quantize int8";
    for force in ["", " --force"] {
        for pause in [0, 5, 40] {
            let line = format!("{line}{force}");
            let first = sandbox.command(&line).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(pause));
            let second = sandbox.run(&line);
            let first = first.wait_with_output().unwrap();
            let first_code = first.status.code().unwrap();
            let first_stderr = String::from_utf8(first.stderr).unwrap();
            let mut codes = [first_code, second.code];
            codes.sort_unstable();
            assert!(
                codes == [0, 6] || !force.is_empty() && codes == [0, 0],
                "{codes:?} {first_stderr} {}",
                second.stderr
            );
            for (code, stderr) in [(first_code, &first_stderr), (second.code, &second.stderr)] {
                assert_eq!(stderr.lines().count(), usize::from(code != 0), "{stderr}");
                assert!(code == 0 || stderr.contains("exists"), "{stderr}");
            }
            sandbox.ok("verify out");
            assert_eq!(sandbox.names(), [MODEL, "out"]);
            if force.is_empty() || pause == 0 {
                std::fs::remove_dir_all(sandbox.path("out")).unwrap();
            }
        }
    }
}

/// A decoder tokenizes its whole text at once, which takes many seconds here.
#[test]
#[cfg(feature = "model")]
fn tokenizing_a_long_text_stops_within_two_seconds() {
    let sandbox = Sandbox::with("models/llama-untied");
    let text = std::fs::read_to_string(crate::sandbox::repository().join("fixtures/models/text.txt")).unwrap();
    sandbox.write("text.txt", text.repeat((40 << 20) / text.len()));
    let line = "eval llama-untied --data text.txt --device cpu --quiet";
    let (outcome, killed_by, took) = run_and_signal(&sandbox, line, Duration::from_millis(1500), Signal::INT);
    assert_eq!(killed_by, None, "the signal came before the handler was installed");
    outcome.assert_fails(130, &["stopped by signal"]);
    assert!(took < Duration::from_secs(2), "exited after {took:?}");
}

//! Faults in system calls on the output, full disks and file size limits: the output is old, absent or
//! complete.

use crate::sandbox::{Outcome, Sandbox, copy, repository};
use crate::weights::{safetensors_of, tiny};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const ENOLCK: i32 = 37;
/// An upper bound on the calls of a run.
const MAX_CALLS: usize = 2000;

/// Creates a model, an output of another recipe to replace, and a folder for outputs.
fn with_old() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("tiny/model.safetensors", safetensors_of(&tiny()));
    sandbox.write("tiny/1_Pooling/config.json", "{}\n");
    sandbox.ok("compress tiny -o old --quantize int4-g32");
    sandbox
}

/// Empties the folder for outputs; with `with_old`, copies the old output there.
fn reset(sandbox: &Sandbox, with_old: bool) {
    let _ = std::fs::remove_dir_all(sandbox.path("side"));
    std::fs::create_dir(sandbox.path("side")).unwrap();
    if with_old {
        copy(&sandbox.path("old"), &sandbox.path("side/out"));
    }
}

fn line(force: bool) -> String {
    format!(
        "compress tiny -o side/out --threads 1 --quiet --quantize int8 --prune 0.5{}",
        if force { " --force" } else { "" }
    )
}

/// Which call fails, how, and whether all later calls fail too.
#[derive(Debug, Clone, Copy, Default)]
struct Fault {
    at: usize,
    errno: i32,
    sticky: bool,
    /// Counts only calls of this name.
    only: &'static str,
    /// Counts only calls on paths below this directory; `side` if empty.
    below: &'static str,
}

/// The calls that failed according to the shim: names and paths.
type Faults = Vec<(String, String)>;

/// Compiles the library that makes calls fail; `None` without a C compiler.
fn shim(sandbox: &Sandbox) -> Option<PathBuf> {
    let library = sandbox.path("shim.so");
    let source = repository().join("tests/faults/shim.c");
    let compiled =
        Command::new("gcc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    match compiled {
        Ok(status) => {
            assert!(status.success(), "the shim does not compile");
            Some(library)
        }
        Err(error) => {
            eprintln!("skipped: gcc: {error}");
            None
        }
    }
}

fn run_with_fault(sandbox: &Sandbox, shim: &Path, force: bool, fault: Fault) -> (Outcome, Faults) {
    run_line_with_fault(sandbox, shim, &line(force), fault)
}

fn run_line_with_fault(sandbox: &Sandbox, shim: &Path, line: &str, fault: Fault) -> (Outcome, Faults) {
    let log = sandbox.path("faults.log");
    let _ = std::fs::remove_file(&log);
    let mut command = sandbox.command(line);
    let below = if fault.below.is_empty() { "side" } else { fault.below };
    command.env("LD_PRELOAD", shim).env("FAULT_PREFIX", sandbox.path(below)).env("FAULT_LOG", &log);
    command.env("FAULT_AT", fault.at.to_string()).env("FAULT_ERRNO", fault.errno.to_string());
    command.env("FAULT_STICKY", if fault.sticky { "1" } else { "0" }).env("FAULT_ONLY", fault.only);
    let outcome = Outcome::of(&format!("{line}, {fault:?}"), &mut command);
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let faults = log.lines().filter_map(|line| line.split_once(' '));
    (outcome, faults.map(|(call, path)| (call.to_string(), path.to_string())).collect())
}

/// Fails the first call, the second, and so on until a run makes fewer calls. Returns the calls that failed.
fn sweep(force: bool, fault: Fault) -> Vec<String> {
    let sandbox = with_old();
    let Some(shim) = shim(&sandbox) else { return Vec::new() };
    let old = if force { sandbox.files("old") } else { BTreeMap::new() };
    let mut calls = Vec::new();
    for at in 1..MAX_CALLS {
        reset(&sandbox, force);
        let (outcome, faults) = run_with_fault(&sandbox, &shim, force, Fault { at, ..fault });
        if faults.is_empty() {
            outcome.assert_ok();
            sandbox.ok("verify side/out");
            return calls;
        }
        calls.push(faults[0].0.clone());
        check_after(&sandbox, &outcome, &faults, &old);
        let drafts = drafts_in(&sandbox);
        let is_removal = |(call, _): &(String, String)| ["unlink", "open-to-remove"].contains(&call.as_str());
        assert!(drafts.is_empty() || faults.iter().any(is_removal), "{faults:?} left {drafts:?}");
        sandbox.ok(&format!("{} --force", line(false)));
        assert_eq!(drafts_in(&sandbox), [] as [&str; 0], "{faults:?}: the next run cleans up");
    }
    panic!("a run makes at least {MAX_CALLS} calls");
}

fn drafts_in(sandbox: &Sandbox) -> Vec<String> {
    sandbox
        .files("side")
        .into_keys()
        .filter(|name| name.contains(".partial-") && name.matches('/').count() == 1)
        .collect()
}

/// Checks that the output is the old one, absent, or the complete new one.
fn check_after(sandbox: &Sandbox, outcome: &Outcome, faults: &Faults, old: &BTreeMap<String, Vec<u8>>) {
    let is_there = sandbox.path("side/out").exists();
    let is_old = if is_there { &sandbox.files("side/out") == old } else { old.is_empty() };
    if outcome.code == 0 {
        // The call that failed was optional.
        assert_eq!(outcome.stderr, "", "{faults:?}");
        assert!(!is_old, "{faults:?}: exit code 0 without a new output");
        sandbox.ok("verify side/out --against tiny");
        return;
    }
    outcome.assert_fails(5, &["side"]);
    if !is_old {
        // Only the sync of the directory may fail after the rename.
        assert!(outcome.stderr.contains("cannot sync the directory"), "{faults:?}: {}", outcome.stderr);
        sandbox.ok("verify side/out --against tiny");
    }
}

#[test]
fn any_call_can_fail_once() {
    for force in [false, true] {
        let calls = sweep(force, Fault { errno: EIO, ..Fault::default() });
        let expected = ["mkdir", "open", "flock", "fallocate64", "pwrite64", "pread64", "fsync", "rename"];
        for call in expected.into_iter().filter(|_| !calls.is_empty()) {
            assert!(calls.iter().any(|found| found == call), "no {call} among {calls:?}");
        }
    }
}

#[test]
fn the_disk_can_be_full_from_any_call_on() {
    for force in [false, true] {
        sweep(force, Fault { errno: ENOSPC, sticky: true, ..Fault::default() });
    }
}

/// A path that cannot be inspected is not a missing path: the run fails or gives its usual output.
#[test]
fn any_stat_call_can_fail_once() {
    let sandbox = with_old();
    sandbox.write("tiny/tokenizer.json", "{}\n");
    sandbox.write("tiny/config.json", "{}\n");
    let Some(shim) = shim(&sandbox) else { return };
    reset(&sandbox, false);
    sandbox.ok(&line(false));
    let expected = std::fs::read(sandbox.path("side/out/SHA256SUMS")).unwrap();
    for (below, force) in [("tiny", false), ("side", false), ("side", true)] {
        let mut n_failed = 0;
        for at in 1..MAX_CALLS {
            reset(&sandbox, force);
            let fault = Fault { at, errno: EIO, only: "stat", below, ..Fault::default() };
            let (outcome, faults) = run_with_fault(&sandbox, &shim, force, fault);
            if faults.is_empty() {
                outcome.assert_ok();
                break;
            }
            if outcome.code == 0 {
                let found = std::fs::read(sandbox.path("side/out/SHA256SUMS")).unwrap();
                assert!(found == expected, "{faults:?}: exit code 0 with another output");
            } else {
                outcome.assert_fails(5, &[""]);
                n_failed += 1;
            }
        }
        assert!(n_failed > 0, "no stat call below {below} made a run fail");
    }
}

#[test]
fn a_file_system_without_locks_works_and_a_failing_lock_is_an_error() {
    let sandbox = with_old();
    let Some(shim) = shim(&sandbox) else { return };
    for (errno, code) in [(ENOLCK, 0), (EIO, 5)] {
        reset(&sandbox, false);
        let fault = Fault { at: 1, errno, sticky: true, only: "flock", ..Fault::default() };
        let (outcome, faults) = run_with_fault(&sandbox, &shim, false, fault);
        assert!(!faults.is_empty());
        assert_eq!(outcome.code, code, "{}", outcome.stderr);
        check_after(&sandbox, &outcome, &faults, &BTreeMap::new());
        assert_eq!(drafts_in(&sandbox), [] as [&str; 0]);
    }
}

#[test]
fn any_file_size_limit_is_handled() {
    let sandbox = with_old();
    let old = sandbox.files("old");
    let (mut blocks, mut n_refused) = (0, 0);
    for force in [true, false] {
        loop {
            reset(&sandbox, force);
            let script = format!("ulimit -f {blocks} && exec \"$0\" {}", line(force));
            let mut command = Command::new("sh");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_briquette")]).current_dir(sandbox.path(""));
            let outcome = Outcome::of(&script, &mut command);
            if outcome.code == 0 {
                sandbox.ok("verify side/out");
                break;
            }
            outcome.assert_fails(5, &["side", "the file size limit is too low"]);
            let left = if force { sandbox.files("side/out") } else { sandbox.files("side") };
            assert!(left == if force { old.clone() } else { BTreeMap::new() }, "{script} left {:?}", left.keys());
            assert_eq!(drafts_in(&sandbox), [] as [&str; 0], "{script}");
            n_refused += 1;
            blocks += 1 + blocks / 64;
        }
        blocks = 0;
    }
    assert!(n_refused > 1, "no limit was too low");
}

/// A mounted file system of a few pages; dropping it unmounts it.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(path: PathBuf, n_bytes: usize) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={n_bytes}"), "none"]).arg(&path).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn any_disk_size_is_handled() {
    let sandbox = Sandbox::with("digits");
    let mut n_refused = 0;
    for n_pages in 1.. {
        let Some(_mounted) = Tmpfs::mount(sandbox.path("disk"), n_pages * 4096) else {
            eprintln!("skipped: mounting is not permitted here");
            return;
        };
        let outcome = sandbox.run("compress digits -o disk/out --quiet --quantize int8");
        if outcome.code == 0 {
            sandbox.ok("verify disk/out --against digits");
            break;
        }
        outcome.assert_fails(5, &["disk"]);
        assert!(sandbox.files("disk").is_empty(), "{n_pages} pages: {:?}", sandbox.files("disk").keys());
        n_refused += 1;
    }
    assert!(n_refused > 1, "no disk was too small");
}

/// A full disk keeps the last checkpoint intact: once there is room, the same command resumes and gives the
/// same output.
#[cfg(feature = "model")]
#[test]
fn training_on_a_full_disk_resumes_once_there_is_room() {
    use crate::distill::{RECIPE, digits, sums};
    let sandbox = digits(&RECIPE.replace("path = \"out\"", "path = \"side/out\""));
    let Some(shim) = shim(&sandbox) else { return };
    let line = "distill recipe.toml --threads 1";
    reset(&sandbox, false);
    sandbox.ok(&format!("{line} --quiet"));
    let expected = sums(&sandbox, "side/out");
    let mut n_resumed = 0;
    for at in (1..MAX_CALLS).step_by(60) {
        reset(&sandbox, false);
        let fault = Fault { at, errno: ENOSPC, sticky: true, ..Fault::default() };
        let (outcome, faults) = run_line_with_fault(&sandbox, &shim, &format!("{line} --quiet"), fault);
        if faults.is_empty() {
            outcome.assert_ok();
            break;
        }
        if outcome.code == 0 {
            // Only cleanup failed; if files remain, the same command removes them.
            assert_eq!(sums(&sandbox, "side/out"), expected, "{faults:?}");
            let code = if sandbox.path("side/out.stages").exists() { 0 } else { 6 };
            assert_eq!(sandbox.run(line).code, code, "{faults:?}");
            assert!(!sandbox.path("side/out.stages").exists());
            continue;
        }
        outcome.assert_fails(5, &["side", "space"]);
        if sandbox.path("side/out").exists() {
            // The output was in place; only the sync of its directory failed.
            assert!(outcome.stderr.contains("cannot sync the directory"), "{faults:?}: {}", outcome.stderr);
            assert_eq!(sums(&sandbox, "side/out"), expected, "{faults:?}");
            continue;
        }
        let again = sandbox.run(line);
        assert_eq!((again.code, sums(&sandbox, "side/out")), (0, expected.clone()), "{faults:?}: {}", again.stderr);
        n_resumed += usize::from(again.stderr.contains("resumed from step"));
    }
    assert!(n_resumed > 0, "no fault came after a checkpoint");
}

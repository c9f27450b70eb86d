//! A temporary directory for each test, and runs of the binary in it.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A temporary directory; paths of a test are relative to it.
pub(crate) struct Sandbox(TempDir);

/// The exit code and the output of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) line: String,
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
    /// Creates an empty sandbox.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Creates a sandbox with a copy of `fixtures/<name>`, under its own name.
    pub(crate) fn with(fixture: &str) -> Self {
        let sandbox = Self::new();
        let from = repository().join("fixtures").join(fixture);
        copy(&from, &sandbox.path(from.file_name().unwrap().to_str().unwrap()));
        sandbox
    }

    /// Returns a path in the sandbox.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.0.path().to_path_buf() } else { self.0.path().join(name) }
    }

    /// Writes a file and creates its parent directories.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Returns a command that runs the binary in the sandbox, with the words of `line` as arguments.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_briquette"));
        command.args(line.split_whitespace()).current_dir(self.0.path());
        // Tests may have it so that modules of their own are on the CPU in a build with CUDA; the command must not need it.
        command.env_remove("BURN_DEVICE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the binary.
    pub(crate) fn run(&self, line: &str) -> Outcome {
        Outcome::of(line, &mut self.command(line))
    }

    /// Runs the binary, which must succeed with nothing on stderr.
    pub(crate) fn ok(&self, line: &str) -> Outcome {
        self.run(line).assert_ok()
    }

    /// Runs the binary with `--json`, which must succeed, and returns the document.
    pub(crate) fn json(&self, line: &str) -> Value {
        let outcome = self.ok(&format!("{line} --json"));
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{line}: {error}: {}", outcome.stdout))
    }

    /// Returns every file and link below `name`, hidden ones too, with its content.
    pub(crate) fn files(&self, name: &str) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        collect(&self.path(name), "", &mut found);
        found
    }

    /// Returns the names in the directory, hidden ones too.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Returns the names of drafts that were left behind.
    pub(crate) fn partials(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| name.contains(".partial-")).collect()
    }
}

impl Outcome {
    /// Runs a command to its end.
    pub(crate) fn of(line: &str, command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self {
            line: line.to_string(),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: without_progress(&String::from_utf8(output.stderr).unwrap()),
        }
    }

    /// Checks for exit code 0 and nothing on stderr.
    pub(crate) fn assert_ok(self) -> Self {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.line);
        self
    }

    /// Checks for this exit code, one line on stderr with all of `phrases`, and nothing on stdout.
    pub(crate) fn assert_fails(&self, code: i32, phrases: &[&str]) {
        assert_eq!(self.code, code, "{}: {}", self.line, self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}: {:?}", self.line, self.stderr);
        assert_eq!(self.stdout, "", "{}", self.line);
        for phrase in phrases {
            assert!(self.stderr.contains(phrase), "{}: {:?} lacks {phrase:?}", self.line, self.stderr);
        }
    }
}

/// Removes the lines of phases that take more than ten seconds from stderr; on a busy machine, any phase may.
fn without_progress(stderr: &str) -> String {
    let is_progress = |line: &str| line.ends_with(" so far") || line.contains(" %, ") && line.contains(" in ");
    stderr.split_inclusive('\n').filter(|line| !is_progress(line.trim_end())).collect()
}

/// Returns the root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Copies a file or a directory.
pub(crate) fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        std::fs::copy(from, to).unwrap();
        return;
    }
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

fn collect(directory: &Path, below: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{below}{}", entry.file_name().to_str().unwrap());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.insert(format!("{name}/"), Vec::new());
            collect(&entry.path(), &format!("{name}/"), found);
        } else {
            found.insert(name, if kind.is_file() { std::fs::read(entry.path()).unwrap() } else { Vec::new() });
        }
    }
}

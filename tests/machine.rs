//! Failures with `--json`: one document on stdout for programs, and the usual line on stderr.

use crate::sandbox::{Outcome, Sandbox};
use serde_json::Value;

/// Checks the exit code, the error line, and that the document has the same message.
fn assert_fails_in_json(sandbox: &Sandbox, line: &str, code: i32, kind: &str, phrase: &str) -> Value {
    let outcome: Outcome = sandbox.run(line);
    assert_eq!((outcome.code, outcome.stderr.lines().count()), (code, 1), "{line}: {}", outcome.stderr);
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{line}: {error}"));
    let error = &document["error"];
    assert_eq!((&error["kind"], &error["exit_code"]), (&kind.into(), &code.into()), "{line}: {document}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(phrase), "{line}: {message}");
    assert!(outcome.stderr.contains(message), "{line}: {} is not {message}", outcome.stderr);
    document
}

#[test]
fn a_failure_prints_one_document() {
    let sandbox = Sandbox::with("digits");
    sandbox.write("taken/mine.txt", "mine");
    let cases = [
        ("plan digits --quantize int9 --json", 2, "config", "unknown scheme"),
        ("--json inspect nowhere", 4, "input", "no such file"),
        ("compress digits -o taken --quantize int8 --json", 6, "refused", "the output exists"),
        ("compress digits -o /proc/out --quantize int8 --json", 5, "io", "/proc"),
        ("run nothing.toml --json --quiet", 2, "config", "nothing.toml"),
    ];
    for (line, code, kind, phrase) in cases {
        assert_fails_in_json(&sandbox, line, code, kind, phrase);
    }
}

#[test]
fn an_error_in_the_arguments_prints_one_document() {
    let sandbox = Sandbox::new();
    for (line, phrase) in [
        ("--json", "the command is missing"),
        ("plan --bogus --json", "--bogus"),
        ("compress m -o out --prune 1 --json", "expected a number from 0 to below 1"),
        ("--json nonsense", "nonsense"),
    ] {
        assert_fails_in_json(&sandbox, line, 2, "config", phrase);
    }
    // Words after `--` are not flags.
    sandbox.run("plan -- --json").assert_fails(2, &["nothing to do"]);
}

#[cfg(feature = "model")]
#[test]
fn a_refused_plan_prints_one_document() {
    let sandbox = Sandbox::with("digits");
    sandbox.write("data.txt", "x");
    sandbox.write(
        "r.toml",
        "[model]\npath = \"digits\"\n[output]\npath = \"out\"\n[memory]\nlimit = \"1kB\"\n[data]\neval = \"data.txt\"\n\
         [[stage]]\nkind = \"evaluate\"\n",
    );
    let document = assert_fails_in_json(&sandbox, "plan r.toml --json", 6, "refused", "1000");
    assert!(document["tensors"].as_array().is_some_and(|tensors| !tensors.is_empty()), "{document}");
}

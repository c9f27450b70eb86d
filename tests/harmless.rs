//! Hostile characters in names and paths never reach the terminal.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of, tiny};
use briquette::core::printable::is_unsafe_to_print;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A title, a cleared screen, the 8-bit CSI, a bell, DEL, returns, a fake line of error, a change of direction,
/// and an invisible character.
const HOSTILE: &str = "a\x1b]0;title\x07\x1b[2J\u{9b}31m\rb\x7f\u{85}\u{202e}c\u{200b}\nbriquette: error\td";

/// Runs these arguments and checks that the output has no control character but line breaks.
fn run(sandbox: &Sandbox, words: &[&OsStr], code: i32) -> String {
    let output = sandbox.command("").args(words).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    for text in [&stdout, &stderr] {
        assert!(text.chars().all(|letter| letter == '\n' || !is_unsafe_to_print(letter)), "{words:?}: {text:?}");
    }
    assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
    if code != 0 && code != 3 {
        assert_eq!(stderr.lines().count(), 1, "{words:?}: {stderr}");
    }
    stdout
}

fn words<'a>(line: &'a str, model: &'a OsStr) -> Vec<&'a OsStr> {
    line.split(' ').map(|word| if word == "M" { model } else { OsStr::new(word) }).collect()
}

/// A model whose tensors have names with hostile characters.
fn hostile_tensors() -> Vec<Tensor> {
    let mut tensors = tiny();
    tensors.iter_mut().for_each(|tensor| tensor.name = format!("{HOSTILE}.{}", tensor.name));
    tensors
}

/// File names with hostile characters: one of valid UTF-8, one of invalid.
fn models() -> [Vec<u8>; 2] {
    [format!("{HOSTILE}.safetensors").into_bytes(), b"raw\x9b2J\xff\x1b[3J.safetensors".to_vec()]
}

#[test]
fn every_command_escapes_hostile_names_and_paths() {
    for name in models() {
        let sandbox = Sandbox::new();
        let model = OsStr::from_bytes(&name);
        std::fs::write(sandbox.path("").join(model), safetensors_of(&hostile_tensors())).unwrap();
        let table = run(&sandbox, &words("inspect M", model), 0);
        assert_eq!(
            table.lines().count(),
            1 + hostile_tensors().len() + 3,
            "a tensor takes more than its line: {table}"
        );
        let table = run(&sandbox, &words("plan M --quantize int8", model), 0);
        assert_eq!(table.lines().count(), 1 + hostile_tensors().len() + 2, "{table}");
        let output = [OsStr::new("out"), model].join(OsStr::new("-"));
        for line in [
            "inspect M --zeros",
            "inspect M --json",
            "plan M --prune 0.5 --scope global --json",
            "compress M -o OUT --prune 0.5 --quantize int8 --trace trace.json",
            "compress M -o OUT --prune 0.5 --quantize int8 --json --force",
            "verify OUT --against M",
            "verify OUT --json",
            "inspect OUT",
            "report OUT",
            "report OUT --json",
            "diff M OUT",
            "diff M OUT --json",
            "export OUT --to dense -o dense --threads 1",
        ] {
            let words: Vec<&OsStr> =
                words(line, model).into_iter().map(|word| if word == "OUT" { &output } else { word }).collect();
            let printed = run(&sandbox, &words, 0);
            if words.contains(&OsStr::new("--json")) {
                serde_json::from_str::<serde_json::Value>(&printed).unwrap();
            }
        }
        for file in ["trace.json", "dense/report.json"] {
            let text = std::fs::read_to_string(sandbox.path(file)).unwrap();
            assert!(text.chars().all(|letter| letter == '\n' || !is_unsafe_to_print(letter)), "{file}");
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
    }
}

#[test]
fn json_has_the_exact_names() {
    let sandbox = Sandbox::new();
    sandbox.write("m.safetensors", safetensors_of(&hostile_tensors()));
    let found = sandbox.json("inspect m.safetensors");
    assert_eq!(found["tensors"][0]["name"].as_str().unwrap(), hostile_tensors()[0].name);
}

#[test]
fn errors_escape_names_and_arguments_and_stay_one_line() {
    let sandbox = Sandbox::new();
    sandbox.write("m.safetensors", safetensors_of(&hostile_tensors()));
    let (hostile, raw) = (OsStr::new(HOSTILE), OsStr::from_bytes(b"raw\x9b2J\xff\x1b[3J"));
    let broken = [b"\xff\0\0\0\0\0\0\0{", HOSTILE.as_bytes()].concat();
    for name in [hostile, raw] {
        std::fs::write(sandbox.path("").join(Path::new(name)), &broken).unwrap();
        for (line, code) in [
            ("inspect M", 4),
            ("inspect M/none", 4),
            ("verify M", 4),
            ("report M", 4),
            ("diff m.safetensors M", 4),
            ("run M", 2),
            ("compress m.safetensors -o M --prune 0.5", 6),
            ("compress m.safetensors -o out --prune 0.5 --trace M", 6),
            ("compress m.safetensors -o out --quantize M", 2),
            ("compress m.safetensors -o out --prune 0.5 --include M", 2),
            ("compress m.safetensors -o out --prune M", 2),
            ("export m.safetensors --to M -o out", 2),
            ("devices --device M", 2),
            ("M", 2),
            ("inspect m.safetensors M", 2),
            ("inspect m.safetensors --threads M", 2),
        ] {
            let line = line.replace("M/none", "M");
            run(&sandbox, &words(&line, name), code);
        }
    }
    run(&sandbox, &words("compress m.safetensors -o out --prune-pattern 2:5", hostile), 2);
}

#[test]
fn recipes_and_batches_escape_hostile_names() {
    let sandbox = Sandbox::with("digits");
    let name = serde_json::to_string(HOSTILE).unwrap().replace('\x7f', "\\u007f");
    let job = |output: &str, scheme: &str| {
        format!(
            "[[job]]\nname = {name}\n[job.model]\npath = \"digits\"\n[job.output]\npath = \"{output}\"\n[[job.stage]]\nkind = \"quantize\"\nscheme = \"{scheme}\"\n"
        )
    };
    let (no_name, quantize) = (OsStr::new(""), "kind = \"quantize\"\nscheme = \"int8\"");
    for (text, code) in [
        (job("out", "int8"), 0),
        (job("out2", "int8").replace(quantize, "kind = \"prune\"\npattern = \"2:7\""), 3),
        (format!("[model]\npath = {name}\n[output]\npath = \"out\"\n"), 4),
        (format!("[model]\npath = \"digits\"\n[output]\npath = \"out\"\n{name} = 1\n"), 2),
    ] {
        sandbox.write("r.toml", text);
        for line in ["plan r.toml", "run r.toml --force", "run r.toml --json --force"] {
            run(&sandbox, &words(line, no_name), code);
        }
    }
}

#[cfg(feature = "model")]
#[test]
fn an_evaluation_escapes_hostile_names() {
    let sandbox = Sandbox::with("digits");
    let data = crate::sandbox::repository().join("fixtures/digits-data.safetensors");
    for name in models() {
        let name = OsStr::from_bytes(&name);
        std::fs::copy(&data, sandbox.path("").join(name)).unwrap();
        for line in ["eval digits --data M --device cpu", "eval digits --data M --json --device cpu"] {
            run(&sandbox, &words(line, name), 0);
        }
        run(&sandbox, &words("eval M --data digits --device cpu", name), 2);
    }
}

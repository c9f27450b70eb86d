//! Paths of outputs: missing folders are created, and files of other programs stay.

use crate::bad_input::assert_refused;
use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{safetensors_of, tiny};
use std::os::unix::fs::symlink;

/// Commands that write to a path, without it.
fn commands() -> Vec<(&'static str, &'static str)> {
    let mut all = vec![
        ("compress digits --quantize int8 -o", "out"),
        ("export coded --to dense -o", "out"),
        ("sensitivity digits -o", "losses.json"),
        ("graph digits --html", "page.html"),
        ("inspect digits --trace", "trace.json"),
    ];
    if cfg!(feature = "model") {
        all.push(("calibrate digits --data data.safetensors --device cpu -o", "statistics"));
    }
    all
}

fn digits() -> Sandbox {
    let sandbox = Sandbox::with("digits");
    copy(&repository().join("fixtures/digits-data.safetensors"), &sandbox.path("data.safetensors"));
    sandbox.ok("compress digits -o coded --quantize int8");
    sandbox
}

#[test]
fn every_output_option_creates_missing_folders_and_a_failed_run_leaves_none() {
    let sandbox = digits();
    let before = sandbox.names();
    for (command, name) in commands() {
        let failing = command.replace("digits ", "absent ").replace("coded ", "absent ");
        let outcome = sandbox.run(&format!("{failing} new/folder/{name}"));
        assert_ne!(outcome.code, 0, "{command}");
        if !command.contains("--trace") {
            assert_eq!(sandbox.names(), before, "{command}: {}", outcome.stderr);
        }
        std::fs::remove_dir_all(sandbox.path("new")).ok();
        sandbox.ok(&format!("{command} new/folder/{name}"));
        assert!(sandbox.path(&format!("new/folder/{name}")).exists(), "{command}");
        std::fs::remove_dir_all(sandbox.path("new")).unwrap();
    }
}

#[test]
fn a_folder_that_is_a_file_is_an_error_before_any_work() {
    let sandbox = digits();
    sandbox.write("file", "x");
    for (command, name) in commands() {
        sandbox.run(&format!("{command} file/folder/{name}")).assert_fails(5, &["file"]);
        assert_eq!(std::fs::read(sandbox.path("file")).unwrap(), b"x", "{command}");
    }
}

#[test]
fn hidden_files_of_other_programs_stay() {
    let sandbox = digits();
    for (command, name) in commands() {
        let names = [format!(".{name}.partial"), format!(".{name}.partial-1-1"), format!(".{name}.lock")];
        names.iter().for_each(|name| sandbox.write(&format!("new/{name}"), "precious"));
        sandbox.ok(&format!("{command} new/{name}"));
        for name in names {
            assert_eq!(std::fs::read(sandbox.path(&format!("new/{name}"))).unwrap(), b"precious", "{command}");
        }
        std::fs::remove_dir_all(sandbox.path("new")).unwrap();
    }
}

#[test]
fn journals_and_locks_of_other_programs_are_refused_and_stay() {
    let sandbox = digits();
    let recipe = |name: &str| {
        format!(
            "[[job]]\nname = \"{name}\"\n[job.model]\npath = \"digits\"\n[job.output]\npath = \"jobs/{name}\"\n[[job.stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n"
        )
    };
    sandbox.write("jobs.toml", recipe("a") + &recipe("b"));
    for (name, phrase) in [("jobs/jobs.journal.jsonl", "not a journal"), ("jobs/.jobs.journal.lock", "not a lock")] {
        sandbox.write(name, "precious");
        sandbox.run("run jobs.toml").assert_fails(6, &[name.rsplit('/').next().unwrap(), phrase]);
        assert_eq!(std::fs::read(sandbox.path(name)).unwrap(), b"precious");
        std::fs::remove_file(sandbox.path(name)).unwrap();
    }
    sandbox.ok("run jobs.toml");
}

#[test]
fn force_replaces_no_input_and_no_file_of_another_kind() {
    let sandbox = digits();
    copy(&sandbox.path("digits/model.safetensors"), &sandbox.path("m.safetensors"));
    copy(&sandbox.path("digits/config.json"), &sandbox.path("config.json"));
    sandbox.write("script.py", "print(1)");
    sandbox.write("page.html", "<!doctype html><p>mine");
    let mut cases = vec![
        ("sensitivity m.safetensors --force -o m.safetensors", "the input m.safetensors"),
        ("graph m.safetensors --force --html m.safetensors", "the input m.safetensors"),
        ("sensitivity m.safetensors --force -o script.py", "exists and is not a file of sensitivities of briquette"),
        ("sensitivity m.safetensors --force -o page.json", "page.html: exists and is not a page of briquette"),
        ("graph m.safetensors --force --html script.py", "exists and is not a page of briquette"),
    ];
    if cfg!(feature = "model") {
        cases.extend([
            (
                "calibrate digits --data data.safetensors --device cpu --force -o data.safetensors",
                "the input data.safetensors",
            ),
            (
                "calibrate m.safetensors --data data.safetensors --device cpu --force -o m.safetensors",
                "the input m.safetensors",
            ),
            (
                "calibrate digits --data data.safetensors --device cpu --force -o script.py",
                "is not a file of statistics",
            ),
            (
                "sweep digits -o digits --bytes 12kB..40kB --points 2 --eval data.safetensors",
                "lie inside the input digits",
            ),
        ]);
    }
    let before = sandbox.files("");
    for (line, phrase) in cases {
        let outcome = sandbox.run(line);
        assert_eq!(outcome.code, 6, "{line}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(phrase), "{line}: {}", outcome.stderr);
        assert!(sandbox.files("") == before, "{line} changed a file");
    }
    // Earlier files of the same kind are replaced.
    for _ in 0..2 {
        sandbox.ok("sensitivity m.safetensors --force -o losses.json");
        sandbox.ok("graph m.safetensors --force --html graph.html");
        if cfg!(feature = "model") {
            sandbox.ok("calibrate digits --data data.safetensors --device cpu --force -o statistics.safetensors");
        }
    }
}

#[test]
fn outputs_that_would_overwrite_other_files_are_refused() {
    let sandbox = Sandbox::with("digits");
    symlink("digits", sandbox.path("link")).unwrap();
    sandbox.write("file", "x");
    sandbox.write("full/precious", "x");
    sandbox.write("deep/in/model.safetensors", safetensors_of(&tiny()));
    let meets: &[&str] = &["may not be, contain or lie inside the input"];
    for force in ["", " --force"] {
        for output in ["digits", "digits/out", "digits/a/b", "link", "link/out", "digits/../digits", "."] {
            let line = format!("compress digits -o {output} --quantize int8{force}");
            assert_refused(&sandbox, &[(&line, 6, meets)]);
        }
        for output in ["deep", "deep/in", "deep/in/model.safetensors"] {
            let line = format!("compress deep/in/model.safetensors -o {output} --quantize int8{force}");
            assert_refused(&sandbox, &[(&line, 6, meets)]);
        }
        for output in ["full", "file"] {
            let line = format!("compress digits -o {output} --quantize int8{force}");
            assert_refused(&sandbox, &[(&line, 6, &[output, "exists"])]);
        }
        let line = format!("compress digits -o file/out --quantize int8{force}");
        assert_refused(&sandbox, &[(&line, 5, &["file"])]);
    }
}

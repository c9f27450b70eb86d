use super::partial::{Lock, lock};
use super::*;
use crate::io::{model_dir, sums};
use briquette_core::ErrorKind;
use std::collections::BTreeMap;

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_draft_appears_as_a_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    let draft = Draft::create(&target, &[], false).unwrap();
    draft.write_file(Path::new("sub/a"), b"hello").unwrap();
    assert!(!target.exists());
    drop(draft);
    assert_eq!(names(dir.path()), [] as [&str; 0]);
    let draft = Draft::create(&target, &[], false).unwrap();
    draft.write_file(Path::new("a"), b"hello").unwrap();
    draft.publish().unwrap();
    assert_eq!((names(dir.path()), names(&target)), (vec!["out".to_string()], vec!["a".to_string()]));
}

#[test]
fn file_names_outside_of_the_directory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let draft = Draft::create(&dir.path().join("out"), &[], false).unwrap();
    let absolute = dir.path().join("absolute.txt");
    for name in [Path::new("../escaped.txt"), &absolute, Path::new("a/../../b"), Path::new(""), Path::new("./a/..")] {
        let error = draft.write_file(name, b"x").unwrap_err();
        assert!(error.kind == ErrorKind::Config && error.to_string().contains("file name"), "{error}");
    }
    draft.write_file(Path::new("a/b..c"), b"x").unwrap();
    drop(draft);
    assert_eq!(names(dir.path()), [] as [&str; 0]);
}

/// Writes the files that mark a directory as an output of Briquette.
fn write_ours(directory: &Path) {
    std::fs::write(directory.join(model_dir::MANIFEST), "{}").unwrap();
    let sums = BTreeMap::from([(model_dir::MANIFEST.to_string(), sums::sha256_of_bytes(b"{}"))]);
    std::fs::write(directory.join(sums::FILE_NAME), sums::to_lines(&sums)).unwrap();
}

#[test]
fn only_outputs_of_briquette_are_replaced_and_only_with_replace() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    std::fs::create_dir(&target).unwrap();
    let refused = |replace| {
        let error = Draft::create(&target, &[], replace).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused, "{error}");
        error.message
    };
    std::fs::write(target.join("precious"), "x").unwrap();
    refused(false);
    refused(true);
    std::fs::write(target.join(model_dir::MANIFEST), "").unwrap();
    refused(true);
    write_ours(&target);
    assert!(refused(true).contains("precious"));
    std::fs::remove_file(target.join("precious")).unwrap();
    std::fs::write(target.join("report.html"), "x").unwrap();
    let draft = Draft::create(&target, &[], true).unwrap();
    draft.write_file(Path::new("new"), b"y").unwrap();
    std::fs::write(target.join("late"), "x").unwrap();
    assert_eq!(draft.publish().unwrap_err().kind, ErrorKind::Refused);
    std::fs::remove_file(target.join("late")).unwrap();
    let draft = Draft::create(&target, &[], true).unwrap();
    draft.write_file(Path::new("new"), b"y").unwrap();
    draft.publish().unwrap();
    assert_eq!((names(dir.path()), names(&target)), (vec!["out".to_string()], vec!["new".to_string()]));
}

#[test]
fn directories_created_for_a_draft_are_removed_with_it() {
    let dir = tempfile::tempdir().unwrap();
    drop(Draft::create(&dir.path().join("a/b/out"), &[], false).unwrap());
    assert_eq!(names(dir.path()), [] as [&str; 0]);
    let draft = Draft::create(&dir.path().join("a/../out"), &[], false).unwrap();
    draft.publish().unwrap();
    assert_eq!(names(dir.path()), ["out"]);
    let long = dir.path().join("n".repeat(255));
    Draft::create(&long, &[], false).unwrap().publish().unwrap();
    assert!(long.is_dir());
}

#[test]
fn drafts_of_reports_belong_to_an_output_and_other_hidden_files_do_not() {
    for name in [".report.html.partial-77-0/report.html", ".report.json.partial-1-2/.briquette-draft"] {
        assert!(sums::is_uncovered(name), "{name}");
    }
    for name in [
        ".report.html.partial",
        ".report.html.partial-77-0",
        ".report.html.partial-77-0/thesis.txt",
        ".report.html.partial-x-0/report.html",
        ".model.bin.partial-77-0/model.bin",
        "sub/report.html",
    ] {
        assert!(!sums::is_uncovered(name), "{name}");
    }
}

#[test]
fn an_output_that_overlaps_its_input_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    std::fs::create_dir(&input).unwrap();
    std::os::unix::fs::symlink(&input, dir.path().join("link")).unwrap();
    for target in ["in", "in/out", "in/a/b", "link", "link/out", "in/../in"] {
        let error = Draft::create(&dir.path().join(target), &[&input], true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused, "{target}: {error}");
    }
    let file = input.join("model");
    std::fs::write(&file, "x").unwrap();
    assert!(Draft::create(&input, &[&file], true).is_err(), "an output that contains the input");
    assert!(Draft::create(&dir.path().join("out"), &[&input], true).is_ok());
}

#[test]
fn drafts_of_killed_runs_are_removed_and_running_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    std::fs::create_dir(dir.path().join(".out.partial-1-0")).unwrap();
    let running = Draft::create(&target, &[], false).unwrap();
    let second = Draft::create(&target, &[], false).unwrap();
    assert!(running.path().exists() && second.path().exists());
    assert_eq!(names(dir.path()).len(), 2, "{:?}", names(dir.path()));
    second.publish().unwrap();
    assert_eq!(running.publish().unwrap_err().kind, ErrorKind::Refused);
    assert_eq!(names(dir.path()), ["out"]);
}

/// Creates a directory beside `out` with these files, and a mark if it is a draft.
fn leave(parent: &Path, name: &str, files: &[&str], is_draft: bool) -> PathBuf {
    let directory = parent.join(name);
    std::fs::create_dir(&directory).unwrap();
    files.iter().for_each(|file| std::fs::write(directory.join(file), "x").unwrap());
    if is_draft {
        mark(&directory).unwrap();
    }
    directory
}

#[test]
fn only_drafts_are_removed_and_nothing_stops_a_new_draft() {
    let dir = tempfile::tempdir().unwrap();
    let (parent, target) = (dir.path(), dir.path().join("out"));
    leave(parent, ".out.partial-1-0", &[], false);
    leave(parent, ".out.partial-1-1", &["model.safetensors"], true);
    let cut = leave(parent, ".out.partial-1-2", &["model.safetensors"], true);
    std::fs::write(cut.join(MARK), "Unfin").unwrap();
    let done = leave(parent, ".out.partial-1-3", &[], false);
    std::fs::write(done.join(model_dir::MANIFEST), "{}").unwrap();
    let sums = BTreeMap::from([(model_dir::MANIFEST.to_string(), sums::sha256_of_bytes(b"{}"))]);
    std::fs::write(done.join(sums::FILE_NAME), sums::to_lines(&sums)).unwrap();
    // None of these is provably a draft.
    leave(parent, ".out.partial-2-0", &["thesis.txt"], false);
    let other = leave(parent, ".out.partial-2-1", &["thesis.txt"], false);
    std::fs::write(other.join(MARK), "my own notes").unwrap();
    leave(parent, ".out.partial-2", &[], false);
    leave(parent, ".out.partial-x-0", &["model.safetensors"], true);
    leave(parent, ".out2.partial-2-0", &["model.safetensors"], true);
    std::fs::write(parent.join(".out.partial-2-2"), "x").unwrap();
    std::os::unix::fs::symlink("nowhere", parent.join(".out.partial-2-3")).unwrap();
    // A live run holds the lock.
    let running = leave(parent, ".out.partial-3-0", &["model.safetensors"], true);
    let Ok(Lock::Held(_lock)) = lock(&running) else { panic!("the lock is free") };
    let kept = [
        ".out.partial-2",
        ".out.partial-2-0",
        ".out.partial-2-1",
        ".out.partial-2-2",
        ".out.partial-2-3",
        ".out.partial-3-0",
        ".out.partial-x-0",
        ".out2.partial-2-0",
    ];
    for replace in [false, true] {
        let draft = Draft::create(&target, &[], replace).unwrap();
        draft.write_file(Path::new(model_dir::MANIFEST), b"{}").unwrap();
        draft.write_file(Path::new(sums::FILE_NAME), sums::to_lines(&sums).as_bytes()).unwrap();
        draft.publish().unwrap();
        assert_eq!(names(parent), [&kept[..], &["out"]].concat());
        assert_eq!(names(&target), [sums::FILE_NAME, model_dir::MANIFEST]);
    }
    discard(&target, &target).unwrap();
    assert_eq!(names(parent), kept);
}

#[test]
fn names_that_are_taken_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let first = Draft::create(&dir.path().join("out"), &[], false).unwrap();
    let name = first.path().file_name().unwrap().to_str().unwrap().to_string();
    let (stem, number) = name.rsplit_once('-').unwrap();
    let number: u32 = number.parse().unwrap();
    // Tests of other threads may take numbers too.
    (1..40).for_each(|n| std::fs::write(dir.path().join(format!("{stem}-{}", number + n)), "x").unwrap());
    let second = Draft::create(&dir.path().join("out"), &[], false).unwrap();
    assert!(second.path().is_dir());
}

#[test]
fn a_removed_draft_is_reported_and_never_published() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("parent/out");
    let draft = Draft::create(&target, &[], false).unwrap();
    draft.write_file(Path::new("a"), b"hello").unwrap();
    let other = || Error::input("no such file");
    assert_eq!(draft.explain(other()).kind, ErrorKind::Input, "the draft exists, so the error is unchanged");
    std::fs::remove_dir_all(dir.path().join("parent")).unwrap();
    assert_eq!(draft.explain(other()).kind, ErrorKind::Io);
    assert_eq!(draft.explain(Error::interrupted(15)).exit_code(), 143);
    assert_eq!(draft.write_file(Path::new("b"), b"late").unwrap_err().kind, ErrorKind::Io);
    // A new directory at the same path has none of the files that were written.
    std::fs::create_dir_all(draft.path()).unwrap();
    draft.write_file(Path::new("b"), b"late").unwrap();
    let error = draft.publish().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(error.to_string().contains("was removed") && !target.exists(), "{error}");
}

#[test]
fn a_path_with_a_nul_byte_is_a_config_error() {
    let dir = tempfile::tempdir().unwrap();
    let error = Draft::create(&dir.path().join("a\0b"), &[], false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Config);
    assert!(names(dir.path()).is_empty());
}

//! Describes the work that a stopped run leaves beside its output.

use super::work::Work;
use crate::report::numbers;
use briquette_core::{Error, ErrorKind, shown_path};
use briquette_formats::{InputFile, limits};
use briquette_recipe::StageKind;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Describes the finished work in a directory of stages; `None` if there is none.
///
/// A directory that cannot be listed is described too, because it may have work.
pub(super) fn words(directory: &Path) -> Option<String> {
    let Ok(parts) = listed(directory) else { return Some("parts that cannot be listed".into()) };
    let of_kind = |kind: &str| parts.iter().filter(|part| kind_of(part) == kind).cloned().collect::<Vec<PathBuf>>();
    let whole = StageKind::ALL.into_iter().filter(|kind| kind.is_whole()).map(StageKind::name).chain(["compress"]);
    let n_stages = whole.map(|kind| of_kind(kind).len()).sum();
    let solved: Vec<PathBuf> = of_kind(Work::SOLVED).iter().flat_map(|part| files_below(part)).collect();
    let n_groups = solved.iter().filter(|file| is_of_group(file)).count();
    let n_statistics = solved.iter().filter(|file| name_of(file).starts_with("statistics")).count();
    let mut items = vec![
        counted(n_stages, "finished stage"),
        counted(solved.len() - n_groups - n_statistics, "finished block"),
        counted(n_groups, "finished layer group"),
    ];
    items.push((n_statistics > 0).then(|| "the input statistics".into()));
    for training in of_kind("training") {
        items.push(step_of(&training.join("last.json")).map(|step| format!("the checkpoint of step {step}")));
        items.push(training.join("teacher.safetensors").exists().then(|| "the teacher's outputs".into()));
    }
    let items: Vec<String> = items.into_iter().flatten().collect();
    (!items.is_empty()).then(|| items.join(", "))
}

/// Adds to an error what the directory has and how to resume. A batch adds the latter itself.
pub(super) fn explain(error: Error, kept: &str, directory: &Path, is_of_batch: bool) -> Error {
    if !matches!(error.kind, ErrorKind::Interrupted(_) | ErrorKind::Io) {
        return error;
    }
    let n_bytes = files_below(directory).iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    let how = if is_of_batch { "" } else { "; run it again to resume, or remove that directory" };
    let (directory, n_bytes) = (shown_path(directory), numbers::bytes(n_bytes));
    let message = format!("{}; no output was written; {directory} ({n_bytes}) keeps {kept}{how}", error.message);
    Error { message, ..error }
}

fn listed(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
}

/// Lists every file below a directory, as far as possible. Hidden files are drafts and are skipped.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = listed(directory).unwrap_or_default().into_iter().filter(|path| !name_of(path).starts_with('.'));
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns whether a file has a group of layers of a block, as in `block-0003-01.safetensors`.
fn is_of_group(file: &Path) -> bool {
    name_of(file).strip_prefix("block-").is_some_and(|rest| rest.contains('-'))
}

/// Returns the kind of a part, as in `2-distill`. It is empty for other files and for drafts.
fn kind_of(part: &Path) -> String {
    let name = name_of(part);
    let (number, kind) = name.split_once('-').unwrap_or_default();
    if number.parse::<usize>().is_ok() { kind.into() } else { String::new() }
}

/// Returns the step of a training's last checkpoint, if there is one.
fn step_of(last: &Path) -> Option<u64> {
    let bytes = InputFile::open(last).and_then(|file| file.read_all(limits::MAX_JSON_BYTES)).ok()?;
    serde_json::from_slice::<Value>(&bytes).ok()?["step"].as_u64()
}

fn counted(n: usize, what: &str) -> Option<String> {
    match n {
        0 => None,
        1 => Some(format!("1 {what}")),
        n => Some(format!("{n} {what}s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_work_is_counted_without_drafts() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("recipe.json", "{}");
        put(".1-compress.partial-7-0/model.safetensors", "x");
        assert_eq!(words(dir.path()), None);
        put("1-solved/steps-1f/block-0000.safetensors", "x");
        put("1-solved/steps-1f/block-0001.safetensors", "x");
        put("1-solved/steps-2f/block-0000-01.safetensors", "x");
        put("1-solved/statistics.safetensors", "x");
        put("1-compress/model.safetensors", "xx");
        put("1-training/last.json", "{\"step\": 30}");
        let kept = words(dir.path()).unwrap();
        let blocks = "2 finished blocks, 1 finished layer group";
        assert_eq!(kept, format!("1 finished stage, {blocks}, the input statistics, the checkpoint of step 30"));
        let error = explain(Error::interrupted(2), &kept, dir.path(), false);
        assert!(error.message.starts_with("stopped by signal 2; no output was written; "), "{error}");
        assert!(error.message.contains(" keeps 1 finished stage") && error.message.contains("run it again"), "{error}");
        let refused = explain(Error::refused("no"), &kept, dir.path(), false);
        assert_eq!(refused.message, "no");
        assert!(words(&dir.path().join("absent")).is_some());
    }
}

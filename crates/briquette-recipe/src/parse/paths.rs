//! The list of all path keys of a recipe and their purposes.
//!
//! Path resolution, input hashes, the separation of inputs from outputs and the protection from `--trace` all
//! use this list. A new path key is added here only.

use crate::parse::kind::StageKind;
use crate::parse::raw::{RawCalibration, RawData, RawRecipe, StageKeys};
use briquette_core::{Error, Result};
use briquette_formats::{InputFile, presence};
use std::path::{Component, Path, PathBuf};

/// The purpose of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A model to read.
    Model,
    /// Data to train on.
    TrainingData,
    /// Data for an evaluate stage, or for the evaluation after each epoch of a training.
    EvaluationData,
    /// Data that chooses the best epoch of a training.
    SelectionData,
    /// Data for calibration.
    CalibrationData,
    /// A file of input statistics or of sensitivities.
    Statistics,
    /// A directory to write.
    Output,
}

/// A path in a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPath {
    /// The key, such as `stage.1.teacher`.
    pub key: String,
    /// The purpose of the path.
    pub purpose: Purpose,
    /// The path.
    pub path: PathBuf,
}

impl NamedPath {
    /// Returns the index of the stage that has this key, if it is in a stage.
    pub fn stage(&self) -> Option<usize> {
        self.key.strip_prefix("stage.")?.split('.').next()?.parse().ok()
    }
}

/// A path key: its name, its purpose and its value.
type Slot<'a> = (String, Purpose, &'a mut Option<PathBuf>);

/// Returns every path key. A new path key is added here and nowhere else.
fn slots(raw: &mut RawRecipe) -> Vec<Slot<'_>> {
    let mut slots: Vec<Slot> = vec![
        ("model.path".into(), Purpose::Model, &mut raw.model.path),
        ("output.path".into(), Purpose::Output, &mut raw.output.path),
    ];
    if let Some(RawData { train, eval, select, labels, .. }) = &mut raw.data {
        slots.push(("data.train".into(), Purpose::TrainingData, train));
        slots.push(("data.eval".into(), Purpose::EvaluationData, eval));
        slots.push(("data.select".into(), Purpose::SelectionData, select));
        slots.push(("data.labels".into(), Purpose::EvaluationData, labels));
    }
    if let Some(RawCalibration { data, statistics, .. }) = &mut raw.calibration {
        slots.push(("calibration.data".into(), Purpose::CalibrationData, data));
        slots.push(("calibration.statistics".into(), Purpose::Statistics, statistics));
    }
    if let Some(budget) = &mut raw.budget {
        slots.push(("budget.sensitivity_file".into(), Purpose::Statistics, &mut budget.sensitivity_file));
    }
    for (index, stage) in raw.stage.iter_mut().enumerate() {
        match &mut stage.keys {
            StageKeys::Distill(keys) => {
                slots.push((format!("stage.{index}.teacher"), Purpose::Model, &mut keys.teacher));
            }
            StageKeys::Prune(keys) => {
                slots.push((format!("stage.{index}.statistics"), Purpose::Statistics, &mut keys.statistics));
            }
            StageKeys::Quantize(keys) => {
                slots.push((format!("stage.{index}.statistics"), Purpose::Statistics, &mut keys.statistics));
            }
            StageKeys::Fold(keys) => {
                slots.push((format!("stage.{index}.statistics"), Purpose::Statistics, &mut keys.statistics));
            }
            StageKeys::Shrink(keys) => {
                slots.push((format!("stage.{index}.statistics"), Purpose::Statistics, &mut keys.statistics));
            }
            _ => {}
        }
    }
    slots
}

/// Returns every path in a recipe, used or not.
pub fn named(raw: &RawRecipe) -> Vec<NamedPath> {
    let mut raw = raw.clone();
    let slots = slots(&mut raw).into_iter();
    slots.filter_map(|(key, purpose, path)| Some(NamedPath { key, purpose, path: path.take()? })).collect()
}

/// Returns the paths that a run reads; data that no stage uses is left out.
pub(crate) fn read(raw: &RawRecipe) -> Vec<NamedPath> {
    let (trains, evaluates) = (raw.has(StageKind::Distill), raw.has(StageKind::Evaluate));
    let is_read = |named: &NamedPath| match named.purpose {
        Purpose::Model | Purpose::CalibrationData | Purpose::Statistics => true,
        Purpose::TrainingData | Purpose::SelectionData => trains,
        Purpose::EvaluationData => trains || evaluates,
        Purpose::Output => false,
    };
    named(raw).into_iter().filter(is_read).collect()
}

/// Returns the directory `OUT.stages`, which keeps the finished parts of a run that trains, factorizes, shrinks or folds.
pub fn stages_beside(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    output.with_file_name(format!("{name}.stages"))
}

/// Returns every path that a run of a recipe in `directory` may read or write, used or not.
pub fn touched(raw: &RawRecipe, directory: &Path) -> Vec<PathBuf> {
    let mut raw = raw.clone();
    resolve(&mut raw, directory);
    let stages = raw.output.path.as_deref().map(stages_beside);
    named(&raw).into_iter().map(|named| named.path).chain(stages).collect()
}

/// Makes paths that are relative to `directory` relative to the current directory.
pub fn resolve(raw: &mut RawRecipe, directory: &Path) {
    for path in slots(raw).into_iter().filter_map(|(.., path)| path.as_mut()) {
        *path = path_from(directory, path);
    }
}

/// Does the same as [`resolve`] for a key and the keys below it, such as `stage.1.teacher` or all of `stage`.
pub(crate) fn resolve_at(raw: &mut RawRecipe, key: &str, directory: &Path) {
    let is_at = |found: &str| found.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    for (.., path) in slots(raw).into_iter().filter(|(found, ..)| is_at(found)) {
        path.iter_mut().for_each(|path| *path = path_from(directory, path));
    }
}

/// Returns the recipe without any path.
pub fn without(raw: &RawRecipe) -> RawRecipe {
    let mut raw = raw.clone();
    slots(&mut raw).into_iter().for_each(|(.., path)| *path = None);
    raw
}

/// Refuses missing data before any work; otherwise a run could fail after hours of training.
///
/// # Errors
/// Input or Io: the data is missing or not readable; the message starts with the key.
pub fn check_data(read: &[NamedPath]) -> Result<()> {
    let check = |path: &Path| match presence::is_directory(path)? {
        true => Ok(()),
        false => InputFile::open(path).map(drop),
    };
    let mut data = read.iter().filter(|named| named.purpose != Purpose::Model);
    data.try_for_each(|named| check(&named.path).map_err(|error| error.at(&named.key)))
}

/// Returns the directory that paths in a recipe are relative to.
pub fn directory_of(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Resolves a path of a recipe in `directory`.
///
/// `../out` in `configs` becomes `out` instead of `configs/../out`, except if `configs` is a link, because its
/// parent is elsewhere.
pub(crate) fn path_from(directory: &Path, path: &Path) -> PathBuf {
    let (mut directory, mut path) = (directory, path);
    while let Ok(rest) = path.strip_prefix("..")
        && rest.file_name().is_some()
        && directory.file_name().is_some()
        && directory.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
    {
        directory = directory.parent().unwrap_or(Path::new(""));
        path = rest;
    }
    directory.join(path)
}

/// Normalizes a path that may not exist: resolves links as far as it exists, and removes `..` from the rest.
///
/// # Errors
/// Io: there is no current directory, or a part of the path cannot be read.
pub fn one_spelling(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|source| Error::io("cannot resolve", path, source))?;
    let Some((above, mut resolved)) = presence::resolved_ancestor(&absolute)? else { return Ok(absolute) };
    for component in absolute.strip_prefix(above).unwrap_or(&absolute).components() {
        match component {
            Component::ParentDir => _ = resolved.pop(),
            Component::Normal(name) => resolved.push(name),
            _ => {}
        }
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::text::parse;

    const RECIPE: &str = "[model]\npath = \"m\"\n[output]\npath = \"/o\"\n[data]\ntrain = \"t\"\neval = \"e\"\n\
        labels = \"l\"\nselect = \"s\"\n[calibration]\ndata = \"c\"\nstatistics = \"i\"\n[[stage]]\nkind = \"prune\"\nstatistics = \"../a\"\n[[stage]]\nkind = \"distill\"\nteacher = \"../b\"\n";

    fn pairs(named: &[NamedPath]) -> Vec<(&str, &str)> {
        named.iter().map(|named| (named.key.as_str(), named.path.to_str().unwrap())).collect()
    }

    #[test]
    fn parent_components_are_removed_except_after_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::os::unix::fs::symlink(root.join("a/b"), root.join("link")).unwrap();
        let cases = [
            ("a/b", "../../out", "out"),
            ("a/b", "../c/../out", "a/c/../out"),
            ("a/b", "out", "a/b/out"),
            ("link", "../out", "link/../out"),
            ("none", "../out", "none/../out"),
            ("a/b", "..", "a/b/.."),
        ];
        for (directory, path, expected) in cases {
            assert_eq!(path_from(&root.join(directory), Path::new(path)), root.join(expected));
        }
        assert_eq!(path_from(Path::new(""), Path::new("../out")), Path::new("../out"));
        assert_eq!(path_from(root, Path::new("/out")), Path::new("/out"));
    }

    #[test]
    fn equivalent_paths_have_one_spelling() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(dir.path()).unwrap();
        std::fs::create_dir(root.join("out")).unwrap();
        std::os::unix::fs::symlink(root.join("out"), root.join("link")).unwrap();
        for path in ["out/a", "out/./a", "out/b/../a", "link/a", "link/../out/a"] {
            assert_eq!(one_spelling(&root.join(path)).unwrap(), root.join("out/a"), "{path}");
        }
    }

    #[test]
    fn the_list_has_every_path_key() {
        let raw: RawRecipe = parse(RECIPE, "r.toml").unwrap();
        let files = [
            include_str!("raw/model.rs"),
            include_str!("raw/data.rs"),
            include_str!("distill.rs"),
            include_str!("prune.rs"),
            include_str!("raw/calibration.rs"),
        ];
        // The text between the name of a raw struct and its closing brace.
        let mirrors = files.iter().flat_map(|text| text.split("pub struct Raw").skip(1));
        let fields = mirrors.map(|text| text.split("\n}").next().unwrap_or_default());
        let n_fields: usize = fields.map(|text| text.matches("PathBuf>,").count()).sum();
        assert_eq!(named(&raw).len(), n_fields, "a key with a path is missing in the list, or in this test");
        assert!(named(&without(&raw)).is_empty());
    }

    #[test]
    fn changed_keys_resolve_against_their_own_directory() {
        let mut raw: RawRecipe = parse(RECIPE, "r.toml").unwrap();
        resolve_at(&mut raw, "stage", Path::new("jobs"));
        resolve_at(&mut raw, "data.evaluation", Path::new("jobs"));
        resolve(&mut raw, Path::new("d"));
        let expected = [
            ("model.path", "d/m"),
            ("output.path", "/o"),
            ("data.train", "d/t"),
            ("data.eval", "d/e"),
            ("data.select", "d/s"),
            ("data.labels", "d/l"),
            ("calibration.data", "d/c"),
            ("calibration.statistics", "d/i"),
            ("stage.0.statistics", "d/jobs/../a"),
            ("stage.1.teacher", "d/jobs/../b"),
        ];
        assert_eq!(pairs(&named(&raw)), expected);
        let raw: RawRecipe = parse(RECIPE, "r.toml").unwrap();
        let touched = touched(&raw, Path::new("d"));
        assert!(touched.len() == 11 && touched.contains(&"/o.stages".into()) && touched.contains(&"d/t".into()));
    }

    #[test]
    fn data_is_read_if_a_stage_uses_it() {
        let keys = |text: &str| {
            let raw: RawRecipe = parse(&RECIPE.replace("kind = \"distill\"", text), "r.toml").unwrap();
            read(&raw).iter().map(|named| named.key.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            keys("kind = \"distill\""),
            "model.path data.train data.eval data.select data.labels calibration.data calibration.statistics \
             stage.0.statistics stage.1.teacher"
        );
        let calibrated = "calibration.data calibration.statistics stage.0.statistics";
        assert_eq!(keys("kind = \"evaluate\""), format!("model.path data.eval data.labels {calibrated}"));
        assert_eq!(keys("kind = \"quantize\""), format!("model.path {calibrated}"));
    }
}

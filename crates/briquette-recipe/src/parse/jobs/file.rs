//! The context of a jobs file: the position of errors and the directory of relative paths.

use super::overrides;
use super::raw::RawJob;
use crate::parse::raw::RawRecipe;
use crate::parse::{directory_of, paths, read_raw, text};
use briquette_core::{Error, Result};
use std::path::{Path, PathBuf};

/// The path, the text and the directory of a jobs file.
#[derive(Debug)]
pub(super) struct JobsFile {
    path: PathBuf,
    text: String,
    directory: PathBuf,
}

impl JobsFile {
    /// Creates the context of the file at `path`.
    pub(super) fn of(path: &Path, text: &str) -> Self {
        Self { path: path.to_path_buf(), text: text.to_string(), directory: directory_of(path) }
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Prefixes an error with the file and the line, unless it already has them.
    pub(super) fn locate(&self, error: Error, place: &[&str]) -> Error {
        match text::line_of(&self.text, place) {
            Some(line) => error.at(format_args!("{}:{line}", self.path.display())),
            None => error.at(self.path.display()),
        }
    }

    /// Returns the directory that paths in this file are relative to.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the recipe of a job with its `set` values applied.
    ///
    /// Its paths are relative to the current directory.
    pub(super) fn changed(&self, raw: &RawJob, place: &[&str]) -> Result<RawRecipe> {
        let mut recipe = self.recipe_of(raw)?;
        for (path, value) in overrides::flatten(&raw.set) {
            recipe = overrides::apply(&recipe, &path, value).map_err(|error| self.at_override(error, place, &path))?;
            // Paths that this file sets are relative to its directory.
            paths::resolve_at(&mut recipe, &path, &self.directory);
        }
        Ok(recipe)
    }

    /// Prefixes an error with the line of an override.
    pub(super) fn at_override(&self, error: Error, place: &[&str], path: &str) -> Error {
        let bare: Vec<&str> = path.split('.').collect();
        let tables = [[place, &["set"]].concat(), vec!["matrix"]];
        let lines = tables.iter().flat_map(|table| {
            [[table.as_slice(), &[path]].concat(), [table.as_slice(), &bare].concat()]
                .map(|steps| text::line_of(&self.text, &steps))
        });
        let line = lines.flatten().next().map_or("?".into(), |line| line.to_string());
        error.at(format_args!("set (line {line})"))
    }

    /// Returns the recipe of a job, from its file or inline, with paths relative to the current directory.
    fn recipe_of(&self, raw: &RawJob) -> Result<RawRecipe> {
        let is_inline = raw.model.is_some() || raw.output.is_some() || raw.stage.is_some();
        let (mut recipe, directory) = match &raw.recipe {
            Some(_) if is_inline => {
                let message =
                    "found also model, output or stage; change a recipe with set, or write the whole job inline";
                return Err(Error::config(message).at("recipe"));
            }
            Some(path) => {
                let path = self.directory.join(path);
                (read_raw(&path)?, directory_of(&path))
            }
            None => (inline(raw), self.directory.clone()),
        };
        paths::resolve(&mut recipe, &directory);
        Ok(recipe)
    }
}

/// Returns the name of a job: the given name, or the last part of its output.
pub(super) fn name_of(name: Option<String>, output: &Path) -> Result<String> {
    let last = || output.file_name().map(|name| name.to_string_lossy().into_owned());
    name.or_else(last).ok_or_else(|| Error::config("output.path: has no directory name; choose another"))
}

fn inline(raw: &RawJob) -> RawRecipe {
    RawRecipe {
        model: raw.model.clone().unwrap_or_default(),
        output: raw.output.clone().unwrap_or_default(),
        stage: raw.stage.clone().unwrap_or_default(),
        data: raw.data.clone(),
        calibration: raw.calibration.clone(),
        budget: raw.budget.clone(),
        memory: raw.memory.clone(),
        gate: raw.gate.clone(),
    }
}

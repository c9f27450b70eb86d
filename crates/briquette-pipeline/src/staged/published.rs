//! What a run notes just before its output appears: one that is killed before it has cleaned up is found to be done by the next.

use crate::contents::InputHashes;
use crate::{identity, verify};
use briquette_core::{Error, Result};
use briquette_formats::{Draft, InputFile, draft, json, limits};
use briquette_recipe::Recipe;
use briquette_report::Report;
use briquette_writer::context::{RunOptions, Workers};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file of the note.
pub(super) const FILE: &str = "published.json";

/// Which run an output is of: that very run is found to be done, no other.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    /// Hash of what was asked, gate and evaluation too.
    recipe: String,
    /// What was read.
    contents: InputHashes,
    /// SHA-256 of its `SHA256SUMS`.
    sums: String,
}

impl Note {
    fn of(recipe: &Recipe, contents: &InputHashes, output: &Path) -> Result<Self> {
        let sums = identity::of_output(output)?;
        Ok(Self { recipe: identity::of_recipe(recipe)?, contents: contents.clone(), sums })
    }
}

/// Notes in `directory` that this draft is about to be the output.
pub(super) fn note(directory: &Path, draft: &Draft, recipe: &Recipe, contents: &InputHashes) -> Result<()> {
    let note = Note::of(recipe, contents, draft.path())?;
    let text = serde_json::to_vec_pretty(&note).map_err(|error| Error::bug(format!("the note: {error}")))?;
    draft::replace_file(&directory.join(FILE), &text)
}

/// The report of the output, where it is what the same run noted and every file of it is as it was written.
///
/// # Errors
/// Interrupted. Whatever else is wrong: the output is not taken for that run's.
pub(super) fn finished(
    directory: &Path,
    recipe: &Recipe,
    contents: &InputHashes,
    options: &RunOptions,
) -> Result<Option<Report>> {
    let look = || -> Result<Option<Report>> {
        let noted: Note = read(&directory.join(FILE), "the note")?;
        if noted != Note::of(recipe, contents, &recipe.output)? {
            return Ok(None);
        }
        verify::check_sums(&recipe.output, &Workers::new(options)?)?;
        read(&recipe.output.join("report.json"), "the report").map(Some)
    };
    look().or_else(|error| if identity::is_stop(&error) { Err(error) } else { Ok(None) })
}

fn read<T: serde::de::DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    json::parse(&InputFile::open(path)?.read_all(limits::MAX_JSON_BYTES)?, what, path)
}

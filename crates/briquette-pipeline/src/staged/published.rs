//! A note that a run writes just before its output appears.
//!
//! From the note, the next run detects that the earlier one was killed during cleanup.

use crate::contents::InputHashes;
use crate::report::Report;
use crate::{identity, verify};
use briquette_core::{Error, Result};
use briquette_formats::{Draft, InputFile, draft, json, limits};
use briquette_recipe::Recipe;
use briquette_writer::context::{RunOptions, Workers};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The name of the note's file.
pub(super) const FILE: &str = "published.json";

/// The identity of an output: only the very same run is found to be done.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    /// The hash of the recipe, including gate and evaluation.
    recipe: String,
    /// The contents that were read.
    contents: InputHashes,
    /// The SHA-256 of `SHA256SUMS`.
    sums: String,
}

impl Note {
    fn of(recipe: &Recipe, contents: &InputHashes, output: &Path) -> Result<Self> {
        let sums = identity::of_output(output)?;
        Ok(Self { recipe: identity::of_recipe(recipe)?, contents: contents.clone(), sums })
    }
}

/// Writes a note that this draft is about to be published.
pub(super) fn note(directory: &Path, draft: &Draft, recipe: &Recipe, contents: &InputHashes) -> Result<()> {
    let note = Note::of(recipe, contents, draft.path())?;
    let text = serde_json::to_vec_pretty(&note).map_err(|error| Error::bug(format!("the note: {error}")))?;
    draft::replace_file(&directory.join(FILE), &text)
}

/// Returns the report of the output if the same run noted it and all its files are intact.
///
/// # Errors
/// Interrupted: a stop was requested. With any other error, the output does not count as that run's.
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

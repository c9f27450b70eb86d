//! Hashes of a recipe and its output. Runs with equal hashes and equal [contents](crate::contents) are the same
//! run.

use briquette_core::{Error, Result};
use briquette_formats::{InputFile, Manifest, manifest, sums};
use briquette_recipe::{Recipe, paths};
use std::path::Path;

/// The name and version of the program. Another version may write other bytes.
pub(crate) const PROGRAM: &str = concat!("briquette ", env!("CARGO_PKG_VERSION"));

/// Returns the SHA-256 of a recipe, including data, gate and evaluation, with the program's version.
///
/// Paths do not count: their contents are hashed with the input.
///
/// # Errors
/// Bug: the recipe cannot be written as JSON.
pub(crate) fn of_recipe(recipe: &Recipe) -> Result<String> {
    let raw = serde_json::to_value(paths::without(&recipe.asked))
        .map_err(|error| Error::bug(format!("the recipe: {error}")))?;
    Ok(sums::sha256_of_bytes(format!("{PROGRAM}\n{raw}").as_bytes()))
}

/// Returns the SHA-256 of an output's `SHA256SUMS`, which covers every reproducible file.
///
/// # Errors
/// - Input: the file is missing.
/// - Io: the file cannot be read.
pub(crate) fn of_output(directory: &Path) -> Result<String> {
    sums::sha256_of(&InputFile::open(&directory.join(sums::FILE_NAME))?, false, &|| Ok(()))
}

/// Returns the SHA-256 of an output's report, which `SHA256SUMS` does not cover.
///
/// # Errors
/// See [`of_output`].
pub(crate) fn of_report(directory: &Path) -> Result<String> {
    sums::sha256_of(&InputFile::open(&directory.join("report.json"))?, false, &|| Ok(()))
}

/// Returns whether the existing output was made by this recipe, according to its manifest.
pub(crate) fn is_made_by(recipe: &Recipe) -> Result<bool> {
    let found = InputFile::open(&recipe.output.join(manifest::FILE_NAME));
    let found = found.and_then(|file| Manifest::read(&file));
    let Ok(found) = found else { return Ok(false) };
    Ok(found.recipe == recipe.to_manifest()?)
}

/// Returns whether an error is a stop. Any other error of a journal or output is a reason to repeat a job.
pub(crate) fn is_stop(error: &Error) -> bool {
    matches!(error.kind, briquette_core::ErrorKind::Interrupted(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_recipe::parse;

    fn recipe(directory: &Path, text: &str) -> Recipe {
        let paths =
            "[model]\npath = \"m\"\n[output]\npath = \"o\"\n[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n";
        Recipe::from_raw(parse(&format!("{paths}{text}"), "r.toml").unwrap(), directory).unwrap()
    }

    #[test]
    fn the_hash_covers_the_recipe_without_paths() {
        let evaluate = "[[stage]]\nkind = \"evaluate\"\n[data]\neval = \"d\"\n";
        let texts = [
            String::new(),
            evaluate.to_string(),
            format!("{evaluate}max_length = 7\n"),
            format!("{evaluate}[gate]\nmin = {{ cosine = 0.9 }}\n"),
            format!("{evaluate}[gate]\nmin = {{ cosine = 0.8 }}\n"),
            format!("{evaluate}[memory]\nbatch_size = 3\n"),
        ];
        let of = |directory: &str, text: &String| of_recipe(&recipe(Path::new(directory), text)).unwrap();
        let found: std::collections::BTreeSet<String> = texts.iter().map(|text| of("here", text)).collect();
        assert_eq!(found.len(), texts.len());
        assert!(texts.iter().all(|text| of("here", text) == of("there", text)));
    }
}

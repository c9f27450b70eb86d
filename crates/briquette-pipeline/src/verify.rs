//! Verifies an output directory: every file by its SHA-256, every tensor by the hash of its values.

use crate::frequency;
use briquette_core::{Error, Hash128, Result};
use briquette_formats::{
    Checkpoint, Choice, ManifestHead, ModelDir, OutputFiles, StoredDir, TensorInfo, contained, limits, manifest,
    presence, sums,
};
use briquette_recipe::{Recipe, StageKind, raw::RawRecipe};
use briquette_writer::decode::read_back;
use briquette_writer::{RunOptions, Workers, recompute};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The result of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Verified {
    /// The number of files with the expected SHA-256.
    pub n_files: usize,
    /// The number of tensors with the expected values.
    pub n_tensors: usize,
    /// The size of these files in bytes.
    pub n_bytes: u64,
    /// Whether the values were also recomputed from the original.
    pub against_original: bool,
}

/// Verifies an output directory; with `against`, recomputes every value from the original.
///
/// # Errors
/// Input: a file or tensor differs; the message has the first one. Input and Io: a file cannot be read.
pub fn verify(directory: &Path, against: Option<&Path>, options: &RunOptions) -> Result<Verified> {
    check_ours(directory)?;
    let workers = Workers::new(options)?;
    let (n_files, n_bytes) = check_sums(directory, &workers)?;
    let files = OutputFiles::open(&ModelDir::open(directory)?)?;
    let n_tensors = files.n_tensors();
    read_back(files, &workers, &|_| false)?;
    if let Some(original) = against {
        let checkpoint = Checkpoint::open(directory)?;
        let stored = checkpoint.stored().ok_or_else(|| not_ours(directory))?;
        let manifest = checkpoint.manifest().ok_or_else(|| not_ours(directory))?;
        check_against((stored, manifest), original, &workers)?;
    }
    Ok(Verified { n_files, n_tensors, n_bytes, against_original: against.is_some() })
}

/// Checks that all files of a finished part are intact.
///
/// # Errors
/// - Input: a file differs; the message has the first one.
/// - Io: a file cannot be read.
pub(crate) fn check_files(directory: &Path, options: &RunOptions) -> Result<()> {
    check_sums(directory, &Workers::new(options)?).map(drop)
}

/// Checks that a directory is an output of Briquette.
///
/// # Errors
/// - Input: it is not; the message says what it is.
/// - Io: it does not exist.
pub fn check_ours(directory: &Path) -> Result<()> {
    let problem = match presence::metadata(directory)? {
        None => {
            let message = format!("{}: no such directory; check the path", directory.display());
            return Err(Error { message, ..Error::missing(directory, std::io::ErrorKind::NotFound.into()) });
        }
        Some(metadata) if !metadata.is_dir() => "is not a directory; use one that briquette wrote",
        Some(_) if !presence::exists(&directory.join(manifest::FILE_NAME))? => return Err(not_ours(directory)),
        Some(_) => return Ok(()),
    };
    Err(Error::input(problem).at(directory.display()))
}

fn not_ours(directory: &Path) -> Error {
    Error::input(format!(
        "is not an output of briquette: it has no {}; use a directory that briquette wrote",
        manifest::FILE_NAME
    ))
    .at(directory.display())
}

/// Checks every file of a directory against its hash, and that no file is unlisted.
pub(crate) fn check_sums(directory: &Path, workers: &Workers) -> Result<(usize, u64)> {
    let listed = contained::open(directory, Path::new(sums::FILE_NAME))?;
    let (expected, text) = (sums::read(&listed)?, listed.read_all(limits::MAX_JSON_BYTES)?);
    if sums::to_lines(&expected).as_bytes() != text {
        let message = "was changed after it was written; the output is damaged";
        return Err(Error::input(message).at(listed.path().display()));
    }
    for path in sums::files_below(directory)? {
        let name = path.to_string_lossy().into_owned();
        if !sums::is_uncovered(&name) && !expected.contains_key(&name) {
            let message =
                format!("is not in {}; it was added or renamed after the output was written", sums::FILE_NAME);
            return Err(Error::input(message).at(directory.join(path).display()));
        }
    }
    let files: Vec<(&String, &String)> = expected.iter().collect();
    let sizes = workers.map(
        &files,
        || (),
        |(), (name, sum)| {
            let file = contained::open(directory, Path::new(name))?;
            let found = sums::sha256_of(&file, workers.n_threads() > 1, &|| workers.check_stop())?;
            match found == **sum {
                true => Ok(file.len()),
                false => Err(sums::differs(&found, sum).at(file.path().display())),
            }
        },
    )?;
    Ok((sizes.len(), sizes.iter().sum()))
}

/// Why an output with codes, but without stages, cannot be recomputed.
const EXPORTED: &str =
    "it was exported from a compressed model, whose recipe it does not have; compare with `briquette diff`";

/// Returns why an output of this recipe cannot be recomputed from the original alone, if so.
fn why_not_again(recipe: &RawRecipe) -> Option<&'static str> {
    if recipe.has(StageKind::Distill) {
        return Some(
            "its weights were trained, so they cannot be recomputed from the original; compare with `briquette diff`",
        );
    }
    if recipe.has(StageKind::Factorize) {
        return Some(
            "its linear layers are factorized, so they cannot be compared with tensors of the original; use `briquette eval`",
        );
    }
    if recipe.has(StageKind::Shrink) {
        return Some(
            "its tensors are smaller than those of the original, so they cannot be compared; use `briquette eval`",
        );
    }
    if recipe.has(StageKind::Fold) {
        return Some("its weights are folded, so they differ from those of the original; use `briquette eval`");
    }
    let why = "it was made with input statistics, which it does not contain; compare with `briquette diff`";
    (recipe.needs_statistics() || recipe.has_static_activations()).then_some(why)
}

/// Runs the recipe of a manifest again on the original and compares the values of each tensor.
fn check_against((stored, manifest): (&StoredDir, &ManifestHead), original: &Path, workers: &Workers) -> Result<()> {
    let checkpoint = Checkpoint::open_as(original, &Choice::of_manifest(manifest))?;
    let mut raw: RawRecipe = serde_json::from_value(manifest.recipe.clone()).map_err(|error| {
        Error::input(format!("the manifest's recipe is not valid: {error}; it was written by another version"))
    })?;
    let has_codes = |stored: &StoredDir| stored.tensors.iter().any(|tensor| tensor.coding.codes.is_some());
    let is_exported = raw.stage.is_empty() && has_codes(stored) && !checkpoint.stored().is_some_and(has_codes);
    if let Some(why) = why_not_again(&raw).or(is_exported.then_some(EXPORTED)) {
        return Err(Error::config(why).at("--against"));
    }
    let has_stages = !raw.stage.is_empty();
    raw.model.path = Some(original.to_path_buf());
    raw.output.path = Some(PathBuf::from("-"));
    raw.output.format = Some(manifest.profile.name().to_string());
    // The output exists, even if the format is refused today.
    raw.output.allow_untested = true;
    let recipe = Recipe::from_raw(raw, Path::new(""))?;
    let mut plan = briquette_recipe::plan::plan(&recipe, &checkpoint, workers.stop())?;
    let scaled = frequency::scaled(&recipe, &mut plan, &checkpoint, None, workers)?;
    let outcomes = recompute(&mut plan, &scaled, workers)?;
    let recomputed: BTreeMap<&str, Hash128> =
        plan.tensors.iter().zip(outcomes.hashes).map(|(tensor, hash)| (tensor.info.name.as_str(), hash)).collect();
    for (index, TensorInfo { name, .. }) in stored.infos.iter().enumerate() {
        let recomputed = recomputed.get(name.as_str()).map(|by_rows| stored.hash_of(index, *by_rows));
        if recomputed.is_none() || recomputed != stored.expected_hash(index) {
            let (tensor, path) = (format!("tensor {name:?}"), original.display());
            if !has_stages {
                // An export of a pruned or cast model has no codes.
                let message = format!(
                    "differs from {path}; it was exported from a compressed model, or {path} is another original"
                );
                return Err(Error::input(format!("{message}; compare with `briquette diff`")).at(tensor));
            }
            let message = format!(
                "differs from what its recipe gives for {path}; this is another original, or the output is damaged"
            );
            return Err(Error::input(message).at(tensor));
        }
    }
    if recomputed.len() != stored.infos.len() {
        let message =
            format!("found {} tensors, the output has {}; it is another model", recomputed.len(), stored.infos.len());
        return Err(Error::input(message).at(original.display()));
    }
    Ok(())
}

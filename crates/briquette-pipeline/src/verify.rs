//! Proof that a directory holds what it says: every file by its SHA-256, every tensor by the hash of its values.

use crate::context::{RunOptions, Workers};
use crate::encode::{self, Nowhere};
use crate::layout::Layout;
use crate::plan::Plan;
use crate::recipe::{Recipe, raw::RawRecipe};
use crate::survey;
use briquette_core::{BlockHasher, Error, Hash128, Result, TensorHasher};
use briquette_formats::stored::DecodeBuffers;
use briquette_formats::{Checkpoint, Choice, Manifest, StoredDir, contained, limits, manifest, sums};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Blocks that one thread reads and decodes at a time: as stored, few enough for its own cache.
const BLOCKS_PER_TASK: usize = 8;

/// What a tensor was found to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Hash of its values.
    pub hash: Hash128,
    /// How many of them are zero; only counted of weights.
    pub n_zeros: usize,
}

/// What verification went over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Verified {
    /// Files whose SHA-256 agreed.
    pub n_files: usize,
    /// Tensors whose values agreed.
    pub n_tensors: usize,
    /// Bytes of these files.
    pub n_bytes: u64,
    /// Whether the values were also recomputed from the original.
    pub against_original: bool,
}

/// Verifies an output directory, and where `against` is given recomputes every value from the original.
///
/// # Errors
/// Input for the first difference; those of reading.
pub fn verify(directory: &Path, against: Option<&Path>, options: &RunOptions) -> Result<Verified> {
    check_ours(directory)?;
    let workers = Workers::new(options)?;
    let (n_files, n_bytes) = check_sums(directory, &workers)?;
    let checkpoint = Checkpoint::open(directory)?;
    let stored = checkpoint.stored().ok_or_else(|| not_ours(directory))?;
    let manifest = checkpoint.manifest().ok_or_else(|| not_ours(directory))?;
    compare(&decode_all(stored, &workers)?, stored, manifest)?;
    if let Some(original) = against {
        check_against(manifest, original, &workers)?;
    }
    Ok(Verified { n_files, n_tensors: manifest.tensors.len(), n_bytes, against_original: against.is_some() })
}

/// Refuses a finished part of a run with a file that is not as it was written.
///
/// # Errors
/// Input for the first; those of reading.
pub(crate) fn check_files(directory: &Path, options: &RunOptions) -> Result<()> {
    check_sums(directory, &Workers::new(options)?).map(drop)
}

/// Refuses what is no output of ours.
///
/// # Errors
/// Input, with what it is instead.
pub fn check_ours(directory: &Path) -> Result<()> {
    let problem = match std::fs::metadata(directory) {
        Err(_) => "no such directory; check the path",
        Ok(metadata) if !metadata.is_dir() => "is no directory; name one that briquette wrote",
        Ok(_) if !directory.join(manifest::FILE_NAME).exists() => return Err(not_ours(directory)),
        Ok(_) => return Ok(()),
    };
    Err(Error::input(problem).at(directory.display()))
}

fn not_ours(directory: &Path) -> Error {
    Error::input(format!("is no output of briquette, which would have a {}; name one that is", manifest::FILE_NAME))
        .at(directory.display())
}

/// Decodes every tensor and hashes what it stands for, a few blocks to a thread.
///
/// # Errors
/// Those of reading, and Input where parts contradict each other.
pub fn decode_all(stored: &StoredDir, workers: &Workers) -> Result<Vec<Found>> {
    let mut tasks: Vec<(usize, Range<usize>)> = Vec::new();
    for (index, tensor) in stored.tensors.iter().enumerate() {
        let (rows, step) = (tensor.rows(), tensor.rows().rows_per_block() * BLOCKS_PER_TASK);
        let n_rows = if rows.n_cols == 0 { 0 } else { rows.n_rows };
        tasks.extend((0..n_rows).step_by(step).map(|start| (index, start..(start + step).min(n_rows))));
    }
    let row_bytes = |index: usize| stored.tensors[index].rows().n_cols * stored.tensors[index].value_width();
    let n_bytes = |(index, rows): &(usize, Range<usize>)| rows.len() * row_bytes(*index);
    workers.begin("verify", tasks.iter().map(n_bytes).sum());
    let decoded = workers.map(&tasks, <(DecodeBuffers, BlockHasher)>::default, |(scratch, hasher), task| {
        let (index, rows) = task;
        let tensor = &stored.tensors[*index];
        // Other types come as bytes, whose zeros are no zeros of the tensor.
        let (is_counted, width) = (tensor.info.dtype.is_weight(), tensor.value_width());
        let (mut digests, mut n_zeros) = (Vec::with_capacity(BLOCKS_PER_TASK), 0);
        stored.for_each_strip(*index, rows.clone(), scratch, |values, ends_block| {
            hasher.push(values);
            if is_counted {
                n_zeros += count_zeros(values, width);
            }
            if ends_block {
                digests.push((hasher.take(), std::mem::take(&mut n_zeros)));
            }
        })?;
        workers.advance(n_bytes(task));
        Ok(digests)
    })?;
    let mut found: Vec<(TensorHasher, usize)> = stored.tensors.iter().map(|_| Default::default()).collect();
    for ((index, _), digests) in tasks.iter().zip(decoded) {
        for (digest, n_zeros) in digests {
            found[*index].0.push(digest);
            found[*index].1 += n_zeros;
        }
    }
    Ok(found.into_iter().map(|(hasher, n_zeros)| Found { hash: hasher.finish(), n_zeros }).collect())
}

/// Elements whose bytes are all zero.
fn count_zeros(values: &[u8], width: usize) -> usize {
    match width {
        4 if values.as_ptr().addr().is_multiple_of(4) => {
            briquette_core::simd::count_below(bytemuck::cast_slice(values), 1).0
        }
        2 => values.as_chunks::<2>().0.iter().filter(|&&value| value == [0, 0]).count(),
        _ => values.chunks_exact(width).filter(|value| value.iter().all(|&byte| byte == 0)).count(),
    }
}

/// Refuses the first tensor whose values are not those of the manifest.
///
/// # Errors
/// Input, naming the tensor.
pub fn compare(found: &[Found], stored: &StoredDir, manifest: &Manifest) -> Result<()> {
    for (found, info) in found.iter().zip(&stored.infos) {
        let expected = manifest.tensors.get(&info.name).map(|entry| entry.hash);
        if expected != Some(found.hash) {
            let expected = expected.map_or("none".to_string(), |hash| hash.to_string());
            let message =
                format!("its values hash to {}, expected {expected}; the output is damaged, make it again", found.hash);
            return Err(Error::input(message).at(format_args!("tensor {:?}", info.name)));
        }
    }
    Ok(())
}

/// Holds every file of a directory against its sum, and the sums against the directory.
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

/// Does the recipe of a manifest again on the original and compares the values of each tensor.
fn check_against(manifest: &Manifest, original: &Path, workers: &Workers) -> Result<()> {
    let checkpoint = Checkpoint::open_as(original, &Choice::of_manifest(manifest))?;
    let mut raw: RawRecipe = serde_json::from_value(manifest.recipe.clone()).map_err(|error| {
        Error::input(format!("the manifest's recipe is not valid: {error}; it is of another version"))
    })?;
    let has = |kind: &str| raw.stage.iter().any(|stage| stage.kind == kind);
    let why = match (has("distill"), has("factorize")) {
        (true, _) => "its weights were trained, so they do not follow from the original; compare with `briquette diff`",
        (_, true) => {
            "its linear layers are factors, which no tensor of the original can be held against; use `briquette eval`"
        }
        (false, false) => "",
    };
    if !why.is_empty() {
        return Err(Error::config(why).at("--against"));
    }
    raw.model.path = Some(original.to_path_buf());
    raw.output.path = Some(PathBuf::from("-"));
    raw.output.format = Some(manifest.profile.name().to_string());
    // It was written, whatever is refused today.
    raw.output.allow_untested = true;
    let recipe = Recipe::from_raw(raw, Path::new(""))?;
    let mut plan = Plan::new(&recipe, &checkpoint, workers.stop())?;
    let surveys = survey::survey(&mut plan, &checkpoint, workers, recipe.allow_nonfinite)?;
    let n_kept: Vec<usize> = surveys.iter().map(|survey| survey.n_kept).collect();
    let layout = Layout::new(&plan, &n_kept)?;
    let outcomes = encode::encode(&plan, &surveys, &layout.tensors, &checkpoint, &Nowhere, workers)?;
    let recomputed: BTreeMap<&str, Hash128> =
        plan.tensors.iter().zip(&outcomes).map(|(tensor, outcome)| (tensor.info.name.as_str(), outcome.hash)).collect();
    for (name, entry) in &manifest.tensors {
        if recomputed.get(name.as_str()) != Some(&entry.hash) {
            let message = format!(
                "is not what its recipe makes of {}; another original, or a damaged output",
                original.display()
            );
            return Err(Error::input(message).at(format_args!("tensor {name:?}")));
        }
    }
    if recomputed.len() != manifest.tensors.len() {
        let message = format!(
            "found {} tensors, the output has {}; it is another model",
            recomputed.len(),
            manifest.tensors.len()
        );
        return Err(Error::input(message).at(original.display()));
    }
    Ok(())
}

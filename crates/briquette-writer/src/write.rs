//! Writes a whole model: survey, layout, encoding, verification and checksums.

use crate::context::Workers;
use crate::decode::{DecodedTensor, compare, decode_all};
use crate::encode::{Nowhere, Outcome, encode};
use crate::entropy::Scratch;
use crate::layout::{FileLayout, FileLayouts};
use crate::manifest::ManifestSource;
use crate::plan::Plan;
use crate::survey::{Survey, survey};
use crate::weight_files::WeightFiles;
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, Draft, DraftFile, InputFile, TensorSource, index, manifest, sums};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A model to write.
pub struct WriteJob<'a, 'b> {
    /// The plan. If NaN and infinity are allowed, the survey may leave some tensors unchanged.
    pub plan: &'a mut Plan<'b>,
    /// The source of the tensors.
    pub source: &'a dyn TensorSource,
    /// The directory of the output.
    pub draft: &'a Draft,
    /// The recipe, for the manifest.
    pub recipe: serde_json::Value,
    /// The name of the program, for the manifest.
    pub producer: &'a str,
    /// The worker threads.
    pub workers: &'a Workers,
    /// Writes the small files beside the weights, such as a config with the quantization.
    pub small_files: &'a dyn Fn(&Plan, &ManifestSource) -> Result<()>,
    /// Called with the name of each finished phase.
    pub is_over: &'a mut dyn FnMut(&str),
}

/// The result of writing a model and reading it back.
#[derive(Debug)]
pub struct Written {
    /// The location of every tensor in the files.
    pub layout: FileLayouts,
    /// The outcome of encoding, for each tensor of the plan.
    pub outcomes: Vec<Outcome>,
    /// The hash and the zeros of each decoded tensor of the draft.
    pub decoded: Vec<DecodedTensor>,
    /// The draft, opened as a checkpoint.
    pub checkpoint: Checkpoint,
}

/// Writes a model into a draft, reads it back, and compares it with its hashes.
///
/// The steps are: survey, layout, encoding, manifest and small files, verification, and checksums. Then the
/// draft can be published.
///
/// # Errors
/// - Config: the format does not support a tensor.
/// - Refused: a tensor has NaN or infinity.
/// - Interrupted: a stop was requested.
/// - Input: a tensor that was read back has another hash.
/// - Errors of reading and writing.
pub fn write(work: WriteJob) -> Result<Written> {
    let WriteJob { plan, source, draft, recipe, producer, workers, small_files, is_over } = work;
    let surveys = survey(plan, source, workers)?;
    is_over("survey");
    let Encoding { mut layout, files, outcomes } = loop {
        if let Some(done) = encode_files(plan, &surveys, source, draft, workers)? {
            break done;
        }
    };
    drop(surveys);
    is_over("encode");

    let manifest = ManifestSource::new(plan, &layout, &outcomes, recipe, producer);
    draft.write_with(Path::new(manifest::FILE_NAME), |out| manifest.write(out))?;
    small_files(plan, &manifest)?;
    drop(manifest);
    write_index(draft, plan, &mut layout)?;
    let checkpoint = Checkpoint::open(draft.path())?;
    let decoded = sync_and_verify(draft, &files, &checkpoint, workers)?;
    drop(files);
    is_over("verify");
    Ok(Written { layout, outcomes, decoded, checkpoint })
}

/// Encodes every tensor of a plan without writing. The plan gets wider types where [`write()`] would choose
/// them.
///
/// # Errors
/// See [`encode`].
pub fn recompute(plan: &mut Plan, source: &dyn TensorSource, workers: &Workers) -> Result<Vec<Outcome>> {
    let surveys = survey(plan, source, workers)?;
    let n_kept: Vec<usize> = surveys.iter().map(|survey| survey.n_kept).collect();
    loop {
        let layout = FileLayouts::new(plan, &n_kept)?;
        let outcomes = encode(plan, &surveys, &layout.tensors, source, &Nowhere, workers)?;
        if !plan.widen(outcomes.iter().map(|outcome| &outcome.narrowness))? {
            return Ok(outcomes);
        }
    }
}

/// The encoded weight files.
struct Encoding {
    layout: FileLayouts,
    files: Vec<DraftFile>,
    outcomes: Vec<Outcome>,
}

/// Encodes all tensors into the weight files; `None` if some need wider types, which the plan has from then on.
fn encode_files(
    plan: &mut Plan,
    surveys: &[Survey],
    source: &dyn TensorSource,
    draft: &Draft,
    workers: &Workers,
) -> Result<Option<Encoding>> {
    let n_kept: Vec<usize> = surveys.iter().map(|survey| survey.n_kept).collect();
    let mut layout = FileLayouts::new(plan, &n_kept)?;
    let (mut coded, had_blocks) = (None, plan.has_blocks());
    if had_blocks {
        let scratch = Scratch::create(draft, plan, &layout.tensors)?;
        let outcomes = encode(plan, surveys, &layout.tensors, source, &scratch, workers)?;
        if plan.widen(outcomes.iter().map(|outcome| &outcome.narrowness))? {
            return Ok(None);
        }
        // Codes that are nearly all equal are encoded again, without blocks.
        coded = plan.learn_blocks(&outcomes).then_some((scratch, outcomes));
        layout = FileLayouts::new(plan, &n_kept)?;
    }
    let known = layout.take_known();
    let files = WeightFiles::create(draft, &layout, known)?;
    if let Some((scratch, outcomes)) = coded {
        scratch.copy_to(&files, &layout, &outcomes, workers)?;
        return Ok(Some(Encoding { files: files.into_files(), layout, outcomes }));
    }
    let outcomes = encode(plan, surveys, &layout.tensors, source, &files, workers)?;
    let files = files.into_files();
    if !had_blocks && plan.widen(outcomes.iter().map(|outcome| &outcome.narrowness))? {
        files.into_iter().try_for_each(DraftFile::remove)?;
        return Ok(None);
    }
    Ok(Some(Encoding { layout, files, outcomes }))
}

/// Writes the index of shards, if the format has one for other programs.
fn write_index(draft: &Draft, plan: &Plan, layout: &mut FileLayouts) -> Result<()> {
    if !plan.profile.has_index() || layout.files.len() < 2 {
        return Ok(());
    }
    let total = layout.files.iter().map(|file| file.n_bytes - file.n_header).sum();
    // The names are only used in the index.
    let with_file = |file: &mut FileLayout| {
        let of_file = file.name.clone();
        std::mem::take(&mut file.names).into_iter().map(move |name| (name, of_file.clone()))
    };
    let entries = layout.files.iter_mut().flat_map(with_file);
    draft.write_file(Path::new("model.safetensors.index.json"), &index::to_json(&entries.collect(), total))
}

/// Syncs the files and, at the same time, verifies what was written. Then writes the checksums.
fn sync_and_verify(
    draft: &Draft,
    files: &[DraftFile],
    written: &Checkpoint,
    workers: &Workers,
) -> Result<Vec<DecodedTensor>> {
    let stored = written.stored().ok_or_else(|| Error::bug("the draft is not a directory of Briquette"))?;
    let mut paths = sums::files_below(draft.path())?;
    paths.retain(|path| path != Path::new(briquette_formats::draft::MARK));
    let (synced, verified) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| files.iter().try_for_each(DraftFile::sync));
        let decode = || {
            let found = decode_all(stored, workers)?;
            compare(&found, stored).map(|()| found)
        };
        // The checksum of a file is computed on one thread, so the checksums take longest.
        let (summed, verified) = workers.join(|| sums_of(draft.path(), &paths, workers), decode);
        let synced = syncing.join().unwrap_or_else(|_| Err(Error::bug("syncing panicked")));
        (synced.and(summed), verified)
    });
    let found = verified?;
    draft.write_file(Path::new(sums::FILE_NAME), sums::to_lines(&synced?).as_bytes())?;
    Ok(found)
}

fn sums_of(root: &Path, paths: &[PathBuf], workers: &Workers) -> Result<BTreeMap<String, String>> {
    let sum = |(): &mut (), path: &PathBuf| {
        let (name, file) = (path.to_string_lossy().into_owned(), InputFile::open(&root.join(path))?);
        Ok((name, sums::sha256_of(&file, workers.n_threads() > 1, &|| workers.check_stop())?))
    };
    Ok(workers.map(paths, || (), sum)?.into_iter().collect())
}

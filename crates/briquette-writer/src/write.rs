//! Writes a whole model: survey, layout, encoding, verification and checksums.

use crate::context::Workers;
use crate::decode::{ReadBack, read_back};
use crate::encode::{Nowhere, Outcomes, OutputError, encode};
use crate::entropy::Scratch;
use crate::layout::{FileLayout, FileLayouts, TensorParts};
use crate::manifest::ManifestSource;
use crate::plan::Plan;
use crate::survey::{Survey, survey};
use crate::weight_files::WeightFiles;
use briquette_core::{Error, ErrorStats, Result};
use briquette_formats::{
    Draft, DraftFile, InputFile, ModelDir, OutputFiles, StoredDir, TensorInfo, TensorSource, index, manifest, sums,
};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Returns the indices of the tensors to return for reading. Millions would take too much memory.
    pub kept: &'a dyn Fn(&Plan, &[ErrorStats]) -> Vec<usize>,
    /// Called with the name of each finished phase.
    pub is_over: &'a mut dyn FnMut(&str),
}

/// The result of writing a model and reading it back.
#[derive(Debug)]
pub struct Written {
    /// The location of every tensor in the files.
    pub layout: FileLayouts,
    /// The error of the dequantized values, for each tensor of the plan.
    pub stats: Vec<ErrorStats>,
    /// The errors of the layers' outputs whose inputs are known, by tensor index.
    pub outputs: BTreeMap<usize, OutputError>,
    /// The zeros that were read back, for each tensor of the plan; counted for weights only.
    pub n_zeros: Vec<u64>,
    /// The tensors of [`WriteJob::kept`] in the files, for reading.
    pub kept: StoredDir,
    /// Whether tensors got wider types than planned, so that the files are larger than predicted.
    pub is_wider: bool,
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
    let WriteJob { plan, source, draft, recipe, producer, workers, small_files, kept, is_over } = work;
    let surveys = survey(plan, source, workers)?;
    is_over("survey");
    let mut is_wider = false;
    let Encoding { mut layout, files, outcomes } = loop {
        if let Some(done) = encode_files(plan, &surveys, source, draft, workers)? {
            break done;
        }
        is_wider = true;
    };
    drop(surveys);
    is_over("encode");

    let Outcomes { hashes, stats, outputs, .. } = outcomes;
    let manifest = ManifestSource::new(plan, &layout, &hashes, recipe, producer);
    draft.write_with(Path::new(manifest::FILE_NAME), |out| manifest.write(out))?;
    small_files(plan, &manifest)?;
    let order = manifest.into_order();
    drop(hashes);
    write_index(draft, plan, &mut layout)?;
    let kept: BTreeSet<&str> = kept(plan, &stats).iter().map(|&index| plan.tensors[index].info.name.as_str()).collect();
    let is_kept = |info: &TensorInfo| kept.contains(info.name.as_str());
    let ReadBack { n_zeros: by_name, kept } = sync_and_verify(draft, &files, workers, &is_kept)?;
    drop(files);
    let mut n_zeros = vec![0; plan.tensors.len()];
    order.iter().zip(by_name).for_each(|(index, n)| n_zeros[*index as usize] = n);
    is_over("verify");
    Ok(Written { layout, stats, outputs, n_zeros, kept, is_wider })
}

/// Encodes every tensor of a plan without writing. The plan gets wider types where [`write()`] would choose
/// them.
///
/// # Errors
/// See [`encode`].
pub fn recompute(plan: &mut Plan, source: &dyn TensorSource, workers: &Workers) -> Result<Outcomes> {
    // Nothing is written, so nothing can be read back.
    plan.piece_sizes.cuts_turned = false;
    let surveys = survey(plan, source, workers)?;
    let n_kept: Vec<usize> = surveys.iter().map(|survey| survey.n_kept).collect();
    loop {
        let layout = FileLayouts::new(plan, &n_kept)?;
        let outcomes = encode(plan, &surveys, &layout.tensors, source, &Nowhere, workers)?;
        if !plan.widen(&outcomes.narrow)? {
            return Ok(outcomes);
        }
    }
}

/// The encoded weight files.
struct Encoding {
    layout: FileLayouts,
    files: Vec<DraftFile>,
    outcomes: Outcomes,
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
        if plan.widen(&outcomes.narrow)? {
            return Ok(None);
        }
        // Codes that are nearly all equal are encoded again, without blocks.
        coded = plan.learn_blocks(&outcomes).then_some((scratch, outcomes));
        layout = FileLayouts::new(plan, &n_kept)?;
    }
    let parts: TensorParts = &|tensor, coding, n_kept| tensor.file_parts(plan.profile, coding, n_kept);
    let headers = layout.take_headers(plan, parts)?;
    let files = WeightFiles::create(draft, &layout, &headers)?;
    drop(headers);
    if let Some((scratch, outcomes)) = coded {
        scratch.copy_to(&files, &layout, &outcomes, workers)?;
        let files = files.into_files();
        layout.tensors.forget_starts();
        return Ok(Some(Encoding { layout, files, outcomes }));
    }
    let outcomes = encode(plan, surveys, &layout.tensors, source, &files, workers)?;
    let files = files.into_files();
    layout.tensors.forget_starts();
    if !had_blocks && plan.widen(&outcomes.narrow)? {
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
    workers: &Workers,
    is_kept: &(dyn Fn(&TensorInfo) -> bool + Sync),
) -> Result<ReadBack> {
    let written = OutputFiles::open(&ModelDir::open(draft.path())?)?;
    let mut paths = sums::files_below(draft.path())?;
    paths.retain(|path| path != Path::new(briquette_formats::draft::MARK));
    let (synced, verified) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| files.iter().try_for_each(DraftFile::sync));
        // The checksum of a file is computed on one thread, so the checksums take longest.
        let read = || read_back(written, workers, is_kept);
        let (summed, verified) = workers.join(|| sums_of(draft.path(), &paths, workers), read);
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

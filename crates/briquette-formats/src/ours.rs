//! Directories written by Briquette.

mod in_step;

use crate::activations::STATIC;
use crate::digests::Digests;
use crate::io::tensor::SharedShapes;
use crate::io::tensor_name::{SHARED_NAMES, TensorName};
use crate::manifest_file::ManifestFile;
use crate::output_format::CodeSupport;
use crate::plain::PlainFiles;
use crate::quantization_config::{ASYMMETRIC, SYMMETRIC};
use crate::sniff::FileKind;
use crate::stored::{DirNumber, FoundPart, StoredDir, StoredTensor};
use crate::{
    ActivationRounding, Choice, InputFile, ManifestEntry, ManifestHead, ModelDir, OutputFormat, TensorInfo, contained,
    manifest, onnx, sniff, sums,
};
use briquette_core::coding::may_be_entropy_coded;
use briquette_core::{Coding, Error, Hash128, OutputAxis, Result, Shape, Storage};
use in_step::PartsInStep;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens a directory written by Briquette: the weight files and all parts in its manifest.
///
/// # Errors
/// - Input: the manifest is damaged, or a part is missing.
/// - Io: a file cannot be read.
pub(crate) fn open(directory: &ModelDir) -> Result<StoredDir> {
    OutputFiles::open(directory)?.into_dir()
}

/// Tensors in a batch. A model with fewer tensors is read as a whole.
const BATCH: usize = 1 << 13;

/// The manifest and the weight files of a directory that Briquette wrote.
pub struct OutputFiles {
    directory: PathBuf,
    manifest: ManifestFile,
    files: Arc<Vec<InputFile>>,
    kinds: Vec<FileKind>,
}

/// A tensor, the hash of its values, and the axis of its layout if the hash includes the layout.
struct LocatedTensor {
    tensor: StoredTensor,
    hash: Hash128,
    layout: Option<OutputAxis>,
}

/// Located tensors that follow each other in the manifest.
#[derive(Default)]
struct LocatedTensors {
    tensors: Vec<StoredTensor>,
    hashes: Vec<Hash128>,
    /// Layouts of the tensors whose hash includes the layout.
    layouts: BTreeMap<usize, (Shape, OutputAxis)>,
}

impl OutputFiles {
    /// Opens the files, and reads the manifest once.
    ///
    /// # Errors
    /// - Input: the manifest is damaged.
    /// - Io: a file cannot be read.
    pub fn open(directory: &ModelDir) -> Result<Self> {
        let name = Path::new(manifest::FILE_NAME);
        let file = directory.file(name)?;
        check_sum(directory, name, &file)?;
        let manifest = ManifestFile::open(file)?;
        let directory = directory.path().to_path_buf();
        let (mut files, mut kinds) = (Vec::new(), Vec::new());
        // The reader of an ONNX model opens its other files, which may have all tensors.
        let model = BTreeSet::from([onnx::FILE_NAME.to_string()]);
        let read = if manifest.head.profile.is_in_place() { &model } else { &manifest.totals.files };
        for name in read {
            if !crate::io::paths::stays_inside(name) {
                let message = format!("the manifest lists {name:?}, expected a file beside it");
                return Err(Error::input(message).at(directory.display()));
            }
            let file = contained::open(&directory, Path::new(name))?;
            kinds.push(sniff::kind_of(&file)?);
            files.push(file);
        }
        Ok(Self { directory, manifest, files: Arc::new(files), kinds })
    }

    /// Returns the number of tensors.
    pub fn n_tensors(&self) -> usize {
        self.manifest.totals.n_tensors
    }

    /// Returns the bytes of all decoded values, as [`StoredDir::decode_rows`] returns them.
    pub fn n_value_bytes(&self) -> u64 {
        self.manifest.totals.n_value_bytes
    }

    /// Locates all tensors.
    ///
    /// # Errors
    /// - Input: a file is damaged, or a part is missing.
    /// - Io: a file cannot be read.
    pub(crate) fn into_dir(self) -> Result<StoredDir> {
        if self.n_tensors() > BATCH {
            let mut whole = LocatedTensors::default();
            let is_sorted = self.in_step(&mut |located| {
                whole.push(located);
                Ok(())
            })?;
            if is_sorted {
                return Ok(whole.in_files(&self.files, Some(self.manifest.head)));
            }
        }
        self.by_name()
    }

    /// Calls `each` with all tensors, sorted by name, in batches, with the index of the first tensor.
    /// Returns the files.
    ///
    /// If the files turn out to be damaged or not sorted, `each` is called once more: with all tensors, and 0.
    ///
    /// # Errors
    /// - Errors of `each`.
    /// - Input: a file is damaged, or a part is missing.
    /// - Io: a file cannot be read.
    pub fn for_each_batch(self, each: &mut dyn FnMut(usize, &StoredDir) -> Result<()>) -> Result<Arc<Vec<InputFile>>> {
        if self.n_tensors() > BATCH {
            let (mut first, mut batch) = (0, LocatedTensors::default());
            let is_sorted = self.in_step(&mut |located| {
                batch.push(located);
                if batch.tensors.len() == BATCH {
                    each(first, &std::mem::take(&mut batch).in_files(&self.files, None))?;
                    first += BATCH;
                }
                Ok(())
            })?;
            if is_sorted {
                each(first, &batch.in_files(&self.files, None))?;
                return Ok(self.files);
            }
        }
        let whole = self.by_name()?;
        each(0, &whole)?;
        Ok(whole.files)
    }

    /// Calls `each` with every tensor, and reads the headers of files in step with the manifest.
    ///
    /// Returns false if the files are damaged or not sorted by name.
    fn in_step(&self, each: &mut dyn FnMut(LocatedTensor) -> Result<()>) -> Result<bool> {
        let (n_codes, n_bytes) = self.manifest.totals.coded;
        let is_safetensors = self.kinds.iter().all(|kind| *kind == FileKind::Safetensors);
        if !is_safetensors || !may_be_entropy_coded(n_codes, n_bytes) {
            return Ok(false);
        }
        let Some(mut parts) = PartsInStep::open(&self.files) else { return Ok(false) };
        let (head, mains) = (&self.manifest.head, &self.manifest.totals.mains);
        let (mut is_damaged, mut shapes) = (false, SharedShapes::default());
        let read = self.manifest.for_each(&mut |name, entry| {
            let is_shared = entry.tied_to.is_some() || mains.contains(&name);
            let found = located(head, name, entry, &mut shapes, &mut |name| parts.take(name, is_shared));
            each(found.inspect_err(|_| is_damaged = true)?)
        });
        match read {
            _ if is_damaged => Ok(false),
            Ok(()) => Ok(parts.finish().is_some()),
            Err(error) => Err(error),
        }
    }

    /// Locates all tensors in files that need not be sorted. Finds the exact error of damaged files.
    fn by_name(self) -> Result<StoredDir> {
        let files = Arc::into_inner(self.files).ok_or_else(|| Error::bug("a batch was kept"))?;
        let mut plain = PlainFiles::default();
        for (file, kind) in files.into_iter().zip(self.kinds) {
            plain.push(file, kind, &Choice::default())?;
        }
        plain.check_unique()?;
        let (found, head) = (plain.by_name(), &self.manifest.head);
        let (mut whole, mut shapes) = (LocatedTensors::default(), SharedShapes::default());
        self.manifest.for_each(&mut |name, entry| {
            whole.push(located(head, name, entry, &mut shapes, &mut |name| found.part(name))?);
            Ok(())
        })?;
        drop(found);
        check_density(&whole.tensors).map_err(|error| error.at(self.directory.display()))?;
        Ok(whole.in_files(&Arc::new(plain.into_files()), Some(self.manifest.head)))
    }
}

impl LocatedTensors {
    fn push(&mut self, located: LocatedTensor) {
        let LocatedTensor { tensor, hash, layout } = located;
        if let Some(axis) = layout {
            self.layouts.insert(self.hashes.len(), (Shape::clone(&tensor.info.shape), axis));
        }
        self.hashes.push(hash);
        self.tensors.push(tensor);
        if self.tensors.len().is_multiple_of(SHARED_NAMES) {
            let first = self.tensors.len() - SHARED_NAMES;
            TensorName::share(self.tensors[first..].iter_mut().map(|tensor| &mut tensor.info.name));
        }
    }

    fn in_files(self, files: &Arc<Vec<InputFile>>, manifest: Option<ManifestHead>) -> StoredDir {
        let infos = self.tensors.iter().map(|tensor| tensor.info.clone()).collect();
        let digests = Some(Digests::new(self.hashes, self.layouts));
        let (files, number, input_grids) = (files.clone(), DirNumber::default(), BTreeMap::new());
        StoredDir { files, tensors: self.tensors, infos, manifest, input_grids, digests, number }
    }
}

/// Compares the SHA-256 of a file with `SHA256SUMS`.
fn check_sum(directory: &ModelDir, name: &Path, file: &InputFile) -> Result<()> {
    let mut failed = None;
    let found = || sums::sha256_of(file, true, &|| Ok(())).unwrap_or_else(|error| failed.insert(error).message.clone());
    let checked = directory.check(name, found);
    failed.map_or(checked, Err)
}

/// Refuses entropy-coded blocks that decode to far more codes than their bytes suggest.
fn check_density(tensors: &[StoredTensor]) -> Result<()> {
    let (mut n_codes, mut sum) = (0_u64, 0_u64);
    for tensor in tensors {
        if let Storage::Entropy { n_bytes, .. } = tensor.coding.storage {
            n_codes = n_codes.saturating_add(tensor.info.n_elements() as u64);
            sum = sum.saturating_add(n_bytes as u64);
        }
    }
    if may_be_entropy_coded(n_codes, sum) {
        return Ok(());
    }
    Err(Error::input(format!(
        "found {n_codes} codes in {sum} bytes of entropy-coded blocks, expected at most 128 per byte; the file is damaged"
    )))
}

/// Returns a tensor of the manifest, with the locations of its parts.
fn located(
    head: &ManifestHead,
    name: String,
    entry: ManifestEntry,
    shapes: &mut SharedShapes,
    find: &mut dyn FnMut(&str) -> Option<FoundPart>,
) -> Result<LocatedTensor> {
    let hash = entry.hash;
    let layout = (head.hash_of(&entry, hash) != hash).then_some(entry.output_axis);
    let tensor = stored_tensor(name, entry, head.profile, shapes, find)?;
    Ok(LocatedTensor { tensor, hash, layout })
}

fn stored_tensor(
    name: String,
    entry: ManifestEntry,
    profile: OutputFormat,
    shapes: &mut SharedShapes,
    find: &mut dyn FnMut(&str) -> Option<FoundPart>,
) -> Result<StoredTensor> {
    let activations = activations_of(&entry, profile);
    let info = TensorInfo::with_shape(name.into(), entry.dtype, shapes.of(entry.shape))?;
    let bad = |what: &str| {
        Error::input(format!("{what}; the manifest is damaged")).at(format_args!("tensor {:?}", info.name))
    };
    let rows = briquette_core::Rows::of(&info.shape, entry.output_axis);
    let axis = rows.axis;
    if entry.coding != Coding::DENSE && !info.dtype.is_weight() {
        return Err(bad("a tensor that is not a weight cannot have codes"));
    }
    if let Some(codes) = entry.coding.codes {
        codes.grid().ok_or_else(|| bad("no grid has this many bits"))?;
        codes.grouping.per_row(rows.n_cols).ok_or_else(|| bad("the group size does not divide the row"))?;
    }
    if let Storage::Entropy { n_bytes, has_trellis } = entry.coding.storage {
        let most = entry.coding.codes.and_then(|codes| Coding::entropy(codes, has_trellis, rows.n_rows, rows.n_cols));
        let most =
            most.map(|coding| coding.storage).ok_or_else(|| bad("codes of this shape cannot be entropy-coded"))?;
        match most {
            Storage::Entropy { n_bytes: most, .. } if n_bytes > most => {
                return Err(bad("its entropy-coded blocks are larger than the codes without coding"));
            }
            Storage::Entropy { has_trellis: false, .. } if has_trellis => {
                return Err(bad("a trellis needs codes of 8 bits and rows of a multiple of 32 weights"));
            }
            _ => {}
        }
    }
    let n_kept = entry.n_kept.unwrap_or(info.n_elements());
    if n_kept > info.n_elements() {
        return Err(bad("found more kept elements than elements"));
    }
    let tied = entry.tied_to.map(|name| TensorInfo { name: name.into(), ..info.clone() });
    let stored_as = tied.as_ref().unwrap_or(&info);
    let promised = profile.file_parts(stored_as, axis, entry.coding, n_kept, entry.activations.as_deref());
    let promised = promised.map_err(|error| bad(&error.message))?;
    let mut tensor = StoredTensor { info, axis, coding: entry.coding, n_kept, activations, parts: Vec::new() };
    tensor.locate(promised, find)?;
    Ok(tensor)
}

/// Returns the rounding of activations in a manifest entry; `None` if activations stay floats.
fn activations_of(entry: &ManifestEntry, profile: OutputFormat) -> Option<ActivationRounding> {
    Some(match entry.activations.as_deref()? {
        SYMMETRIC => profile.held_codes().map_or(ActivationRounding::Symmetric, CodeSupport::symmetric),
        ASYMMETRIC => ActivationRounding::Asymmetric,
        STATIC => ActivationRounding::Fixed,
        _ => ActivationRounding::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::{DType, OutputAxis};

    fn coded(n_rows: usize, n_bytes: usize) -> StoredTensor {
        let info = TensorInfo::checked("w".into(), DType::F32, vec![n_rows, 4096]).unwrap();
        let coding = Coding { storage: Storage::Entropy { n_bytes, has_trellis: false }, ..Coding::DENSE };
        let n_kept = info.n_elements();
        StoredTensor { info, axis: OutputAxis::First, coding, n_kept, activations: None, parts: Vec::new() }
    }

    #[test]
    fn blocks_with_too_many_codes_per_byte_are_refused() {
        check_density(&[coded(1 << 14, 0), coded(1 << 14, 1 << 20)]).unwrap();
        check_density(&[coded(1 << 18, 8 << 20)]).unwrap();
        // Four gigabytes of floats in 1.6 MB.
        let error = check_density(&[coded(1 << 18, 800_000), coded(1 << 10, 800_000)]).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains("1600000 bytes"), "{error}");
    }
}

//! Directories written by Briquette.

use crate::digests::Digests;
use crate::manifest_file::ManifestFile;
use crate::output_format::CodeSupport;
use crate::plain::{PlainFiles, TensorsByName};
use crate::quantization_config::{ASYMMETRIC, SYMMETRIC};
use crate::stored::{DirNumber, StoredDir, StoredTensor};
use crate::{
    ActivationRounding, Choice, InputFile, ManifestEntry, ModelDir, OutputFormat, TensorInfo, contained, manifest,
    sniff, sums,
};
use briquette_core::coding::may_be_entropy_coded;
use briquette_core::{Coding, Error, Result, Storage};
use std::collections::BTreeMap;
use std::path::Path;

/// Opens a directory written by Briquette: the weight files and all parts in its manifest.
///
/// # Errors
/// - Input: the manifest is damaged, or a part is missing.
/// - Io: a file cannot be read.
pub(crate) fn open(directory: &ModelDir) -> Result<StoredDir> {
    let name = Path::new(manifest::FILE_NAME);
    let file = directory.file(name)?;
    check_sum(directory, name, &file)?;
    let manifest = ManifestFile::open(&file)?;
    let directory = directory.path();
    let mut plain = PlainFiles::default();
    for name in &manifest.files {
        if !crate::io::paths::stays_inside(name) {
            return Err(
                Error::input(format!("the manifest lists {name:?}, expected a file beside it")).at(directory.display())
            );
        }
        let file = contained::open(directory, Path::new(name))?;
        let kind = sniff::kind_of(&file)?;
        plain.push(file, kind, &Choice::default())?;
    }
    plain.check_unique()?;
    let (found, profile) = (plain.by_name(), manifest.head.profile);
    let mut tensors = Vec::with_capacity(manifest.n_tensors);
    let (mut hashes, mut layouts) = (Vec::with_capacity(manifest.n_tensors), BTreeMap::new());
    let head = manifest.for_each(|head, name, entry| {
        if head.hash_of(&entry, entry.hash) != entry.hash {
            layouts.insert(hashes.len(), (entry.shape.clone(), entry.output_axis));
        }
        hashes.push(entry.hash);
        tensors.push(stored_tensor(name, entry, profile, &found)?);
        Ok(())
    })?;
    drop(found);
    check_density(&tensors).map_err(|error| error.at(directory.display()))?;
    let files = plain.into_files();
    let infos: Vec<TensorInfo> = tensors.iter().map(|tensor| tensor.info.clone()).collect();
    let digests = Some(Digests::new(hashes, layouts));
    Ok(StoredDir { files, tensors, infos, manifest: Some(head), digests, number: DirNumber::default() })
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
        if let Storage::Entropy { n_bytes } = tensor.coding.storage {
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

fn stored_tensor(
    name: String,
    entry: ManifestEntry,
    profile: OutputFormat,
    found: &TensorsByName,
) -> Result<StoredTensor> {
    let activations = activations_of(&entry, profile);
    let info = TensorInfo::checked(name, entry.dtype, entry.shape.0)?;
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
    if let Storage::Entropy { n_bytes } = entry.coding.storage {
        let most = entry.coding.codes.and_then(|codes| Coding::entropy(codes, rows.n_rows, rows.n_cols));
        let most =
            most.map(|coding| coding.storage).ok_or_else(|| bad("codes of this shape cannot be entropy-coded"))?;
        if !matches!(most, Storage::Entropy { n_bytes: most } if n_bytes <= most) {
            return Err(bad("its entropy-coded blocks are larger than the codes without coding"));
        }
    }
    let n_kept = entry.n_kept.unwrap_or(info.n_elements());
    if n_kept > info.n_elements() {
        return Err(bad("found more kept elements than elements"));
    }
    let tied = entry.tied_to.map(|name| TensorInfo { name, ..info.clone() });
    let stored_as = tied.as_ref().unwrap_or(&info);
    let promised = profile.file_parts(stored_as, axis, entry.coding, n_kept, entry.activations.as_deref());
    let promised = promised.map_err(|error| bad(&error.message))?;
    let mut tensor = StoredTensor { info, axis, coding: entry.coding, n_kept, activations, parts: Vec::new() };
    tensor.locate(promised, found)?;
    Ok(tensor)
}

/// Returns the rounding of activations in a manifest entry; `None` if activations stay floats.
fn activations_of(entry: &ManifestEntry, profile: OutputFormat) -> Option<ActivationRounding> {
    Some(match entry.activations.as_deref()? {
        SYMMETRIC => profile.held_codes().map_or(ActivationRounding::Symmetric, CodeSupport::symmetric),
        ASYMMETRIC => ActivationRounding::Asymmetric,
        _ => ActivationRounding::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::{DType, OutputAxis};

    fn coded(n_rows: usize, n_bytes: usize) -> StoredTensor {
        let info = TensorInfo::checked("w".into(), DType::F32, vec![n_rows, 4096]).unwrap();
        let coding = Coding { storage: Storage::Entropy { n_bytes }, ..Coding::DENSE };
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

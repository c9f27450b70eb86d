//! Layouts in which tensors keep their places in copies of the model's files.

use super::parts::{LastParts, PartSizes};
use super::placed::PlacedTensors;
use briquette_core::{Error, Result};
use briquette_formats::DraftFile;
use briquette_formats::onnx::{Skeleton, SkeletonFile};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// A file that is copied.
pub(super) struct CopiedFile {
    /// The path in the output.
    pub(super) name: String,
    /// Bytes that belong to no tensor.
    pub(super) n_rest: u64,
    /// The size of the file in bytes.
    pub(super) n_bytes: u64,
}

/// Computes the places of a plan's tensors, which are those in the model's files.
///
/// # Errors
/// - Config: a tensor gets another type, or is none of the model's.
/// - Bug: the plan has no files to copy.
pub(super) fn layout(sizes: &PartSizes) -> Result<(PlacedTensors, Vec<CopiedFile>)> {
    let (plan, skeleton) = (sizes.plan, skeleton(sizes)?);
    let places: BTreeMap<&str, usize> =
        skeleton.tensors.iter().enumerate().map(|(place, (info, ..))| (info.name.as_str(), place)).collect();
    let mut placed = PlacedTensors::with_capacity(plan.tensors.len());
    let mut n_data = vec![0; skeleton.files.len()];
    let mut parts = LastParts::of_none(sizes);
    for (index, tensor) in plan.tensors.iter().enumerate() {
        let found = places.get(tensor.info.name.as_str()).map(|&place| &skeleton.tensors[place]);
        let Some((info, file, start)) = found else {
            return Err(Error::config("is no tensor of the ONNX model; choose another format").at(tensor.culprit()));
        };
        let its = parts.of(index)?;
        if its.len() != 1 || (its[0].info.dtype, &its[0].info.shape) != (info.dtype, &info.shape) {
            let message = format!(
                "an ONNX file keeps the type {} of this tensor; remove the cast, or choose another format",
                info.dtype
            );
            return Err(Error::config(message).at(tensor.culprit()));
        }
        placed.push(sizes.coding(index), (sizes.n_kept)(index), *file, its);
        placed.set_start(index, 0, *start);
        n_data[*file] += info.n_bytes() as u64;
    }
    let of_file = |(file, n_data): (&SkeletonFile, u64)| CopiedFile {
        name: file.name.clone(),
        n_rest: file.input.len() - n_data,
        n_bytes: file.input.len(),
    };
    Ok((placed, skeleton.files.iter().zip(n_data).map(of_file).collect()))
}

/// Returns the size of all files in bytes.
///
/// # Errors
/// Bug: the plan has no files to copy.
pub(super) fn n_bytes(sizes: &PartSizes) -> Result<u64> {
    Ok(skeleton(sizes)?.files.iter().map(|file| file.input.len()).sum())
}

/// Copies the bytes of a file that belong to no tensor.
///
/// # Errors
/// Io: a file cannot be read or written.
pub(super) fn copy_rest(sizes: &PartSizes, number: usize, out: &DraftFile) -> Result<()> {
    let skeleton = skeleton(sizes)?;
    let input = &skeleton.files[number].input;
    let own = skeleton.tensors.iter().filter(|(_, file, _)| *file == number);
    let (mut buffer, mut next) = (Vec::new(), 0);
    for (info, _, start) in own.filter(|(info, ..)| info.n_bytes() > 0) {
        copy(next..*start, &mut buffer, &mut |at, bytes| input.read_at(at, bytes), out)?;
        next = start + info.n_bytes() as u64;
    }
    copy(next..input.len(), &mut buffer, &mut |at, bytes| input.read_at(at, bytes), out)
}

fn copy(
    span: Range<u64>,
    buffer: &mut Vec<u8>,
    read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    out: &DraftFile,
) -> Result<()> {
    for start in span.clone().step_by(COPY_BYTES) {
        buffer.resize((span.end - start).min(COPY_BYTES as u64) as usize, 0);
        read(start, buffer)?;
        out.write_at(start, buffer)?;
    }
    Ok(())
}

fn skeleton<'a>(sizes: &PartSizes<'a>) -> Result<&'a Skeleton> {
    sizes.plan.skeleton.as_deref().ok_or_else(|| Error::bug("the plan of an ONNX output has no model to copy"))
}

//! Reads arrays from `.npy`, `.npz`, IDX (MNIST's format) and safetensors, detected by content.

use super::arrays::{Array, Number};
use super::{npy, read_bytes};
use briquette_core::{DType, Error, Result};
use briquette_formats::{Checkpoint, TensorSource};
use std::io::{Cursor, Read};
use std::path::Path;

/// The array with one of the given names, or else all names in the file.
type ArrayOrNames = Result<Array, Vec<String>>;

impl Array {
    /// Reads `.npy`, `.npz`, IDX or safetensors. From a file with several arrays, reads the first of `names`
    /// that exists.
    ///
    /// # Errors
    /// - Input: the file is damaged or has none of the names
    /// - Io: the file cannot be read
    pub fn read(path: &Path, names: &[&str]) -> Result<Self> {
        find(path, names)?.map_err(|has| {
            let (has, names) = (has.join(", "), names.join(", "));
            Error::input(format!("found the arrays {has}, expected one of {names}; rename one")).at(path.display())
        })
    }

    /// Reads a second array from a file: `None` if it has only one, or none of `names`.
    pub(crate) fn beside(path: &Path, names: &[&str]) -> Result<Option<Self>> {
        let bytes = read_bytes(path)?;
        if is_archive(&bytes) { Ok(find_in(path, bytes, names)?.ok()) } else { Ok(None) }
    }
}

/// Returns whether a file has several named arrays.
fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK") || is_safetensors(bytes)
}

fn is_safetensors(bytes: &[u8]) -> bool {
    bytes.get(8) == Some(&b'{')
}

fn find(path: &Path, names: &[&str]) -> Result<ArrayOrNames> {
    find_in(path, read_bytes(path)?, names)
}

fn find_in(path: &Path, bytes: Vec<u8>, names: &[&str]) -> Result<ArrayOrNames> {
    let bad = |message: String| Error::input(message).at(path.display());
    match bytes.as_slice() {
        [0x93, b'N', ..] => npy::parse(&bytes).map(Ok).map_err(bad),
        [b'P', b'K', ..] => from_npz(bytes, names).map_err(bad),
        [0, 0, 8..=14, ..] => from_idx(&bytes).map(Ok).map_err(bad),
        [0x1f, 0x8b, ..] => Err(bad("it is compressed by gzip; run gunzip on it".into())),
        _ => match Checkpoint::open(path) {
            Ok(checkpoint) => from_checkpoint(&checkpoint, names),
            Err(error) if is_safetensors(&bytes) => Err(error),
            Err(_) => Err(bad(format!("found {}, expected {EXPECTED}", kind_of(&bytes)))),
        },
    }
}

/// The data formats of classifiers.
const EXPECTED: &str = "an array (.npy, .npz, IDX or safetensors), or a folder with one folder of images per class";

/// Describes a file that is not an array.
fn kind_of(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "an empty file".into();
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return "a git-lfs pointer (run `git lfs pull` to get the file it points to)".into();
    }
    match image::guess_format(bytes) {
        Ok(format) => format!("a single image ({format:?})"),
        Err(_) if std::str::from_utf8(bytes).is_ok() => "text".into(),
        Err(_) => "something else".into(),
    }
}

/// Largest expansion of an array in a `.npz`, and the size that is allowed in any case.
///
/// Photographs compress to a half, drawings to a tenth, zeros to a thousandth.
const MAX_UNPACKED: u64 = 100;
const UNPACKED_ANYWAY: u64 = 64 << 20;

/// Refuses an array that expands too far.
fn check_unpacked(size: u64, packed: u64) -> Result<(), String> {
    let most = packed.saturating_mul(MAX_UNPACKED).max(UNPACKED_ANYWAY);
    if size <= most {
        return Ok(());
    }
    Err(format!(
        "{packed} bytes unpack to {size}, expected at most {most}; save it with numpy.savez, which does not compress"
    ))
}

fn from_npz(bytes: Vec<u8>, names: &[&str]) -> Result<ArrayOrNames, String> {
    let n_bytes = bytes.len() as u64;
    let mut archive =
        zip::ZipArchive::new(Cursor::new(bytes)).map_err(|source| format!("not a valid .npz file: {source}"))?;
    let found = names.iter().map(|name| format!("{name}.npy")).find(|name| archive.index_for_name(name).is_some());
    let Some(name) = found else {
        return Ok(Err(archive.file_names().flatten().map(|name| name.trim_end_matches(".npy").to_string()).collect()));
    };
    let damaged = |source: &dyn std::fmt::Display| format!("{name} cannot be read: {source}; the file is damaged");
    let file = archive.by_name(&name).map_err(|source| damaged(&source))?;
    // A zip can declare a smaller size than it decompresses to. Reading one byte beyond the declared size
    // detects this, and makes the reader verify the checksum at the end.
    let size = file.size();
    check_unpacked(size, file.compressed_size().min(n_bytes)).map_err(|message| format!("{name}: {message}"))?;
    let mut content = Vec::new();
    file.take(size.saturating_add(1)).read_to_end(&mut content).map_err(|source| damaged(&source))?;
    if content.len() as u64 != size {
        return Err(damaged(&format!("it unpacks to {} bytes, expected {size}", content.len())));
    }
    npy::parse(&content).map(Ok).map_err(|message| format!("{name}: {message}"))
}

fn from_idx(bytes: &[u8]) -> Result<Array, String> {
    let number = match bytes[2] {
        8 => Number::U8,
        9 => Number::I8,
        0xb => Number::I16,
        0xc => Number::I32,
        0xd => Number::F32,
        0xe => Number::F64,
        other => return Err(format!("found IDX type {other}, which does not exist; the file is damaged")),
    };
    let rank = usize::from(bytes.get(3).copied().unwrap_or(0));
    let header = bytes.get(4..4 + 4 * rank).ok_or("its header ends early; the file is damaged")?;
    let shape = header.as_chunks::<4>().0.iter().map(|extent| u32::from_be_bytes(*extent) as usize).collect();
    Array::from_bytes(shape, number, true, &bytes[4 + 4 * rank..])
}

fn from_checkpoint(checkpoint: &Checkpoint, names: &[&str]) -> Result<ArrayOrNames> {
    let tensors = checkpoint.tensors();
    let bad = |message: String| Error::input(message).at(checkpoint.path().display());
    let find = |name: &&str| tensors.iter().position(|info| info.name == **name);
    let Some(index) = names.iter().find_map(find) else {
        return Ok(Err(tensors.iter().map(|info| info.name.to_string()).collect()));
    };
    let info = &tensors[index];
    let number = match info.dtype {
        DType::U8 => Number::U8,
        DType::I8 => Number::I8,
        DType::U16 => Number::U16,
        DType::I16 => Number::I16,
        DType::U32 => Number::U32,
        DType::I32 => Number::I32,
        DType::U64 => Number::U64,
        DType::I64 => Number::I64,
        DType::F16 => Number::F16,
        DType::F32 => Number::F32,
        DType::F64 => Number::F64,
        other => return Err(bad(format!("{} is of {other}, expected numbers", info.name))),
    };
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(index, 0, &mut bytes)?;
    checkpoint.check_unchanged()?;
    Array::from_bytes(info.shape.0.clone(), number, false, &bytes).map(Ok).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_that_decompress_too_far_are_refused() {
        assert!(check_unpacked(64 << 20, 1000).is_ok() && check_unpacked(100 << 20, 1 << 20).is_ok());
        let error = check_unpacked(1 << 30, 1 << 20).unwrap_err();
        assert!(error.contains("1048576 bytes unpack to 1073741824, expected at most 104857600"), "{error}");
    }
}

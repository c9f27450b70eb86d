//! PyTorch archives: `torch.save` of a state dict. Read without running anything.
//!
//! Our own checks come first: the zip directory, and every opcode of the pickle against a short list of names. Then
//! `pytorch-reader` opens the file too, must agree on every tensor, and gathers those that are strided views.

use crate::crc::{self, Sum};
use crate::gathered::Gathered;
use crate::pickle::{self, View};
use crate::zip::{self, ZipEntry};
use crate::{InputFile, TensorInfo};
use briquette_core::{Error, ErrorKind, Result};
use pytorch_reader::{PytorchReader, Tensor};
use std::collections::BTreeMap;

/// Largest pickle: a state dict of 100,000 tensors takes a quarter of it.
const MAX_PICKLE_BYTES: u64 = 64 << 20;
/// How often the tensors of a file may share its bytes, all in all.
const MAX_SHARING: u64 = 16;

/// Where a tensor's bytes are.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the file from this offset, as they are.
    At(u64),
    /// To be gathered from a view, or unpacked.
    Gathered(Box<Gathered>),
}

/// Reads what tensors an archive holds and where, and makes it a file whose entries are held against their CRC-32 while
/// they are read.
///
/// # Errors
/// Input where it is damaged, is no archive of `torch.save`, or would run code elsewhere; Io where it cannot be read.
pub(crate) fn read(file: InputFile) -> Result<(InputFile, Vec<(TensorInfo, Place)>)> {
    let (sums, tensors) = read_checked(&file).map_err(|error| match error.kind {
        ErrorKind::Input => error.at(file.path().display()),
        _ => error,
    })?;
    Ok((file.with_sums(sums), tensors))
}

fn read_checked(file: &InputFile) -> Result<(Vec<Sum>, Vec<(TensorInfo, Place)>)> {
    refuse_old_formats(file)?;
    let entries = zip::read_entries(file)?;
    let root = root_of(&entries)?;
    let (pickle, value) = pickle::read(&pickle_bytes(file, &entries, &root)?)?;
    let found = pickle::flatten(&pickle, &value)?;
    let mut tensors: Vec<Viewed> = Vec::with_capacity(found.tensors.len());
    for (name, view) in found.tensors {
        let checked = checked_view(&view, &name, &root, &entries);
        tensors.push(checked.map_err(|error| error.at(format_args!("tensor {name:?}")))?);
    }
    let total = tensors.iter().try_fold(0_u64, |sum, (info, ..)| sum.checked_add(info.n_bytes() as u64));
    if total.is_none_or(|total| total > file.len().saturating_mul(MAX_SHARING)) {
        return Err(Error::input("its tensors are views of far more bytes than it has; save them with .clone()"));
    }
    Ok((sums_of(&entries), agree(file, found.wrapper, tensors)?))
}

/// What entries that lie in the file as they are must add up to. 0 is what `torch.save` writes where it was told not to
/// compute it.
fn sums_of(entries: &BTreeMap<String, ZipEntry>) -> Vec<Sum> {
    let stored = entries.iter().filter(|(_, entry)| entry.is_stored && entry.crc != 0 && entry.n_bytes > 0);
    let sum = |(name, entry): (&String, &ZipEntry)| {
        Sum::new(format!("its entry {name:?}"), entry.start..entry.start + entry.n_bytes, entry.crc)
    };
    stored.map(sum).collect()
}

fn refuse_old_formats(file: &InputFile) -> Result<()> {
    let mut head = vec![0; file.len().min(4) as usize];
    file.read_at(0, &mut head)?;
    if head.starts_with(b"PK") {
        return Ok(());
    }
    Err(Error::input(
        "found a pickle or tar of PyTorch before 1.6, expected a zip archive; load it and torch.save it with a newer PyTorch",
    ))
}

/// The one directory that all entries are in, with its slash.
fn root_of(entries: &BTreeMap<String, ZipEntry>) -> Result<String> {
    let root = |name: &str| name.split_once('/').map(|(root, _)| format!("{root}/"));
    let first = entries.keys().next().and_then(|name| root(name));
    let Some(first) = first.filter(|first| entries.keys().all(|name| name.starts_with(first.as_str()))) else {
        let message = "found a zip archive without one root directory, expected what torch.save writes; check the file";
        return Err(Error::input(message));
    };
    let is_script = |name: &String| {
        name.strip_prefix(&first).is_some_and(|name| name == "constants.pkl" || name.starts_with("code/"))
    };
    if entries.keys().any(is_script) {
        let message = "found a TorchScript program, expected weights; load it with torch.jit.load and torch.save its state_dict()";
        return Err(Error::input(message));
    }
    Ok(first)
}

fn pickle_bytes(file: &InputFile, entries: &BTreeMap<String, ZipEntry>, root: &str) -> Result<Vec<u8>> {
    let entry = entries.get(&format!("{root}data.pkl"));
    let entry = entry
        .ok_or_else(|| Error::input("found no data.pkl in it, expected what torch.save writes; check the file"))?;
    if !entry.is_stored || entry.n_bytes > MAX_PICKLE_BYTES {
        let message = "its data.pkl is compressed or above 64 MiB, expected what torch.save writes; save it again";
        return Err(Error::input(message));
    }
    let mut bytes = vec![0; entry.n_bytes as usize];
    file.read_at(entry.start, &mut bytes)?;
    crc::check("its data.pkl", &bytes, entry.crc)?;
    Ok(bytes)
}

/// A tensor, the entry it is a view of, and its offset in the file where its bytes lie there as they are.
type Viewed = (TensorInfo, ZipEntry, Option<u64>);

/// Holds a view against its storage. Gives the offset in the file where the bytes lie there as they are.
fn checked_view(view: &View, name: &str, root: &str, entries: &BTreeMap<String, ZipEntry>) -> Result<Viewed> {
    let info = TensorInfo::checked(name.into(), view.dtype, view.shape.clone())?;
    let key = format!("{root}data/{}", view.storage.key);
    let entry =
        entries.get(&key).ok_or_else(|| Error::input(format!("its storage {key:?} is missing; save it again")))?;
    let width = (view.dtype.n_bits() / 8) as u64;
    let storage_width = view.storage.dtype.map_or(1, |dtype| dtype.n_bits() as u64 / 8);
    let declared = view.storage.n_elements.checked_mul(storage_width).filter(|&n| n <= entry.n_bytes);
    let end = end_of(view).and_then(|end| end.checked_mul(width));
    let fits = declared.zip(end).is_some_and(|(declared, end)| end <= declared);
    if !fits || info.n_bytes() as u64 > entry.n_bytes {
        let message = format!(
            "{} {} from element {} does not fit its storage of {} bytes; save it again, with .contiguous()",
            view.dtype, info.shape, view.offset, entry.n_bytes
        );
        return Err(Error::input(message));
    }
    let is_plain = entry.is_stored && is_contiguous(view);
    let start = if info.n_elements() == 0 { 0 } else { view.offset * width };
    Ok((info, *entry, is_plain.then_some(entry.start + start)))
}

/// The element after the last that a view can touch.
fn end_of(view: &View) -> Option<u64> {
    if view.shape.contains(&0) {
        return Some(0);
    }
    let mut last = view.offset;
    for (&extent, &stride) in view.shape.iter().zip(&view.strides) {
        last = last.checked_add(u64::try_from((extent - 1).checked_mul(stride)?).ok()?)?;
    }
    last.checked_add(1)
}

/// Whether elements follow each other in row-major order.
fn is_contiguous(view: &View) -> bool {
    if view.shape.contains(&0) {
        return true;
    }
    let mut step = 1;
    for (&extent, &stride) in view.shape.iter().zip(&view.strides).rev() {
        if extent != 1 && stride != step {
            return false;
        }
        step *= extent;
    }
    true
}

/// Opens the file with the other reader, which must find the same tensors.
fn agree(file: &InputFile, wrapper: Option<&str>, tensors: Vec<Viewed>) -> Result<Vec<(TensorInfo, Place)>> {
    let opened = match wrapper {
        Some(key) => PytorchReader::with_top_level_key(file.path(), key),
        None => PytorchReader::new(file.path()),
    };
    let opened = opened.map_err(|error| Error::input(format!("{error}; the archive is damaged or too unusual")))?;
    // It opened the file by its name.
    file.check_unchanged()?;
    let mut others = opened.into_tensors();
    let differs = |name: &str| {
        Error::input("its pickle can be read in two ways; save it again with torch.save")
            .at(format_args!("tensor {name:?}"))
    };
    let mut placed = Vec::with_capacity(tensors.len());
    for (info, entry, offset) in tensors {
        let other = others.remove(&info.name);
        let is_same = |other: &Tensor| {
            other.shape() == info.shape.0.as_slice() && format!("{:?}", other.dtype()) == dtype_name(&info)
        };
        let other = other.filter(is_same).ok_or_else(|| differs(&info.name))?;
        placed.push((info, offset.map_or_else(|| Place::Gathered(Box::new(Gathered::new(other, entry))), Place::At)));
    }
    match others.keys().min() {
        Some(name) => Err(differs(name)),
        None => Ok(placed),
    }
}

/// The name the other reader has for a type.
fn dtype_name(info: &TensorInfo) -> String {
    format!("{:?}", info.dtype)
}

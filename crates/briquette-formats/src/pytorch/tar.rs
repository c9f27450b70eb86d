//! Reads files of PyTorch before 0.1.10.
//!
//! They are tar archives with a table of storages, a table of tensors, and a pickle that refers to them.

use crate::io::InputFile;
use crate::pytorch::bytes::Bytes;
use crate::pytorch::opened::{MAX_PICKLE_BYTES, Opened};
use crate::pytorch::pickle::{self, Outside, Pickle, PickleName, TorchStorage, Value, View};
use crate::pytorch::stored::Stored;
use crate::pytorch::stream::check_byte_order;
use briquette_core::shape::MAX_RANK;
use briquette_core::{Error, Result};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

/// Most entries of the archive, and most rows of a table.
const MAX_ENTRIES: usize = 10_000;
const MAX_ROWS: u64 = 1 << 18;
/// Bytes that are first searched for a pickle among other data, and more if it does not end there.
const FIRST_LOOK: u64 = 512;

/// The table of storages, by number.
type Storages = BTreeMap<i64, TorchStorage>;

/// Reads the tables and the pickle.
pub(crate) fn open(file: &InputFile) -> Result<Opened> {
    let entries = entries(file)?;
    let entry = |name: &str| {
        let message = format!(
            "found a tar archive without {name:?}, expected one of PyTorch before 0.1.10; unpack it and use the weights inside"
        );
        entries.get(name).cloned().ok_or_else(|| Error::input(message))
    };
    let (info, value) = pickle::read(&whole(file, entry("sys_info")?)?, Outside::Storages)?;
    check_byte_order(&info, &value)?;
    let (storages, places) = storages(file, entry("storages")?)?;
    let tensors = tensors(&whole(file, entry("tensors")?)?, &storages)?;
    let (pickle, root) = pickle::read(&whole(file, entry("pickle")?)?, Outside::Tensors(tensors))?;
    Ok(Opened::new(pickle, root, places))
}

/// Returns the byte range of each regular file of the archive by its name.
fn entries(file: &InputFile) -> Result<BTreeMap<String, Range<u64>>> {
    let bad = |source: std::io::Error| damaged(&format!("has a bad tar header ({source})"));
    let mut archive = tar::Archive::new(Cursor { file, at: 0 });
    let mut found = BTreeMap::new();
    for (n_entries, entry) in archive.entries_with_seek().map_err(bad)?.enumerate() {
        let entry = entry.map_err(bad)?;
        if n_entries == MAX_ENTRIES {
            return Err(damaged("has too many entries"));
        }
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().map_err(bad)?;
        let name = path.to_str().ok_or_else(|| damaged("has a bad tar header"))?.trim_start_matches("./").to_string();
        let start = entry.raw_file_position();
        let end = start.checked_add(entry.size()).filter(|&end| end <= file.len());
        let end = end.ok_or_else(|| damaged(&format!("has an entry {name:?} that reaches beyond its end")))?;
        if let Some(_same) = found.insert(name.clone(), start..end) {
            return Err(damaged(&format!("has two entries {name:?}")));
        }
    }
    Ok(found)
}

/// A position in a file, for readers that keep one.
struct Cursor<'a> {
    file: &'a InputFile,
    at: u64,
}

impl Read for Cursor<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = (out.len() as u64).min(self.file.len().saturating_sub(self.at)) as usize;
        self.file.read_at(self.at, &mut out[..n]).map_err(std::io::Error::other)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.len().checked_add_signed(by),
        };
        self.at = at.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Reads a whole entry.
fn whole(file: &InputFile, range: Range<u64>) -> Result<Vec<u8>> {
    let n_bytes = range.end - range.start;
    if n_bytes > MAX_PICKLE_BYTES {
        return Err(damaged("has a table of more than 64 MiB"));
    }
    let mut bytes = vec![0; n_bytes as usize];
    file.read_at(range.start, &mut bytes)?;
    Ok(bytes)
}

/// Reads the pickle at the start of a range of a file, and advances the range.
fn next_pickle(file: &InputFile, part: &mut Range<u64>) -> Result<(Pickle, Value)> {
    let mut n_bytes = FIRST_LOOK;
    loop {
        let n_left = part.end - part.start;
        let bytes = whole(file, part.start..part.start + n_bytes.min(n_left))?;
        let mut rest = Bytes(&bytes);
        match pickle::read_next(&mut rest, Outside::Storages) {
            Err(_) if n_bytes < n_left && n_bytes < MAX_PICKLE_BYTES => n_bytes *= 8,
            Err(error) => return Err(error),
            Ok(found) => {
                part.start += (bytes.len() - rest.0.len()) as u64;
                return Ok(found);
            }
        }
    }
}

/// Reads the table of storages.
///
/// It has the number of storages. For each follow its number, device and type, the number of its elements, and
/// the elements. Then follow the storages that are parts of others.
fn storages(file: &InputFile, mut part: Range<u64>) -> Result<(Storages, BTreeMap<String, Stored>)> {
    let bad = || damaged("has a bad table of storages");
    let (_, count) = next_pickle(file, &mut part)?;
    let count = rows_of(&count).ok_or_else(bad)?;
    let (mut found, mut places) = (Storages::new(), BTreeMap::new());
    for _ in 0..count {
        let (pickle, row) = next_pickle(file, &mut part)?;
        let Some([Value::Int(number), _, Value::Name(PickleName::Storage(dtype))]) = pickle.list(&row) else {
            return Err(bad());
        };
        let mut n_elements = [0; 8];
        let start = part.start.checked_add(8).filter(|&start| start <= part.end).ok_or_else(bad)?;
        file.read_at(part.start, &mut n_elements)?;
        let n_elements = u64::from_le_bytes(n_elements);
        let key = number.to_string();
        let storage =
            TorchStorage { key: key.as_str().into(), dtype: *dtype, n_stored: n_elements, first: 0, n_elements };
        let end = n_elements.checked_mul(storage.width()).and_then(|n| start.checked_add(n));
        part.start = end.filter(|&end| end <= part.end).ok_or_else(bad)?;
        places.insert(key, Stored::plain(start, part.start - start));
        if found.insert(*number, storage).is_some() {
            return Err(bad());
        }
    }
    let (pickle, views) = next_pickle(file, &mut part)?;
    for view in pickle.list(&views).ok_or_else(bad)? {
        let (number, storage) = part_of(&pickle, view, &found).ok_or_else(bad)?;
        found.insert(number, storage);
    }
    Ok((found, places))
}

fn rows_of(count: &Value) -> Option<u64> {
    match count {
        Value::Int(n) => u64::try_from(*n).ok().filter(|&n| n <= MAX_ROWS),
        _ => None,
    }
}

/// Reads a storage that is part of another: its number, the other's number, its first element, and its length.
fn part_of(pickle: &Pickle, view: &Value, storages: &Storages) -> Option<(i64, TorchStorage)> {
    let [Value::Int(number), Value::Int(root), Value::Int(first), Value::Int(n)] = pickle.list(view)? else {
        return None;
    };
    let root = storages.get(root)?;
    let (first, n_elements) = (u64::try_from(*first).ok()?, u64::try_from(*n).ok()?);
    let end = first.checked_add(n_elements)?;
    let first = root.first.checked_add(first)?;
    (end <= root.n_elements).then(|| (*number, TorchStorage { first, n_elements, ..root.clone() }))
}

/// Reads the table of tensors.
///
/// It has the number of tensors. For each follow its number, storage and type, its rank, extents, strides, and
/// first element.
fn tensors(bytes: &[u8], storages: &Storages) -> Result<BTreeMap<i64, View>> {
    let bad = || damaged("has a bad table of tensors");
    let mut rest = Bytes(bytes);
    let (_, count) = pickle::read_next(&mut rest, Outside::Storages)?;
    let count = rows_of(&count).ok_or_else(bad)?;
    let mut found = BTreeMap::new();
    for _ in 0..count {
        let (pickle, row) = pickle::read_next(&mut rest, Outside::Storages)?;
        let Some([Value::Int(number), Value::Int(storage), _]) = pickle.list(&row) else { return Err(bad()) };
        let storage = storages.get(storage).ok_or_else(bad)?;
        let view = view_of(&mut rest, storage).ok_or_else(bad)?;
        if found.insert(*number, view).is_some() {
            return Err(bad());
        }
    }
    Ok(found)
}

fn view_of(rest: &mut Bytes, storage: &TorchStorage) -> Option<View> {
    let rank = rest.u32().and_then(|rank| usize::try_from(rank).ok()).filter(|&rank| rank <= MAX_RANK)?;
    // The rank has 8 bytes; the upper four are skipped.
    rest.u32()?;
    let mut extents = || (0..rank).map(|_| usize::try_from(rest.u64()?).ok()).collect::<Option<Vec<usize>>>();
    let (shape, strides) = (extents()?, extents()?);
    let offset = rest.u64()?;
    Some(View { dtype: storage.dtype?, storage: storage.clone(), offset, shape, strides })
}

fn damaged(what: &str) -> Error {
    Error::input(format!("{what}; the file is damaged or cut short, save or download it again"))
}

//! Reads the directory of a zip archive.
//!
//! Only archives like those of `torch.save` are accepted. In other archives, such as with comments or
//! overlapping entries, two programs could see different entries.

use crate::io::{InputFile, limits};
use crate::pytorch::bytes::Bytes;
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const END_64_LOCATOR: u32 = 0x0706_4b50;
const ENTRY: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
/// Bytes of the record at the end of an archive, of its 64-bit locator and record, and of a local header.
const END_BYTES: u64 = 22;
const LOCATOR_BYTES: u64 = 20;
const END_64_BYTES: u64 = 56;
const LOCAL_BYTES: u64 = 30;

/// The location of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ZipEntry {
    /// First byte in the file.
    pub(crate) start: u64,
    /// Bytes in the file.
    pub(crate) n_packed: u64,
    /// Bytes after unpacking.
    pub(crate) n_bytes: u64,
    /// CRC-32 of the unpacked bytes; 0 if the writer did not compute it.
    pub(crate) crc: u32,
    /// Whether the bytes are uncompressed.
    pub(crate) is_stored: bool,
}

struct Directory {
    start: u64,
    n_bytes: u64,
    n_entries: u64,
}

struct RawEntry {
    name: String,
    method: u16,
    crc: u32,
    n_packed: u64,
    n_bytes: u64,
    header: u64,
}

/// Reads the entries of an archive by name. They lie inside the file and do not overlap.
///
/// Their unpacked sizes are not limited here.
///
/// # Errors
/// Input: the archive is damaged, cut short, or not plain.
pub(crate) fn read_entries(file: &InputFile) -> Result<BTreeMap<String, ZipEntry>> {
    let directory = find_directory(file)?;
    let mut bytes = vec![0; usize::try_from(directory.n_bytes).map_err(|_| damaged("its directory is too long"))?];
    file.read_at(directory.start, &mut bytes)?;
    let mut rest = Bytes(&bytes);
    let (mut entries, mut spans) = (BTreeMap::new(), Vec::new());
    for _ in 0..directory.n_entries {
        let raw = read_entry(&mut rest).ok_or_else(|| damaged("its directory is not valid"))?;
        let start = data_start(file, &raw)?;
        let end = start.checked_add(raw.n_packed).filter(|&end| end <= directory.start);
        let end = end.ok_or_else(|| damaged(&format!("entry {:?} reaches beyond the data", raw.name)))?;
        spans.push((raw.header, end));
        let RawEntry { n_packed, n_bytes, crc, .. } = raw;
        if !matches!(raw.method, 0 | 8) {
            let message =
                format!("entry {:?} is compressed by method {}, expected 0 or 8; zip it again", raw.name, raw.method);
            return Err(Error::input(message));
        }
        let entry = ZipEntry { start, n_packed, n_bytes, crc, is_stored: raw.method == 0 };
        if entry.is_stored && raw.n_bytes != raw.n_packed {
            return Err(damaged(&format!("entry {:?} has two sizes", raw.name)));
        }
        if entries.insert(raw.name.clone(), entry).is_some() {
            return Err(damaged(&format!("entry {:?} occurs twice", raw.name)));
        }
    }
    spans.sort_unstable();
    if !rest.0.is_empty() || spans.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(damaged("its entries overlap or are miscounted"));
    }
    Ok(entries)
}

fn damaged(what: &str) -> Error {
    Error::input(format!("{what}; the archive is damaged or cut short, save or download it again"))
}

/// Finds the directory through the record at the end of the archive. A comment after the record is refused.
fn find_directory(file: &InputFile) -> Result<Directory> {
    let no_end = || damaged("it lacks the end of a zip archive");
    let end_at = file.len().checked_sub(END_BYTES).ok_or_else(no_end)?;
    let mut record = [0; END_BYTES as usize];
    file.read_at(end_at, &mut record)?;
    let (n_entries, n_bytes, start) = parse_end(&record).ok_or_else(no_end)?;
    let mut directory = Directory { start, n_bytes, n_entries };
    let mut limit = end_at;
    if let Some((at, wide)) = find_wide(file, end_at)? {
        (directory, limit) = (wide, at);
    }
    let end = directory.start.checked_add(directory.n_bytes);
    if end != Some(limit) || directory.n_bytes > limits::MAX_HEADER_BYTES {
        return Err(damaged("its directory is not at its recorded offset"));
    }
    Ok(directory)
}

/// Returns the number of entries, bytes and start of the directory.
fn parse_end(record: &[u8]) -> Option<(u64, u64, u64)> {
    let mut rest = Bytes(record);
    let is_end = rest.u32()? == END && rest.u32()? == 0;
    let (here, total) = (rest.u16()?, rest.u16()?);
    let (n_bytes, start, comment) = (rest.u32()?, rest.u32()?, rest.u16()?);
    (is_end && here == total && comment == 0).then_some((total.into(), n_bytes.into(), start.into()))
}

/// Returns the 64-bit record and its offset, if there is one.
fn find_wide(file: &InputFile, end_at: u64) -> Result<Option<(u64, Directory)>> {
    let Some(locator_at) = end_at.checked_sub(LOCATOR_BYTES) else { return Ok(None) };
    let mut locator = [0; LOCATOR_BYTES as usize];
    file.read_at(locator_at, &mut locator)?;
    let mut rest = Bytes(&locator);
    if rest.u32() != Some(END_64_LOCATOR) {
        return Ok(None);
    }
    let at = rest.u32().and_then(|_disk| rest.u64());
    let at = at.filter(|at| at.checked_add(END_64_BYTES) == Some(locator_at));
    let at = at.ok_or_else(|| damaged("its 64-bit record is not at its recorded offset"))?;
    let mut record = [0; END_64_BYTES as usize];
    file.read_at(at, &mut record)?;
    let directory = parse_wide(&record).ok_or_else(|| damaged("its 64-bit record is not valid"))?;
    Ok(Some((at, directory)))
}

fn parse_wide(record: &[u8]) -> Option<Directory> {
    let mut rest = Bytes(record);
    let signature = rest.u32()?;
    rest.take(20)?;
    let (here, total) = (rest.u64()?, rest.u64()?);
    let (n_bytes, start) = (rest.u64()?, rest.u64()?);
    (signature == END_64 && here == total).then_some(Directory { start, n_bytes, n_entries: total })
}

fn read_entry(rest: &mut Bytes) -> Option<RawEntry> {
    let signature = rest.u32()?;
    rest.take(6)?;
    let method = rest.u16()?;
    rest.take(4)?;
    let crc = rest.u32()?;
    let (n_packed, n_bytes) = (rest.u32()?, rest.u32()?);
    let (n_name, n_extra, n_comment) = (rest.u16()?, rest.u16()?, rest.u16()?);
    rest.take(8)?;
    let header = rest.u32()?;
    let name = std::str::from_utf8(rest.take(n_name.into())?).ok()?.to_string();
    let mut wide = wide_fields(rest.take(n_extra.into())?);
    rest.take(n_comment.into())?;
    let mut full = |narrow: u32| if narrow == u32::MAX { wide.u64() } else { Some(u64::from(narrow)) };
    let (n_bytes, n_packed, header) = (full(n_bytes)?, full(n_packed)?, full(header)?);
    (signature == ENTRY).then_some(RawEntry { name, method, crc, n_packed, n_bytes, header })
}

/// Returns the 64-bit fields of an entry, in the order of the 32-bit fields that overflow.
fn wide_fields(extra: &[u8]) -> Bytes<'_> {
    let mut rest = Bytes(extra);
    while let (Some(id), Some(n)) = (rest.u16(), rest.u16()) {
        match rest.take(n.into()) {
            Some(fields) if id == 1 => return Bytes(fields),
            Some(_) => {}
            None => break,
        }
    }
    Bytes(&[])
}

/// Returns the start of an entry's data, from its local header.
fn data_start(file: &InputFile, raw: &RawEntry) -> Result<u64> {
    let misplaced = || damaged(&format!("entry {:?} is not at its recorded offset", raw.name));
    if raw.header.checked_add(LOCAL_BYTES).is_none_or(|end| end > file.len()) {
        return Err(misplaced());
    }
    let mut header = [0; LOCAL_BYTES as usize];
    file.read_at(raw.header, &mut header)?;
    let mut rest = Bytes(&header);
    let is_local = rest.u32() == Some(LOCAL) && rest.take(22).is_some();
    let lengths = rest.u16().zip(rest.u16()).filter(|_| is_local);
    let (n_name, n_extra) = lengths.ok_or_else(misplaced)?;
    Ok(raw.header + LOCAL_BYTES + u64::from(n_name) + u64::from(n_extra))
}

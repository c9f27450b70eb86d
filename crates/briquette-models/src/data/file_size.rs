//! How much memory opening a data file takes.

use briquette_core::{Error, Result};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;

/// Bytes that each line of a text takes beside its characters: the list grows to twice its length.
const LINE_BYTES: u64 = 80;

/// Predicts the bytes that opening a file of texts or arrays takes at most; 0 for a folder or without a file.
///
/// Contents are read and converted, so they are in memory twice.
///
/// # Errors
/// Io: the file cannot be read.
pub(super) fn opening_bytes(path: &Path) -> Result<u64> {
    let Some(size) = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len()) else {
        return Ok(0);
    };
    let file = File::open(path).map_err(|source| Error::io("cannot open", path, source))?;
    measured(BufReader::new(file), size).map_err(|source| Error::io("cannot read", path, source))
}

fn measured(mut file: impl BufRead + Seek, size: u64) -> std::io::Result<u64> {
    let mut start = [0; 4];
    let n = file.by_ref().take(4).read(&mut start)?;
    file.rewind()?;
    if start[..n] == *b"PK\x03\x04" {
        return Ok(2 * unpacked_bytes(file).unwrap_or(0).max(size));
    }
    if start[..n].contains(&0) || !start.is_ascii() {
        return Ok(2 * size);
    }
    let mut n_lines = 1;
    loop {
        let part = file.fill_buf()?;
        if part.is_empty() {
            break;
        }
        n_lines += part.iter().filter(|byte| **byte == b'\n').count() as u64;
        let n = part.len();
        file.consume(n);
    }
    Ok(2 * size + LINE_BYTES * n_lines)
}

/// Returns the bytes of all arrays of a `.npz` file; `None` for a damaged one.
fn unpacked_bytes(file: impl Read + Seek) -> Option<u64> {
    let mut archive = zip::ZipArchive::new(file).ok()?;
    (0..archive.len()).map(|index| archive.by_index_raw(index).ok().map(|entry| entry.size())).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn of(bytes: &[u8]) -> u64 {
        measured(Cursor::new(bytes), bytes.len() as u64).unwrap()
    }

    #[test]
    fn lines_and_packed_arrays_count_in_full() {
        assert_eq!(of(b"one\ntwo\nthree"), 2 * 13 + 3 * LINE_BYTES);
        assert_eq!(of(b"\x93NUMPY\n\n\n\n"), 2 * 10);
        assert_eq!(of(b""), LINE_BYTES);
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/arrays-compressed.npz");
        let size = std::fs::metadata(&fixture).unwrap().len();
        assert!(opening_bytes(&fixture).unwrap() > 2 * size);
        assert_eq!(opening_bytes(fixture.parent().unwrap()).unwrap(), 0);
    }
}

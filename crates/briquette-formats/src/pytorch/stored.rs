//! The location of a storage in a file, plain or compressed.

use crate::io::InputFile;
use crate::pytorch::zip::ZipEntry;
use briquette_core::{Error, Result};
use flate2::read::DeflateDecoder;
use std::io::{ErrorKind, Read};

/// The location of a storage in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    /// First byte in the file.
    pub(crate) start: u64,
    /// Bytes in the file.
    pub(crate) n_packed: u64,
    /// Bytes after unpacking.
    pub(crate) n_bytes: u64,
    /// CRC-32 of the unpacked bytes; 0 if unknown.
    pub(crate) crc: u32,
    /// Whether the bytes are uncompressed.
    pub(crate) is_plain: bool,
}

impl Stored {
    /// Creates the location of uncompressed bytes.
    pub(crate) fn plain(start: u64, n_bytes: u64) -> Self {
        Self { start, n_packed: n_bytes, n_bytes, crc: 0, is_plain: true }
    }
}

impl From<&ZipEntry> for Stored {
    fn from(entry: &ZipEntry) -> Self {
        let ZipEntry { start, n_packed, n_bytes, crc, is_stored } = *entry;
        Self { start, n_packed, n_bytes, crc, is_plain: is_stored }
    }
}

/// Unpacks a compressed storage, which must have exactly its declared size.
///
/// # Errors
/// - Input: the data is damaged or has another size.
/// - Io: the file cannot be read.
pub(crate) fn unpack(file: &InputFile, stored: Stored) -> Result<Vec<u8>> {
    let packed = RangeReader { file, at: stored.start, end: stored.start + stored.n_packed };
    let mut bytes = Vec::new();
    // Memory is not reserved by the declared length, which may be false.
    let read = DeflateDecoder::new(packed).take(stored.n_bytes.saturating_add(1)).read_to_end(&mut bytes);
    match read {
        Ok(n) if n as u64 == stored.n_bytes && has_sum(&bytes, stored.crc) => Ok(bytes),
        Ok(n) if n as u64 == stored.n_bytes => {
            let message = "a compressed storage has another CRC-32 than recorded; the archive is damaged";
            Err(Error::input(message).at(file.path().display()))
        }
        Ok(_) => {
            let message =
                format!("a compressed storage does not unpack to its {} bytes; the archive is damaged", stored.n_bytes);
            Err(Error::input(message).at(file.path().display()))
        }
        Err(error) => Err(read_error(file, error)),
    }
}

fn has_sum(bytes: &[u8], crc: u32) -> bool {
    crc == 0 || crc32fast::hash(bytes) == crc
}

fn read_error(file: &InputFile, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::UnexpectedEof => {
            Error::input(format!("{error}; the archive is damaged")).at(file.path().display())
        }
        _ => Error::io("cannot read", file.path(), error),
    }
}

/// Reads a range of a file from its start to its end.
struct RangeReader<'a> {
    file: &'a InputFile,
    at: u64,
    end: u64,
}

impl Read for RangeReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = usize::try_from(self.end - self.at).map_or(out.len(), |left| left.min(out.len()));
        self.file.read_at(self.at, &mut out[..n]).map_err(std::io::Error::other)?;
        self.at += n as u64;
        Ok(n)
    }
}

//! Tensors of a PyTorch archive whose bytes do not lie in the file as they are: strided views, and compressed entries.

use crate::zip::ZipEntry;
use crate::{InputFile, crc};
use briquette_core::{Error, Result};
use crc32fast::Hasher;
use flate2::read::DeflateDecoder;
use pytorch_reader::Tensor;
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};

/// A tensor that another reader puts together. It looks at what it takes of an entry only, so the sum of the entry is
/// checked before, once: by a pass of its own, which files that `torch.save` wrote need for strided views alone.
#[derive(Debug)]
pub(crate) struct Gathered {
    tensor: Tensor,
    entry: ZipEntry,
    is_sound: AtomicBool,
}

impl Gathered {
    /// A tensor that is a view of an entry.
    pub(crate) fn new(tensor: Tensor, entry: ZipEntry) -> Self {
        Self { tensor, entry, is_sound: AtomicBool::new(false) }
    }

    /// Its bytes.
    ///
    /// # Errors
    /// Input where the archive is not what it declared, Io where it cannot be read.
    pub(crate) fn read(&self, file: &InputFile) -> Result<Vec<u8>> {
        if !self.is_sound.load(Ordering::Acquire) {
            self.check(file)?;
            self.is_sound.store(true, Ordering::Release);
        }
        self.tensor.read().map_err(|error| read_error(file, error))
    }

    fn check(&self, file: &InputFile) -> Result<()> {
        let ZipEntry { start, n_packed, crc: expected, is_stored, .. } = self.entry;
        if is_stored || expected == 0 {
            return file.sum_at(start).map_or(Ok(()), |sum| file.read_rest(sum));
        }
        let (mut hasher, mut buffer) = (Hasher::new(), vec![0; 1 << 16]);
        let mut unpacked = DeflateDecoder::new(Stretch { file, at: start, end: start + n_packed });
        loop {
            match unpacked.read(&mut buffer).map_err(|error| read_error(file, error))? {
                0 => break,
                n => hasher.update(&buffer[..n]),
            }
        }
        match hasher.finalize() {
            found if found == expected => Ok(()),
            found => {
                let what = format!("the entry of tensor {:?}", self.tensor.name);
                Err(crc::differs(&what, found, expected).at(file.path().display()))
            }
        }
    }
}

fn read_error(file: &InputFile, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::UnexpectedEof => {
            Error::input(format!("{error}; the archive is damaged")).at(file.path().display())
        }
        _ => Error::io("cannot read", file.path(), error),
    }
}

/// A part of a file, from its start to its end.
struct Stretch<'a> {
    file: &'a InputFile,
    at: u64,
    end: u64,
}

impl Read for Stretch<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = usize::try_from(self.end - self.at).map_or(out.len(), |left| left.min(out.len()));
        self.file.read_at(self.at, &mut out[..n]).map_err(std::io::Error::other)?;
        self.at += n as u64;
        Ok(n)
    }
}

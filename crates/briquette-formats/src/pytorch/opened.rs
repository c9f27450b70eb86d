//! What is known of a file once its container (zip, tar or a plain stream) was read: its pickle, and where each storage lies.

use crate::io::crc::Sum;
use crate::pytorch::pickle::{Pickle, Value};
use crate::pytorch::stored::Stored;
use std::collections::BTreeMap;

/// Largest pickle: a state dict of 100,000 tensors takes a quarter of it.
pub(crate) const MAX_PICKLE_BYTES: u64 = 64 << 20;

/// A file whose pickle was gone through.
pub(crate) struct Opened {
    /// The objects it describes.
    pub(crate) pickle: Pickle,
    /// The one that was saved.
    pub(crate) root: Value,
    /// Where the bytes of each storage are, by its key.
    pub(crate) storages: BTreeMap<String, Stored>,
    /// The directory of storages in an archive, which error messages put before the key of one.
    pub(crate) place: String,
    /// Bytes of the code, where it is a TorchScript program.
    pub(crate) program_bytes: Option<u64>,
    /// CRC-32s of the entries of an archive.
    pub(crate) sums: Vec<Sum>,
}

impl Opened {
    pub(crate) fn new(pickle: Pickle, root: Value, storages: BTreeMap<String, Stored>) -> Self {
        Self { pickle, root, storages, place: String::new(), program_bytes: None, sums: Vec::new() }
    }
}

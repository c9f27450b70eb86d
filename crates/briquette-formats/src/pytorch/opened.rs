//! The contents of a zip, tar or stream container: its pickle, and the location of each storage.

use crate::io::crc::Sum;
use crate::pytorch::pickle::{Pickle, Value};
use crate::pytorch::stored::Stored;
use std::collections::BTreeMap;

/// Largest pickle. A state dict of 100,000 tensors needs a quarter of it.
pub(crate) const MAX_PICKLE_BYTES: u64 = 64 << 20;

/// A file whose pickle was parsed.
pub(crate) struct Opened {
    /// The objects in the pickle.
    pub(crate) pickle: Pickle,
    /// The object that was saved.
    pub(crate) root: Value,
    /// The location of each storage, by key.
    pub(crate) storages: BTreeMap<String, Stored>,
    /// The directory of storages in an archive, for error messages.
    pub(crate) place: String,
    /// Bytes of the code, if the file is a TorchScript program.
    pub(crate) program_bytes: Option<u64>,
    /// CRC-32s of the entries of an archive.
    pub(crate) sums: Vec<Sum>,
}

impl Opened {
    pub(crate) fn new(pickle: Pickle, root: Value, storages: BTreeMap<String, Stored>) -> Self {
        Self { pickle, root, storages, place: String::new(), program_bytes: None, sums: Vec::new() }
    }
}

//! Finds parts of tensors while headers are read in step with a manifest.

use crate::io::tensor_name::TensorName;
use crate::safetensors::HeaderStream;
use crate::stored::FoundPart;
use crate::{InputFile, TensorInfo};
use std::collections::BTreeMap;

/// The most parts in memory. Names are sorted, so parts are near the manifest's entries of their tensors.
const MAX_AHEAD: usize = 1 << 14;

/// The headers of several files, read in the order of names.
pub(super) struct PartsInStep<'a> {
    files: Vec<HeaderStream<'a>>,
    /// The next part of each file.
    next: BTreeMap<TensorName, FoundPart>,
    /// Parts that were read, and not taken yet.
    ahead: BTreeMap<TensorName, FoundPart>,
}

impl<'a> PartsInStep<'a> {
    /// Starts to read the headers; `None` if a file is damaged or not sorted by name.
    pub(super) fn open(files: &'a [InputFile]) -> Option<Self> {
        let files: Vec<HeaderStream> = files.iter().map(HeaderStream::open).collect::<Option<_>>()?;
        let (n_files, mut parts) = (files.len(), Self { files, next: BTreeMap::new(), ahead: BTreeMap::new() });
        (0..n_files).try_for_each(|file| parts.read_next(file))?;
        Some(parts)
    }

    /// Returns the part of this name.
    ///
    /// A part that is not `is_shared` is only returned once. `None` if there is no such part, a file is damaged or
    /// not sorted, or too many parts precede it.
    pub(super) fn take(&mut self, name: &str, is_shared: bool) -> Option<FoundPart> {
        while self.next.first_key_value().is_some_and(|(first, _)| first.as_str() <= name) {
            let (first, part) = self.pop()?;
            if first == *name && !is_shared {
                return Some(part);
            }
            self.ahead.insert(first, part);
            if self.ahead.len() > MAX_AHEAD {
                return None;
            }
        }
        if is_shared { self.ahead.get(name).cloned() } else { self.ahead.remove(name) }
    }

    /// Reads the rest of all files. Returns whether all headers are valid and sorted, and no name is in two files.
    pub(super) fn finish(mut self) -> Option<()> {
        while !self.next.is_empty() {
            self.pop()?;
        }
        Some(())
    }

    /// Returns the part with the lowest name, and reads the next one of its file.
    fn pop(&mut self) -> Option<(TensorName, FoundPart)> {
        let found = self.next.pop_first()?;
        self.read_next(found.1.file)?;
        Some(found)
    }

    fn read_next(&mut self, file: usize) -> Option<()> {
        match self.files[file].next()? {
            None => Some(()),
            Some((TensorInfo { name, dtype, shape }, offset)) => {
                let is_new = self.next.insert(name, FoundPart { dtype, shape, file, offset }).is_none();
                is_new.then_some(())
            }
        }
    }
}

//! The weight files of a draft. Encoded parts are written at their offsets.

#[cfg(test)]
mod blocks;

use crate::encode::{FilePlace, Sink};
use crate::layout::{FileHeaders, FileLayouts};
use briquette_core::encoded::Part;
use briquette_core::{Error, Result};
use briquette_formats::{Draft, DraftFile};
use std::path::Path;

/// The weight files of a draft, open for writing.
pub(crate) struct WeightFiles<'a> {
    layout: &'a FileLayouts,
    files: Vec<DraftFile>,
}

impl<'a> WeightFiles<'a> {
    /// Creates the files with reserved space, and writes the bytes that are known before encoding.
    pub(crate) fn create(draft: &Draft, layout: &'a FileLayouts, headers: &FileHeaders) -> Result<Self> {
        draft.check_space(layout.n_bytes())?;
        let mut files = Vec::with_capacity(layout.files.len());
        for (number, file) in layout.files.iter().enumerate() {
            let out = draft.create_file(Path::new(&file.name), file.n_bytes)?;
            headers.write(layout, number, &out)?;
            files.push(out);
        }
        Ok(Self { layout, files })
    }

    /// Returns the files.
    pub(crate) fn into_files(self) -> Vec<DraftFile> {
        self.files
    }
}

impl Sink for WeightFiles<'_> {
    fn place(&self, tensor: usize, part: Part) -> Result<Option<FilePlace>> {
        let placed = self.layout.tensors.of(tensor);
        let no_place = || Error::bug(format!("part {part:?} of tensor {tensor} has no place"));
        let (start, layout) = placed.part(part).ok_or_else(no_place)?;
        Ok(Some(FilePlace { file: placed.file, start, layout }))
    }

    fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.files[file].write_at(offset, bytes)
    }

    fn read(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.files[file].read_at(offset, out)
    }
}

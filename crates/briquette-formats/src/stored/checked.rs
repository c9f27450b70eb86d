//! Compares values read from a directory of Briquette with the hashes of its manifest.

use super::{DecodeBuffers, PartBytes, StoredDir, StoredTensor};
use crate::InputFile;
use crate::digests::Lengths;
use briquette_core::block::{RowDecoder, StoredRows};
use briquette_core::{BlockHasher, Error, Hash128, Result};
use std::ops::Range;

impl StoredDir {
    /// Returns whether the hash of a tensor is known and not verified yet.
    pub(crate) fn is_unchecked(&self, index: usize) -> bool {
        self.digests.as_ref().is_some_and(|digests| !digests.is_sound(index))
    }

    /// Adds values of a tensor, from byte `start` on. Once all were read, their hash is compared.
    pub(crate) fn check_values(&self, index: usize, start: usize, values: &[u8]) -> Result<()> {
        let Some(digests) = &self.digests else { return Ok(()) };
        let tensor = &self.tensors[index];
        digests.add(index, lengths_of(tensor), start, values).map_err(|found| self.differs(index, found))
    }

    /// Adds stored rows of a tensor: see [`check_values`](Self::check_values).
    ///
    /// Threads read blocks in any order, and each hashes its own. A block that is not read as a whole is read
    /// again at the end.
    pub(super) fn check_rows(
        &self,
        index: usize,
        range: Range<usize>,
        decoder: &mut RowDecoder,
        stored: &StoredRows,
    ) -> Result<()> {
        let Some(digests) = &self.digests else { return Ok(()) };
        let tensor = &self.tensors[index];
        let (rows, lengths) = (tensor.rows(), lengths_of(tensor));
        let n = rows.rows_per_block();
        let starts_block = |row: usize| row.is_multiple_of(n) || row == rows.n_rows;
        if !starts_block(range.start) || !starts_block(range.end) {
            digests.begin(index, lengths);
            return Ok(());
        }
        let (mut hasher, mut number) = (BlockHasher::default(), range.start / n);
        decoder.for_each_strip(stored, range.len(), n, |values, ends_block| {
            hasher.push(values);
            if ends_block {
                digests.put(index, lengths, number, hasher.take());
                number += 1;
            }
        });
        digests.compare(index, lengths).map_err(|found| self.differs(index, found))
    }

    /// Reads the rest of every tensor that was read in part, and compares its hash.
    ///
    /// # Errors
    /// Input: the values differ from those that were written. Also errors of reading.
    pub(crate) fn check_hashes(&self) -> Result<()> {
        let Some(digests) = &self.digests else { return Ok(()) };
        let begun = digests.begun().into_iter().filter(|(index, _)| self.is_unchecked(*index));
        let (mut scratch, mut values) = (DecodeBuffers::default(), Vec::<u64>::new());
        for (index, numbers) in begun {
            let (rows, width) = (self.tensors[index].rows(), self.tensors[index].value_width());
            for number in numbers {
                let block = block_rows(number, rows.rows_per_block(), rows.n_rows);
                let n_bytes = block.len() * rows.n_cols * width;
                values.resize(n_bytes.div_ceil(8), 0);
                let out = &mut bytemuck::cast_slice_mut(&mut values)[..n_bytes];
                self.decode_rows(index, block, &mut scratch, out)?;
            }
            if self.is_unchecked(index) {
                digests.compare(index, lengths_of(&self.tensors[index])).map_err(|found| self.differs(index, found))?;
            }
        }
        Ok(())
    }

    /// Returns the error for a tensor with a wrong hash.
    pub(crate) fn differs(&self, index: usize, found: Hash128) -> Error {
        let expected = self.digests.as_ref().and_then(|digests| digests.expected(index));
        let expected = expected.map_or("none".to_string(), |hash| hash.to_string());
        let message = format!("its values hash to {found}, expected {expected}; the output is damaged, make it again");
        let error = Error::input(message).at(format_args!("tensor {:?}", self.infos[index].name));
        match self.file_of(index) {
            Some(file) => error.at(file.path().display()),
            None => error,
        }
    }

    /// Returns the file of a tensor's parts.
    fn file_of(&self, index: usize) -> Option<&InputFile> {
        let file = match &self.tensors[index].parts.first()?.1 {
            PartBytes::File { file, .. } | PartBytes::Foreign { file, .. } => *file,
        };
        self.files.get(file)
    }
}

fn lengths_of(tensor: &StoredTensor) -> Lengths {
    let (rows, width) = (tensor.rows(), tensor.value_width());
    Lengths { block: (rows.rows_per_block() * rows.n_cols * width).max(1), total: rows.n_elements() * width }
}

fn block_rows(number: usize, rows_per_block: usize, n_rows: usize) -> Range<usize> {
    number * rows_per_block..((number + 1) * rows_per_block).min(n_rows)
}

#[cfg(test)]
mod tests;

//! Directories of compressed tensors: the location of each part, and the decoded values.

mod blocks;
mod checked;
mod part;
mod read_block;
mod source;

use crate::digests::Digests;
use crate::output_format::FilePart;
use crate::tensor::TensorInfo;
use crate::{ActivationRounding, InputFile, ManifestHead, ValueGrid};
use briquette_core::block::{RowDecoder, StoredRows};
use briquette_core::encoded::Part;
use briquette_core::{
    Coding, DType, Error, Grouping, Hash128, Mask, OutputAxis, Result, Rows, Storage, bits, log_scale,
};
use read_block::ReadBlock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub use part::{FoundPart, PartBytes};
pub(crate) use read_block::DirNumber;

/// A tensor stored in parts.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Name, type and shape of the original tensor.
    pub info: TensorInfo,
    /// The axis of the layer's outputs.
    pub axis: OutputAxis,
    /// How the tensor is stored.
    pub coding: Coding,
    /// Number of kept elements, if the storage is sparse.
    pub n_kept: usize,
    /// The rounding of the layer's activations; `None` if these stay floats.
    pub activations: Option<ActivationRounding>,
    /// The parts. A list, because a map for each of millions of tensors would need too much memory.
    pub parts: Vec<(Part, PartBytes)>,
}

/// A directory of tensors stored in parts.
#[derive(Debug)]
pub struct StoredDir {
    /// The weight files.
    pub files: Arc<Vec<InputFile>>,
    /// The tensors, in the order of `infos`.
    pub tensors: Vec<StoredTensor>,
    /// Name, type and shape of each tensor.
    pub infos: Vec<TensorInfo>,
    /// The manifest without its tensors, if there is one.
    pub manifest: Option<ManifestHead>,
    /// The fixed grids of layer inputs by the names of weights, if they are stored beside codes and there is no manifest.
    pub input_grids: BTreeMap<String, ValueGrid>,
    /// Digests of what was read so far, if the hashes are known.
    pub(crate) digests: Option<Digests>,
    /// Distinguishes the blocks of this directory from those of others.
    pub(crate) number: DirNumber,
}

/// Buffers that a thread reuses from one block to the next.
#[derive(Debug, Default)]
pub struct DecodeBuffers {
    elements: Vec<u8>,
    bitmask: Vec<u8>,
    offsets: Vec<u8>,
    scale: Vec<u8>,
    zero: Vec<u8>,
    columns: Vec<u8>,
    decoder: Option<RowDecoder>,
    block: ReadBlock,
}

impl StoredTensor {
    /// Returns the row view. A tensor that is not a weight has rows of one byte.
    pub fn rows(&self) -> Rows {
        if self.info.dtype.is_weight() {
            Rows::of(&self.info.shape, self.axis)
        } else {
            Rows::of_bytes(self.info.n_bytes())
        }
    }

    /// Returns the number of bytes per element of the row view's values.
    pub fn value_width(&self) -> usize {
        if self.info.dtype.is_weight() { self.value_dtype().n_bits() / 8 } else { 1 }
    }

    /// Returns the type of the values from [`StoredDir::decode_rows`]: F32 for codes, else the tensor's type.
    pub fn value_dtype(&self) -> DType {
        if self.coding.codes.is_some() { DType::F32 } else { self.info.dtype }
    }

    /// Finds the parts that a format expects. `find` returns the tensor of a file with this name.
    ///
    /// # Errors
    /// Input: a part is missing, or has another type or shape.
    pub fn locate(&mut self, promised: Vec<FilePart>, mut find: impl FnMut(&str) -> Option<FoundPart>) -> Result<()> {
        self.parts.reserve_exact(promised.len());
        for promise in promised {
            let Some(FoundPart { dtype, shape, file, offset }) = find(&promise.info.name) else {
                let message = format!("its part {:?} is missing; the directory is damaged", promise.info.name);
                return Err(Error::input(message).at(format_args!("tensor {:?}", self.info.name)));
            };
            if (dtype, &shape) != (promise.info.dtype, &promise.info.shape) {
                let message = format!(
                    "its part {:?} is {dtype} {shape}, expected {} {}; the directory is damaged",
                    promise.info.name, promise.info.dtype, promise.info.shape
                );
                return Err(Error::input(message).at(format_args!("tensor {:?}", self.info.name)));
            }
            self.parts.extend(promise.holds.parts().map(|(part, layout)| match layout {
                Some(layout) => (part, PartBytes::Foreign { file, offset, layout: Box::new(layout) }),
                None => (part, PartBytes::File { file, offset }),
            }));
        }
        Ok(())
    }

    /// Returns whether the codes need less memory without zeros.
    ///
    /// For entropy-coded codes, this is whether the sparse storage would be the smallest without entropy
    /// coding.
    pub fn is_held_sparse(&self) -> bool {
        match self.coding.storage {
            Storage::Dense => false,
            Storage::Bitmask => true,
            Storage::Entropy { .. } => {
                let Rows { n_rows, n_cols, .. } = self.rows();
                let smallest = Coding::smallest(self.coding.codes, self.info.dtype, n_rows, n_cols, self.n_kept);
                smallest.storage == Storage::Bitmask
            }
        }
    }

    fn damaged(&self, what: &str) -> Error {
        Error::input(format!("{what}; the directory is damaged")).at(format_args!("tensor {:?}", self.info.name))
    }
}

impl StoredDir {
    /// Creates a directory from parts in these files, without a manifest.
    pub fn new(files: impl Into<Arc<Vec<InputFile>>>, tensors: Vec<StoredTensor>) -> Self {
        let infos = tensors.iter().map(|tensor| tensor.info.clone()).collect();
        let files = files.into();
        let (input_grids, number) = (BTreeMap::new(), DirNumber::default());
        Self { files, tensors, infos, manifest: None, input_grids, digests: None, number }
    }

    fn read_part(&self, tensor: &StoredTensor, part: Part, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        match tensor.parts.iter().find(|(kind, _)| *kind == part).map(|(_, bytes)| bytes) {
            Some(PartBytes::File { file, offset }) => {
                out.resize(range.len(), 0);
                let file = self.files.get(*file).ok_or_else(|| tensor.damaged("its file is missing"))?;
                file.read_at(offset + range.start as u64, out)
            }
            Some(PartBytes::Foreign { file, offset, layout }) => {
                out.clear();
                let file = self.files.get(*file).ok_or_else(|| tensor.damaged("its file is missing"))?;
                layout.read(file, *offset, range, out)
            }
            None => Err(tensor.damaged("a part is missing")),
        }
    }

    /// Decodes rows of tensor `index` into `out`, in [`StoredTensor::value_dtype`].
    ///
    /// Values are row-major with outputs as rows, whatever their axis. For codes, `out` must be aligned to 4
    /// bytes.
    ///
    /// # Errors
    /// - Input: the parts contradict each other.
    /// - Input: all values of the tensor were read, and their hash differs from the manifest.
    /// - Io: a file cannot be read.
    ///
    /// # Panics
    /// If `out` does not have the size of the rows.
    pub fn decode_rows(
        &self,
        index: usize,
        range: Range<usize>,
        scratch: &mut DecodeBuffers,
        out: &mut [u8],
    ) -> Result<()> {
        let tensor = &self.tensors[index];
        let n_cols = tensor.rows().n_cols;
        let start = range.start * n_cols * tensor.value_width();
        let first = self.read_elements(index, range.clone(), scratch)?;
        self.read_scales(tensor, range, scratch)?;
        let DecodeBuffers { elements, bitmask, scale, zero, columns, .. } = scratch;
        let stored = StoredRows { elements, first, bitmask, scale, zero, columns };
        let mut decoder = RowDecoder::new(tensor.coding, tensor.info.dtype, n_cols);
        match tensor.coding.codes {
            Some(_) => decoder.decode_codes(&stored, bytemuck::cast_slice_mut(out)),
            None => decoder.decode_floats(&stored, out),
        }
        self.check_values(index, start, out)
    }

    /// Calls `each` with successive strips of the values from [`decode_rows`](Self::decode_rows).
    ///
    /// The second argument marks the last strip of a block of [`Rows::blocks`]. `range` must start at a block.
    /// Hashes are not checked here.
    ///
    /// # Errors
    /// - Input: the parts contradict each other.
    /// - Io: a file cannot be read.
    pub fn for_each_strip(
        &self,
        index: usize,
        range: Range<usize>,
        scratch: &mut DecodeBuffers,
        each: impl FnMut(&[u8], bool),
    ) -> Result<()> {
        let tensor = &self.tensors[index];
        let row_view = tensor.rows();
        let first = self.read_elements(index, range.clone(), scratch)?;
        self.read_scales(tensor, range.clone(), scratch)?;
        let DecodeBuffers { elements, bitmask, scale, zero, columns, decoder, .. } = scratch;
        let stored = StoredRows { elements, first, bitmask, scale, zero, columns };
        let (coding, dtype, n_cols) = (tensor.coding, tensor.info.dtype, row_view.n_cols);
        let again = match decoder.take() {
            Some(used) => used.again(coding, dtype, n_cols),
            None => RowDecoder::new(coding, dtype, n_cols),
        };
        decoder.insert(again).for_each_strip(&stored, range.len(), row_view.rows_per_block(), each);
        Ok(())
    }

    /// Reads the codes of rows of tensor `index` into `out`. The codes of pruned weights are 0.
    ///
    /// # Errors
    /// See [`decode_rows`](Self::decode_rows).
    ///
    /// # Panics
    /// If the tensor has no codes, or `out` does not have the size of the rows.
    pub fn read_codes(
        &self,
        index: usize,
        range: Range<usize>,
        scratch: &mut DecodeBuffers,
        out: &mut [i8],
    ) -> Result<()> {
        let tensor = &self.tensors[index];
        let is_coded = matches!(tensor.coding.storage, Storage::Entropy { .. });
        let first = match is_coded {
            true => self.decode_blocks(index, range.clone(), &mut scratch.block, out).map(|()| 0)?,
            false => self.read_elements(index, range.clone(), scratch)?,
        };
        let is_unchecked = self.is_unchecked(index);
        if is_unchecked {
            self.read_scales(tensor, range.clone(), scratch)?;
        }
        let DecodeBuffers { elements, bitmask, scale, zero, columns, .. } = scratch;
        let mut decoder = RowDecoder::new(tensor.coding, tensor.info.dtype, tensor.rows().n_cols);
        if !is_coded {
            decoder.unpack_codes(&StoredRows { elements, first, bitmask, scale, zero, columns }, out);
        }
        let elements = if is_coded { bytemuck::cast_slice(out) } else { &elements[..] };
        let stored = StoredRows { elements, first, bitmask, scale, zero, columns };
        if is_unchecked { self.check_rows(index, range, &mut decoder, &stored) } else { Ok(()) }
    }

    /// Reads the codes or weights of rows, and their bitmask if they are sparse.
    ///
    /// Returns the number of values in a bit stream before the first value of the rows.
    fn read_elements(&self, index: usize, range: Range<usize>, scratch: &mut DecodeBuffers) -> Result<usize> {
        let tensor = &self.tensors[index];
        let n_cols = tensor.rows().n_cols;
        let width = if tensor.info.dtype.is_weight() { tensor.info.dtype.n_bits() / 8 } else { 1 };
        let n_bits = tensor.coding.codes.map_or(8 * width, |codes| usize::from(codes.bits));
        let of_rows = |row_bytes: usize| range.start * row_bytes..range.end * row_bytes;
        match (tensor.coding.storage, tensor.coding.codes) {
            (Storage::Dense, codes) => {
                let part = if codes.is_some() { Part::Codes } else { Part::Weight };
                let row_bytes = (n_cols * n_bits).div_ceil(8);
                self.read_part(tensor, part, of_rows(row_bytes), &mut scratch.elements)?;
                Ok(0)
            }
            (Storage::Bitmask, codes) => {
                self.read_part(tensor, Part::Bitmask, of_rows(Mask::row_bytes(n_cols)), &mut scratch.bitmask)?;
                self.read_part(tensor, Part::RowOffsets, of_rows(8), &mut scratch.offsets)?;
                let kept = kept_range(tensor, scratch, n_cols)?;
                if codes.is_some_and(|codes| codes.bits < 8) {
                    // Eight codes fill whole bytes at any width, so start at a multiple of eight.
                    let (aligned, end) = (kept.start - kept.start % 8, kept.end);
                    let bytes = aligned * n_bits / 8..(end * n_bits).div_ceil(8);
                    self.read_part(tensor, Part::Values, bytes, &mut scratch.elements)?;
                    Ok(kept.start - aligned)
                } else {
                    let bytes = kept.start * n_bits / 8..kept.end * n_bits / 8;
                    self.read_part(tensor, Part::Values, bytes, &mut scratch.elements)?;
                    Ok(0)
                }
            }
            (Storage::Entropy { .. }, _) => {
                self.read_blocks(index, range, scratch)?;
                Ok(0)
            }
        }
    }

    fn read_scales(&self, tensor: &StoredTensor, range: Range<usize>, scratch: &mut DecodeBuffers) -> Result<()> {
        let Some(codes) = tensor.coding.codes else { return Ok(()) };
        let per_row = codes
            .grouping
            .per_row(tensor.rows().n_cols)
            .ok_or_else(|| tensor.damaged("its groups do not divide the row"))?;
        let range = if codes.grouping == Grouping::Tensor { 0..1 } else { range.start * per_row..range.end * per_row };
        let width = codes.scale.n_bytes();
        self.read_part(tensor, Part::Scale, range.start * width..range.end * width, &mut scratch.scale)?;
        let is_sound = |bytes: &[u8]| match *bytes {
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            [a, b] => half::f16::from_le_bytes([a, b]).to_f32(),
            [byte] => log_scale::of_byte(byte),
            _ => f32::NAN,
        };
        if !scratch.scale.chunks(width).map(is_sound).all(|scale| scale.is_finite() && scale > 0.0) {
            return Err(tensor.damaged("a scale is not a finite number above 0"));
        }
        if codes.grid == briquette_core::GridKind::Asymmetric {
            self.read_part(tensor, Part::Zero, range, &mut scratch.zero)?;
        }
        if codes.has_columns {
            self.read_part(tensor, Part::ColumnScale, 0..tensor.rows().n_cols, &mut scratch.columns)?;
        }
        Ok(())
    }

    /// Returns the hash of a tensor's values in the manifest, if there is one.
    pub fn expected_hash(&self, index: usize) -> Option<Hash128> {
        self.digests.as_ref()?.expected(index)
    }

    /// Returns the hash that the manifest has for a tensor, from the hash `by_rows` of its values row by row.
    pub fn hash_of(&self, index: usize, by_rows: Hash128) -> Hash128 {
        self.digests.as_ref().map_or(by_rows, |digests| digests.hash_of(index, by_rows))
    }

    /// Returns the index of the tensor with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.infos.iter().position(|info| info.name == name)
    }
}

/// Returns the range of kept values of the rows in `scratch`. Bitmask and row offsets must agree.
fn kept_range(tensor: &StoredTensor, scratch: &DecodeBuffers, n_cols: usize) -> Result<Range<usize>> {
    let offset = |bytes: &[u8; 8]| usize::try_from(i64::from_le_bytes(*bytes)).ok();
    let offsets = scratch.offsets.as_chunks::<8>().0;
    let start = match offsets.first() {
        Some(bytes) => offset(bytes).ok_or_else(|| tensor.damaged("a row offset is negative"))?,
        None => 0,
    };
    let mut end = start;
    for (row, bits) in offsets.iter().zip(scratch.bitmask.chunks(Mask::row_bytes(n_cols).max(1))) {
        if offset(row) != Some(end) {
            return Err(tensor.damaged("its row offsets disagree with its bitmask"));
        }
        let spare = bits.last().filter(|_| !n_cols.is_multiple_of(8)).is_some_and(|last| last >> (n_cols % 8) != 0);
        if spare {
            return Err(tensor.damaged("its bitmask has bits beyond the end of a row"));
        }
        end = end.saturating_add(bits::count_ones(bits));
    }
    if end > tensor.n_kept {
        return Err(tensor.damaged("its bitmask keeps more values than are stored"));
    }
    Ok(start..end)
}

//! Encoding and decoding a few rows at a time, so that a tensor is never in memory as a whole.

use crate::coding::{Codes, Coding, Part, Parts, ScaleType, Storage};
use crate::{Affine, ColumnScales, DType, GridKind, Grouping, Mask, Rows, bits, log_scale, simd};
use std::ops::Range;

/// Appends rows to the parts of a tensor. One encoder takes consecutive rows.
#[derive(Debug)]
pub struct RowEncoder {
    coding: Coding,
    width: usize,
    n_values: usize,
    packer: bits::BitPacker,
    scratch: Vec<u8>,
    parts: Parts,
}

impl RowEncoder {
    /// Returns an encoder that empties `parts` and appends rows to them.
    ///
    /// `n_values` is the number of kept elements in earlier rows of the tensor. Kept codes below 8 bits form
    /// one stream of bits across rows, so they have to be encoded in order from the tensor's first row.
    pub fn new(coding: Coding, dtype: DType, n_values: usize, mut parts: Parts) -> Self {
        parts.clear();
        let (width, packer) = (dtype.n_bits() / 8, bits::BitPacker::default());
        Self { coding, width, n_values, packer, scratch: Vec::new(), parts }
    }

    /// Returns the parts encoded so far. A caller that writes a part early empties it.
    pub fn parts_mut(&mut self) -> &mut Parts {
        &mut self.parts
    }

    /// Returns the parts, which are complete after [`finish`](Self::finish).
    pub fn into_parts(self) -> Parts {
        self.parts
    }

    /// Returns whether one encoder must encode all rows in order in this coding.
    pub fn is_one_stream(coding: Coding) -> bool {
        coding.storage == Storage::Bitmask && coding.codes.is_some_and(|codes| codes.bits < 8)
    }

    /// Adds a row of floats in the tensor's own type, with dropped elements already 0.
    ///
    /// A sparse row needs `keep`, its mask bits.
    ///
    /// # Panics
    /// If `keep` is missing for a sparse row.
    pub fn push_floats(&mut self, row: &[u8], keep: Option<&[u8]>) {
        match self.coding.storage {
            Storage::Dense | Storage::Entropy { .. } => self.parts[Part::Weight].extend_from_slice(row),
            Storage::Bitmask => {
                let keep = keep.expect("a sparse row has bits");
                simd::compress(row, self.width, keep, &mut self.parts[Part::Values]);
                self.push_bits(keep);
            }
        }
    }

    /// Adds a row of codes.
    ///
    /// A sparse row needs `keep`, its mask bits. In a dense row, dropped codes are already the zero point.
    /// Codes to be entropy-coded stay one byte each until their block is complete.
    ///
    /// # Panics
    /// If `keep` is missing for a sparse row.
    pub fn push_codes(&mut self, codes: &[i8], keep: Option<&[u8]>) {
        let n_bits = self.coding.codes.map_or(8, |codes| codes.bits);
        match self.coding.storage {
            Storage::Dense if n_bits == 8 => self.parts[Part::Codes].extend_from_slice(bytemuck::cast_slice(codes)),
            Storage::Dense => bits::pack(codes, n_bits, &mut self.parts[Part::Codes]),
            Storage::Entropy { .. } => self.parts[Part::Blocks].extend_from_slice(bytemuck::cast_slice(codes)),
            Storage::Bitmask => {
                let keep = keep.expect("a sparse row has bits");
                if n_bits == 8 {
                    simd::compress8(bytemuck::cast_slice(codes), keep, &mut self.parts[Part::Values]);
                } else {
                    self.scratch.clear();
                    simd::compress8(bytemuck::cast_slice(codes), keep, &mut self.scratch);
                    self.packer.push(bytemuck::cast_slice(&self.scratch), n_bits, &mut self.parts[Part::Values]);
                }
                self.push_bits(keep);
            }
        }
    }

    /// Adds the scales (and zero points) of a row, or the single scale of the tensor.
    pub fn push_scales(&mut self, affines: &[Affine]) {
        let Some(codes) = self.coding.codes else { return };
        for affine in affines {
            match codes.scale {
                ScaleType::F32 => self.parts[Part::Scale].extend_from_slice(&affine.scale.to_le_bytes()),
                ScaleType::F16 => {
                    self.parts[Part::Scale].extend_from_slice(&half::f16::from_f32(affine.scale).to_le_bytes());
                }
                ScaleType::Log8 => self.parts[Part::Scale].push(log_scale::nearest_byte(affine.scale)),
            }
            if codes.grid == GridKind::Asymmetric {
                self.parts[Part::Zero].push(affine.zero as u8);
            }
        }
    }

    /// Adds the scales of columns, once for the tensor.
    pub fn push_columns(&mut self, columns: &ColumnScales) {
        if self.coding.codes.is_some_and(|codes| codes.has_columns) {
            self.parts[Part::ColumnScale].extend_from_slice(columns.bytes());
        }
    }

    /// Completes the last byte of a bit stream.
    pub fn finish(&mut self) {
        self.packer.finish(&mut self.parts[Part::Values]);
    }

    fn push_bits(&mut self, keep: &[u8]) {
        self.parts[Part::RowOffsets].extend_from_slice(&(self.n_values as i64).to_le_bytes());
        self.parts[Part::Bitmask].extend_from_slice(keep);
        self.n_values += bits::count_ones(keep);
    }
}

/// The stored bytes of consecutive rows.
#[derive(Debug, Clone, Copy)]
pub struct StoredRows<'a> {
    /// Weights, codes or kept values of these rows. A bit stream starts at a whole byte; entropy-coded codes
    /// are a byte each.
    pub elements: &'a [u8],
    /// Number of codes in `elements` that belong to earlier rows: 0 except in a bit stream.
    pub first: usize,
    /// The mask bits of these rows, if storage is sparse.
    pub bitmask: &'a [u8],
    /// The scales of these rows, or the single scale of the tensor.
    pub scale: &'a [u8],
    /// The zero points of these rows, in the same order as the scales.
    pub zero: &'a [u8],
    /// The scales of columns; empty if there are none.
    pub columns: &'a [u8],
}

/// Decodes stored rows into values.
#[derive(Debug)]
pub struct RowDecoder {
    coding: Coding,
    width: usize,
    n_cols: usize,
    packed: Vec<i8>,
    codes: Vec<i8>,
    values: Vec<f32>,
    strip: Vec<f32>,
    columns: Option<ColumnScales>,
}

impl RowDecoder {
    /// Returns a decoder for rows of `n_cols` elements; `dtype` is the type of elements that are not codes.
    pub fn new(coding: Coding, dtype: DType, n_cols: usize) -> Self {
        let (packed, codes, values, strip) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { coding, width: 0, n_cols, packed, codes, values, strip, columns: None }.again(coding, dtype, n_cols)
    }

    /// Returns a decoder for rows of another tensor that reuses the buffers of this one.
    pub fn again(mut self, coding: Coding, dtype: DType, n_cols: usize) -> Self {
        (self.coding, self.width, self.n_cols) = (coding.as_read(), dtype.n_bits() / 8, n_cols);
        // Rows of floats are decoded in place.
        let n_coded = if coding.codes.is_some() { n_cols } else { 0 };
        self.codes.resize(n_coded, 0);
        self.values.resize(n_coded, 0.0);
        self
    }

    /// Fills `out` with rows stored as floats, in their own type.
    ///
    /// # Panics
    /// If the stored bytes do not make up as many rows as fit in `out`.
    pub fn decode_floats(&mut self, stored: &StoredRows, out: &mut [u8]) {
        match self.coding.storage {
            Storage::Dense | Storage::Entropy { .. } => out.copy_from_slice(stored.elements),
            Storage::Bitmask if self.n_cols > 0 => {
                let n_rows = stored.bitmask.len() / Mask::row_bytes(self.n_cols);
                self.expand_rows(stored, 0..n_rows, 0, out);
            }
            Storage::Bitmask => {}
        }
    }

    /// Fills `out` with the dequantized values of rows stored as codes.
    ///
    /// # Panics
    /// - If the stored bytes do not make up as many rows as fit in `out`.
    /// - If the tensor has no codes.
    pub fn decode_codes(&mut self, stored: &StoredRows, out: &mut [f32]) {
        let codes = self.coding.codes.expect("the tensor has codes");
        if self.n_cols == 0 || out.is_empty() {
            return;
        }
        self.read_columns(codes, stored);
        let mut next = stored.first;
        for (row, out) in out.chunks_mut(self.n_cols).enumerate() {
            self.decode_row(codes, stored, row, &mut next, out);
        }
    }

    fn read_columns(&mut self, codes: Codes, stored: &StoredRows) {
        self.columns = codes.has_columns.then(|| ColumnScales::of_bytes(stored.columns));
    }

    fn decode_row(&mut self, codes: Codes, stored: &StoredRows, row: usize, next: &mut usize, out: &mut [f32]) {
        let per_row = codes.grouping.per_row(self.n_cols).expect("the group size divides the row");
        let keep = self.read_row(codes, stored, row, next);
        let first_group = if codes.grouping == Grouping::Tensor { 0 } else { row * per_row };
        let group_size = self.n_cols / per_row;
        for (group, values) in out.chunks_mut(group_size).enumerate() {
            let affine = read_affine(codes, stored.scale, stored.zero, first_group + group);
            simd::dequantize(&self.codes[group * group_size..][..group_size], affine, values);
        }
        self.columns.iter().for_each(|columns| columns.multiply(out));
        if let (Some(keep), GridKind::Asymmetric) = (keep, codes.grid) {
            self.values.copy_from_slice(out);
            simd::copy_kept(&self.values, keep, out);
        }
    }

    /// Decodes `n_rows` rows strip by strip, and calls `each` with the bytes of each strip's values.
    ///
    /// The values are those of [`decode_codes`](Self::decode_codes) or [`decode_floats`](Self::decode_floats).
    /// A strip never crosses a multiple of `block_rows`; the second argument of `each` is true for the last
    /// strip of a block.
    ///
    /// # Panics
    /// See [`decode_codes`](Self::decode_codes) and [`decode_floats`](Self::decode_floats).
    pub fn for_each_strip(
        &mut self,
        stored: &StoredRows,
        n_rows: usize,
        block_rows: usize,
        mut each: impl FnMut(&[u8], bool),
    ) {
        let rows = Rows::plain(n_rows, self.n_cols);
        let strip_rows = rows.rows_per_strip();
        let row_bytes = match self.coding.storage {
            // A tensor that is not a weight has rows of one byte, whatever its type.
            Storage::Dense | Storage::Entropy { .. } => stored.elements.len() / n_rows.max(1),
            Storage::Bitmask => self.n_cols * self.width,
        };
        let (mut next, mut values) = (stored.first, std::mem::take(&mut self.strip));
        if let Some(codes) = self.coding.codes {
            self.read_columns(codes, stored);
        }
        for start in (0..n_rows).step_by(block_rows) {
            let end = (start + block_rows).min(n_rows);
            for first in (start..end).step_by(strip_rows) {
                let last = (first + strip_rows).min(end);
                if let (Some(codes), true) = (self.coding.codes, self.n_cols > 0) {
                    values.resize((last - first) * self.n_cols, 0.0);
                    for (row, out) in (first..last).zip(values.chunks_mut(self.n_cols)) {
                        self.decode_row(codes, stored, row, &mut next, out);
                    }
                    each(bytemuck::cast_slice(&values), last == end);
                } else if self.coding.storage == Storage::Dense {
                    each(&stored.elements[first * row_bytes..last * row_bytes], last == end);
                } else {
                    values.resize(((last - first) * row_bytes).div_ceil(4), 0.0);
                    let out = &mut bytemuck::cast_slice_mut(&mut values)[..(last - first) * row_bytes];
                    next += self.expand_rows(stored, first..last, next, out);
                    each(out, last == end);
                }
            }
        }
        self.strip = values;
    }

    /// Fills `out` with sparse rows of floats and returns the number of values used.
    ///
    /// `next` is the index of the first kept value of these rows.
    fn expand_rows(&self, stored: &StoredRows, rows: Range<usize>, next: usize, out: &mut [u8]) -> usize {
        let (mut used, mask_bytes) = (0, Mask::row_bytes(self.n_cols));
        for (row, out) in rows.zip(out.chunks_mut((self.n_cols * self.width).max(1))) {
            let keep = &stored.bitmask[row * mask_bytes..(row + 1) * mask_bytes];
            used += simd::expand(&stored.elements[(next + used) * self.width..], self.width, keep, out);
        }
        used
    }

    /// Fills `out` with the codes of rows stored as codes; the code of a dropped element is 0.
    ///
    /// # Panics
    /// See [`decode_codes`](Self::decode_codes).
    pub fn unpack_codes(&mut self, stored: &StoredRows, out: &mut [i8]) {
        let codes = self.coding.codes.expect("the tensor has codes");
        let mut next = stored.first;
        for (row, out) in out.chunks_mut(self.n_cols.max(1)).enumerate() {
            self.read_row(codes, stored, row, &mut next);
            out.copy_from_slice(&self.codes);
        }
    }

    /// Reads the codes of a row and returns the row's mask bits if storage is sparse.
    fn read_row<'a>(
        &mut self,
        codes: Codes,
        stored: &StoredRows<'a>,
        row: usize,
        next: &mut usize,
    ) -> Option<&'a [u8]> {
        match self.coding.storage {
            Storage::Dense | Storage::Entropy { .. } => {
                self.read_dense(codes, stored.elements, row);
                None
            }
            Storage::Bitmask => {
                let width = Mask::row_bytes(self.n_cols);
                let keep = &stored.bitmask[row * width..(row + 1) * width];
                *next += self.read_sparse(codes, stored.elements, *next, keep);
                Some(keep)
            }
        }
    }

    fn read_dense(&mut self, codes: Codes, elements: &[u8], row: usize) {
        let row_bytes = bits::packed_bytes(self.n_cols, codes.bits);
        let packed = &elements[row * row_bytes..(row + 1) * row_bytes];
        match codes.bits {
            8 => self.codes.copy_from_slice(bytemuck::cast_slice(packed)),
            n_bits => bits::unpack(packed, 0, n_bits, &mut self.codes),
        }
    }

    fn read_sparse(&mut self, codes: Codes, elements: &[u8], next: usize, keep: &[u8]) -> usize {
        let row = bytemuck::cast_slice_mut(&mut self.codes);
        if codes.bits == 8 {
            return simd::expand8(&elements[next..], keep, row);
        }
        self.packed.resize(bits::count_ones(keep), 0);
        bits::unpack(elements, next, codes.bits, &mut self.packed);
        simd::expand8(bytemuck::cast_slice(&self.packed), keep, row)
    }
}

/// Returns the scale (and zero point) at `index` of stored bytes.
///
/// # Panics
/// If fewer than `index + 1` are stored.
pub fn read_affine(codes: Codes, scale: &[u8], zero: &[u8], index: usize) -> Affine {
    let scale = match codes.scale {
        ScaleType::F32 => {
            let bytes = &scale[4 * index..4 * index + 4];
            f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        }
        ScaleType::F16 => half::f16::from_le_bytes([scale[2 * index], scale[2 * index + 1]]).to_f32(),
        ScaleType::Log8 => log_scale::of_byte(scale[index]),
    };
    let zero = if codes.grid == GridKind::Asymmetric { zero[index] as i8 } else { 0 };
    Affine { scale, zero }
}

//! Reads tensors in pieces of limited size.

use crate::context::Stop;
pub use crate::piece_sizes::PieceSizes;
use crate::plan::TensorPlan;
use crate::treatment::Cut;
use briquette_core::encoded::CodeBlocks;
use briquette_core::{Affine, ColumnScales, DType, Error, Remedy, Result, Rows, rows, simd};
use briquette_formats::TensorSource;
use briquette_formats::io::tensor::read_outputs;
use std::ops::Range;

impl PieceSizes {
    /// Returns the row ranges in which a tensor is read.
    ///
    /// There is one range for a small tensor, and for a tensor that is needed as a whole.
    pub fn pieces_of(&self, tensor: &TensorPlan, reads_ranges: bool) -> Vec<Range<usize>> {
        let rows = tensor.rows();
        if rows.n_elements() == 0 {
            return Vec::new();
        }
        let is_one_group = tensor.quant.is_some_and(|quant| quant.spec.needs_whole());
        let n_bytes = rows.n_elements() * tensor.width();
        let is_uncut = rows.axis.is_turned() && !self.cuts_turned;
        if !reads_ranges || is_one_group || is_uncut || n_bytes <= self.whole_bytes {
            return std::iter::once(0..rows.n_rows).collect();
        }
        let block = rows.rows_per_block();
        let n_blocks = (self.piece_bytes / (block * rows.n_cols * tensor.width())).max(1);
        // No block of codes is split between two pieces.
        let step = if tensor.blocks.is_some() {
            block * n_blocks.next_multiple_of(CodeBlocks::OF_ROW_BLOCKS)
        } else {
            block * n_blocks
        };
        (0..rows.n_rows).step_by(step).map(|start| start..(start + step).min(rows.n_rows)).collect()
    }
}

/// Returns the row ranges of the usual size in which a tensor is read: see [`PieceSizes::pieces_of`].
pub fn pieces_of(tensor: &TensorPlan, reads_ranges: bool) -> Vec<Range<usize>> {
    PieceSizes::LARGE.pieces_of(tensor, reads_ranges)
}

/// Divides a piece into row ranges of one block, which fit the cache of a core.
///
/// If the source or the axis requires the whole piece, it is one range.
pub fn sips_of(tensor: &TensorPlan, reads_ranges: bool, piece: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let is_cut = reads_ranges && !tensor.rows().axis.is_turned();
    let step = if is_cut { tensor.rows().rows_per_block() } else { piece.len().max(1) };
    let end = piece.end;
    piece.clone().step_by(step).map(move |start| start..(start + step).min(end))
}

/// Bytes that are read between two checks for a stop request.
const SLICE_BYTES: usize = 32 << 20;

/// Bytes with the alignment of any element type, reused for all pieces.
#[derive(Debug, Default)]
pub struct PieceBuffer(Vec<u64>);

impl PieceBuffer {
    /// Returns the first `n_bytes`.
    pub fn bytes_mut(&mut self, n_bytes: usize) -> &mut [u8] {
        let n = n_bytes.div_ceil(8);
        if self.0.len() < n {
            // Growth by doubling would take up to twice the memory.
            self.0.reserve_exact(n - self.0.len());
            self.0.resize(n, 0);
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..n_bytes]
    }

    /// Returns the first `n_bytes`, as last written.
    pub fn bytes(&self, n_bytes: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..n_bytes]
    }
}

/// Reads pieces of tensors as rows of outputs, whatever the axis of the outputs.
#[derive(Debug, Default)]
pub struct PieceReader {
    rows: PieceBuffer,
    own_order: PieceBuffer,
    values: Vec<f32>,
}

/// A piece of a tensor in memory.
#[derive(Debug)]
pub struct Piece<'a> {
    /// The elements of the rows, in the tensor's own type.
    pub bytes: &'a [u8],
    /// The first row of the piece.
    pub first_row: usize,
    /// The scales of these rows in the source, if they are reused.
    pub affines: Vec<Affine>,
    /// The scales of the tensor's columns, if it has any.
    pub columns: Option<ColumnScales>,
    /// The mask bits of these rows in the source, if its mask is reused.
    pub keep: Vec<u8>,
    /// The updated weights of these rows, if the source has any; else empty.
    pub updated: Vec<f32>,
    /// Buffer for the rows as f32, if the source has another type.
    values: &'a mut Vec<f32>,
    dtype: DType,
    rows: Rows,
}

impl PieceReader {
    /// Returns a buffer that is free until the next piece is read.
    pub fn spare(&mut self) -> &mut PieceBuffer {
        &mut self.own_order
    }

    /// Reads a range of rows.
    ///
    /// # Errors
    /// Interrupted: a stop was requested. Also see [`TensorSource::read`].
    pub fn read<'a>(
        &'a mut self,
        source: &dyn TensorSource,
        tensor: &TensorPlan,
        range: &Range<usize>,
        stop: &Stop,
    ) -> Result<Piece<'a>> {
        let (rows, width) = (tensor.rows(), tensor.width());
        let n_bytes = range.len() * rows.n_cols * width;
        if rows.axis.is_turned() {
            let own_order = self.own_order.bytes_mut(n_bytes);
            if range.len() == rows.n_rows {
                read_slices(source, tensor.index(), 0, own_order, stop)?;
            } else {
                stop.check()?;
                read_outputs(source, tensor.index(), rows, range, own_order)?;
            }
            let of_piece = Rows { n_rows: range.len(), ..rows };
            of_piece.turn(self.own_order.bytes(n_bytes), self.rows.bytes_mut(n_bytes), width);
        } else {
            let start = range.start * rows.n_cols * width;
            read_slices(source, tensor.index(), start, self.rows.bytes_mut(n_bytes), stop)?;
        }
        let bytes = self.rows.bytes(n_bytes);
        let has_scales = tensor.quant.is_some_and(|quant| quant.is_given);
        let has_mask = tensor.prune.is_some_and(|prune| prune.cut == Cut::Given);
        let affines = if has_scales { source.affines(tensor.index(), range.clone())? } else { Vec::new() };
        let keep = if has_mask { source.keep(tensor.index(), range.clone())? } else { Vec::new() };
        let updated = if tensor.is_moved { source.updated(tensor.index(), range.clone())? } else { Vec::new() };
        let has_columns = tensor.quant.is_some_and(|quant| quant.spec.has_columns);
        let columns = if has_columns { source.columns(tensor.index())? } else { None };
        let (values, dtype) = (&mut self.values, tensor.info.dtype);
        Ok(Piece { bytes, first_row: range.start, affines, columns, keep, updated, values, dtype, rows })
    }
}

/// Reads bytes of a tensor, with checks for a stop request in between, as a piece may have gigabytes.
fn read_slices(source: &dyn TensorSource, index: usize, start: usize, out: &mut [u8], stop: &Stop) -> Result<()> {
    if !source.reads_ranges(index) {
        return source.read(index, start, out);
    }
    for (i, slice) in out.chunks_mut(SLICE_BYTES).enumerate() {
        stop.check()?;
        source.read(index, start + i * SLICE_BYTES, slice)?;
    }
    Ok(())
}

/// A block or strip of a piece: its bytes and its values as f32.
#[derive(Debug, Clone, Copy)]
pub struct Strip<'a> {
    /// The first row, counted from the start of the tensor.
    pub first_row: usize,
    /// The elements of the rows, in the tensor's own type.
    pub bytes: &'a [u8],
    /// The elements as f32.
    pub values: &'a [f32],
    /// The updated weights of these rows, if there are any; else empty.
    pub updated: &'a [f32],
}

impl<'a> Strip<'a> {
    /// Returns the weights to decide on: the updated ones if there are any, else the source's.
    pub fn weights(&self) -> &'a [f32] {
        if self.updated.is_empty() { self.values } else { self.updated }
    }

    /// Adds this strip's part of the updated weights of a piece that begins with row `first_row`.
    fn with_updated(self, updated: &'a [f32], first_row: usize, rows: Rows) -> Self {
        let start = (self.first_row - first_row) * rows.n_cols;
        let updated = if updated.is_empty() { updated } else { &updated[start..start + self.values.len()] };
        Self { updated, ..self }
    }
}

impl Piece<'_> {
    /// Returns the number of elements of the piece.
    pub fn n_elements(&self) -> usize {
        self.bytes.len() * 8 / self.dtype.n_bits().max(1)
    }

    /// Calls `each` for every block of the piece, in order.
    ///
    /// # Errors
    /// The first error of `each`.
    pub fn for_each_block(&mut self, mut each: impl FnMut(Strip) -> Result<()>) -> Result<()> {
        let row_bytes = self.rows.n_cols * self.dtype.n_bits() / 8;
        let block_rows = self.rows.rows_per_block();
        for (i, bytes) in self.bytes.chunks(block_rows * row_bytes).enumerate() {
            let first_row = self.first_row + i * block_rows;
            each(block_of(first_row, bytes, self.dtype, self.values).with_updated(
                &self.updated,
                self.first_row,
                self.rows,
            ))?;
        }
        Ok(())
    }

    /// Calls `each` for every strip of the piece, in order. The second argument marks the last strip of a
    /// block.
    ///
    /// # Errors
    /// The first error of `each`.
    pub fn for_each_strip(&mut self, mut each: impl FnMut(Strip, bool) -> Result<()>) -> Result<()> {
        let row_bytes = self.rows.n_cols * self.dtype.n_bits() / 8;
        let (block_rows, strip_rows) = (self.rows.rows_per_block(), self.rows.rows_per_strip());
        for (i, block) in self.bytes.chunks(block_rows * row_bytes).enumerate() {
            let strips = block.chunks(strip_rows * row_bytes);
            let n_strips = strips.len();
            for (j, bytes) in strips.enumerate() {
                let first_row = self.first_row + i * block_rows + j * strip_rows;
                let strip = block_of(first_row, bytes, self.dtype, self.values);
                each(strip.with_updated(&self.updated, self.first_row, self.rows), j + 1 == n_strips)?;
            }
        }
        Ok(())
    }
}

/// Creates a block or strip of these bytes. Unless they are f32, they are converted into `values`.
fn block_of<'a>(first_row: usize, bytes: &'a [u8], dtype: DType, values: &'a mut Vec<f32>) -> Strip<'a> {
    if dtype == DType::F32 {
        return Strip { first_row, bytes, values: bytemuck::cast_slice(bytes), updated: &[] };
    }
    values.resize(bytes.len() * 8 / dtype.n_bits(), 0.0);
    rows::to_f32(bytes, dtype, values);
    Strip { first_row, bytes, values, updated: &[] }
}

/// Refuses a block with NaN or infinity.
///
/// An unchanged tensor keeps its own type, so its f64 values may exceed the range of f32. In a changed tensor,
/// such values are refused too.
///
/// # Errors
/// Refused: a value is NaN or infinite. The error names the first one.
pub fn check_finite(tensor: &TensorPlan, block: &Strip) -> Result<()> {
    if simd::max_magnitude(block.values) < f32::INFINITY.to_bits() {
        return Ok(());
    }
    let own = |place: usize| match tensor.info.dtype {
        DType::F64 => block.bytes.as_chunks::<8>().0.get(place).map_or(f64::NAN, |bytes| f64::from_le_bytes(*bytes)),
        _ => f64::from(block.values[place]),
    };
    let is_bad = |place: &usize| !block.values[*place].is_finite() && (tensor.is_changed() || !own(*place).is_finite());
    let Some(first) = (0..block.values.len()).find(is_bad) else { return Ok(()) };
    let (row, col, value) = (block.first_row + first / tensor.rows().n_cols, first % tensor.rows().n_cols, own(first));
    let (found, what) = match value.is_finite() {
        true => (format!("{value:e}"), ", which does not fit f32; exclude the tensor"),
        false => (value.to_string(), "; fix the checkpoint"),
    };
    let message = format!("found {found} at row {row}, column {col}{what}, or keep such tensors unchanged");
    Err(Error::refused(message).at(tensor.culprit()).with_remedy(Remedy::AllowNonfinite))
}

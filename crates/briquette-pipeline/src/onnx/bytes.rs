//! The bytes of weights as ONNX stores them, read from a checkpoint piece by piece.

use super::pack::{ByteSink, copy_columns, packed, paired, transpose_in_parts, transposed, transposed_values};
use super::weight_values::CodeSource;
use briquette_core::rows::{from_f32, to_f32};
use briquette_core::{DType, Error, GridKind, Grouping, Result};
use briquette_formats::onnx_write::OnnxType;
use briquette_formats::stored::DecodeBuffers;
use briquette_formats::{Checkpoint, StoredDir, StoredTensor, TensorInfo, TensorSource};
use briquette_graph::to_onnx::{OnnxNetwork, OnnxWeight, WeightBytes};
use briquette_graph::{Graph, WeightId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The bytes that are read at once, if a tensor can be read in pieces.
const PIECE: usize = 8 << 20;

/// Reads weights of a graph from its checkpoint.
pub(super) struct WeightReader<'a> {
    checkpoint: &'a Checkpoint,
    graph: &'a Graph,
    /// The place of each tensor in the checkpoint.
    places: BTreeMap<&'a str, usize>,
    codes: Option<&'a dyn CodeSource>,
}

impl<'a> WeightReader<'a> {
    /// Finds the tensors of a network.
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        OnnxNetwork { graph, weights, .. }: &'a OnnxNetwork,
        codes: Option<&'a dyn CodeSource>,
    ) -> Result<Self> {
        let tensors = checkpoint.tensors();
        let places: BTreeMap<&str, usize> =
            tensors.iter().enumerate().map(|(i, info)| (info.name.as_str(), i)).collect();
        let names = weights.iter().map(|own| graph.weights[own.weight.0].name.as_str());
        if let Some(name) = names.into_iter().find(|name| !places.contains_key(name)) {
            return Err(Error::bug("the checkpoint lacks this tensor").at(name));
        }
        Ok(Self { checkpoint, graph, places, codes })
    }

    /// Passes all bytes of a streamed tensor to `to`, in order. Floats get the type that the tensor has in the network.
    pub(super) fn stream(
        &self,
        OnnxWeight { weight, bytes }: OnnxWeight,
        dtype: OnnxType,
        to: &mut ByteSink,
    ) -> Result<()> {
        let (name, float) = (&self.graph.weights[weight.0].name, float_of(dtype));
        if let Some(codes) = self.codes
            && codes.stream(name, bytes, to)?
        {
            return Ok(());
        }
        let passed = match bytes {
            WeightBytes::Stored => self.stored_elements(weight, dtype, to),
            WeightBytes::Floats | WeightBytes::HalfFloats => self.floats(weight, float, to),
            WeightBytes::TransposedFloats => self.transposed_floats(weight, float, to),
            WeightBytes::Codes => self.codes(weight, to),
            WeightBytes::TransposedCodes => self.transposed_codes(weight, to),
            WeightBytes::RowScales | WeightBytes::HalfRowScales => self.row_scales(weight, float, to),
            WeightBytes::Blocks => self.blocks(weight, to),
            WeightBytes::TransposedBlocks => self.transposed_blocks(weight, to),
            WeightBytes::TransposedBlockScales => self.transposed_block_scales(weight, float, to),
            WeightBytes::TransposedBlockZeros => self.transposed_block_zeros(weight, to),
            WeightBytes::BlockScales => self.block_scales(weight, float, to),
            WeightBytes::BlockZeros => self.block_zeros(weight, to),
            WeightBytes::InputScales => self.input_scales(weight, to),
        };
        passed.map_err(|error| if error.message.contains(name.as_str()) { error } else { error.at(name) })
    }

    fn tensor(&self, weight: WeightId) -> (usize, &TensorInfo) {
        let index = self.places[self.graph.weights[weight.0].name.as_str()];
        (index, &self.checkpoint.tensors()[index])
    }

    fn stored(&self, weight: WeightId) -> Result<(usize, &StoredDir, &StoredTensor)> {
        let (index, _) = self.tensor(weight);
        let stored = self.checkpoint.stored().ok_or_else(|| Error::bug("the tensor has no codes"))?;
        Ok((index, stored, &stored.tensors[index]))
    }

    /// The elements of a tensor of an ONNX file: floats may have another type in the checkpoint, as after a cast.
    fn stored_elements(&self, weight: WeightId, dtype: OnnxType, to: &mut ByteSink) -> Result<()> {
        let (index, info) = self.tensor(weight);
        match OnnxType::try_from(info.dtype)? == dtype {
            true => self.pieces(index, info, &mut |bytes| to(bytes)),
            false => self.floats(weight, float_of(dtype), to),
        }
    }

    fn floats(&self, weight: WeightId, float: DType, to: &mut ByteSink) -> Result<()> {
        let (index, info) = self.tensor(weight);
        self.pieces(index, info, &mut |bytes| to(&converted(bytes, info.dtype, float)?))
    }

    /// Reads a tensor, in pieces if it can be.
    fn pieces(&self, index: usize, info: &TensorInfo, each: &mut ByteSink) -> Result<()> {
        let (n_bytes, width) = (info.n_bytes(), info.dtype.n_bits() / 8);
        let step = if self.checkpoint.reads_ranges(index) { PIECE / width * width } else { n_bytes.max(1) };
        let mut bytes = Vec::new();
        for start in (0..n_bytes).step_by(step) {
            bytes.resize(step.min(n_bytes - start), 0);
            self.checkpoint.read(index, start, &mut bytes)?;
            each(&bytes)?;
        }
        Ok(())
    }

    fn transposed_floats(&self, weight: WeightId, float: DType, to: &mut ByteSink) -> Result<()> {
        let (index, info) = self.tensor(weight);
        let (n_rows, n_cols) = (info.shape.0[0], info.shape.0.get(1).copied().unwrap_or(1));
        let width = info.dtype.n_bits() / 8;
        if !self.checkpoint.reads_ranges(index) {
            let mut bytes = vec![0; info.n_bytes()];
            self.checkpoint.read(index, 0, &mut bytes)?;
            return to(&converted(&transposed(&bytes, &[n_rows, n_cols], width), info.dtype, float)?);
        }
        let fill = |columns: Range<usize>, out: &mut [u8]| match self.checkpoint.stored().is_some() {
            true => {
                self.decoded_columns(index, [n_rows, n_cols * width], columns.start * width..columns.end * width, out)
            }
            false => {
                let rows = out.chunks_mut((columns.len() * width).max(1)).enumerate();
                let start = |row: usize| (row * n_cols + columns.start) * width;
                rows.into_iter().try_for_each(|(row, out)| self.checkpoint.read(index, start(row), out))
            }
        };
        transpose_in_parts([n_rows, n_cols], width, &mut { fill }, &mut |part| to(&converted(part, info.dtype, float)?))
    }

    /// Reads bytes `columns` of every row, of a tensor whose rows are decoded many at once.
    fn decoded_columns(
        &self,
        index: usize,
        [n_rows, row_bytes]: [usize; 2],
        columns: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        let (step, mut rows) = ((PIECE / row_bytes.max(1)).max(1), Vec::new());
        for start in (0..n_rows).step_by(step) {
            let n = step.min(n_rows - start);
            rows.resize(n * row_bytes, 0);
            self.checkpoint.read(index, start * row_bytes, &mut rows)?;
            copy_columns(&rows, row_bytes, &columns, &mut out[start * columns.len()..(start + n) * columns.len()]);
        }
        Ok(())
    }

    /// Passes the codes of rows to `each`, some rows at once.
    fn for_each_rows(&self, weight: WeightId, each: &mut dyn FnMut(&[i8]) -> Result<()>) -> Result<()> {
        for_each_code_rows(self.checkpoint, self.tensor(weight).0, &mut |_, codes| each(codes))
    }

    fn codes(&self, weight: WeightId, to: &mut ByteSink) -> Result<()> {
        self.for_each_rows(weight, &mut |codes| to(bytemuck::cast_slice(codes)))
    }

    fn transposed_codes(&self, weight: WeightId, to: &mut ByteSink) -> Result<()> {
        let rows = self.stored(weight)?.2.rows();
        let fill = |columns: Range<usize>, out: &mut [u8]| {
            let mut done = 0;
            self.for_each_rows(weight, &mut |codes| {
                let n = codes.len() / rows.n_cols.max(1) * columns.len();
                copy_columns(bytemuck::cast_slice(codes), rows.n_cols, &columns, &mut out[done..done + n]);
                done += n;
                Ok(())
            })
        };
        transpose_in_parts([rows.n_rows, rows.n_cols], 1, &mut { fill }, to)
    }

    /// The scale of each row.
    fn row_scales(&self, weight: WeightId, dtype: DType, to: &mut ByteSink) -> Result<()> {
        let (index, stored, _) = self.stored(weight)?;
        to(&bytes_of(&stored.scales(index)?, dtype))
    }

    /// The scale of each column, in f32.
    fn input_scales(&self, weight: WeightId, to: &mut ByteSink) -> Result<()> {
        let columns = self.checkpoint.columns(self.tensor(weight).0)?;
        let columns = columns.ok_or_else(|| Error::bug("the checkpoint has no scales of columns"))?;
        to(&bytes_of(columns.values(), DType::F32))
    }

    /// Codes without sign, packed with the first in the low bits: see `MatMulNBits`.
    fn blocks(&self, weight: WeightId, to: &mut ByteSink) -> Result<()> {
        let (_, _, tensor) = self.stored(weight)?;
        let bits = tensor.coding.codes.map_or(8, |codes| codes.bits);
        self.for_each_rows(weight, &mut |codes| to(&packed(codes, bits)))
    }

    /// Codes with a sign, `[in, out]`.
    fn transposed_blocks(&self, weight: WeightId, to: &mut ByteSink) -> Result<()> {
        let (_, _, tensor) = self.stored(weight)?;
        let bits = tensor.coding.codes.map_or(8, |codes| codes.bits);
        self.transposed_codes(weight, &mut |part| to(&paired(bytemuck::cast_slice(part), bits)))
    }

    fn transposed_block_scales(&self, weight: WeightId, float: DType, to: &mut ByteSink) -> Result<()> {
        let (index, stored, tensor) = self.stored(weight)?;
        let n_rows = tensor.rows().n_rows;
        let scales: Vec<f32> = stored.affines(index, 0..n_rows)?.iter().map(|affine| affine.scale).collect();
        to(&of_values(&transposed_values(&scales, &[n_rows, scales.len() / n_rows.max(1)]), float)?)
    }

    fn transposed_block_zeros(&self, weight: WeightId, to: &mut ByteSink) -> Result<()> {
        let (index, stored, tensor) = self.stored(weight)?;
        let (n_rows, bits) = (tensor.rows().n_rows, tensor.coding.codes.map_or(8, |codes| codes.bits));
        let zeros: Vec<i8> = stored.affines(index, 0..n_rows)?.iter().map(|affine| affine.zero).collect();
        let turned = transposed(bytemuck::cast_slice(&zeros), &[n_rows, zeros.len() / n_rows.max(1)], 1);
        to(&paired(bytemuck::cast_slice(&turned), bits))
    }

    fn block_scales(&self, weight: WeightId, float: DType, to: &mut ByteSink) -> Result<()> {
        let (index, stored, tensor) = self.stored(weight)?;
        let affines = stored.affines(index, 0..tensor.rows().n_rows)?;
        to(&of_values(&affines.iter().map(|affine| affine.scale).collect::<Vec<f32>>(), float)?)
    }

    fn block_zeros(&self, weight: WeightId, to: &mut ByteSink) -> Result<()> {
        let (index, stored, tensor) = self.stored(weight)?;
        let (rows, codes) = (tensor.rows(), tensor.coding.codes);
        let Some((codes, Grouping::Group(group))) = codes.map(|codes| (codes, codes.grouping)) else {
            return Err(Error::bug("the tensor has no groups"));
        };
        debug_assert_eq!(codes.grid, GridKind::Asymmetric);
        let zeros: Vec<i8> = stored.affines(index, 0..rows.n_rows)?.iter().map(|affine| affine.zero).collect();
        zeros.chunks(rows.n_cols / group).try_for_each(|row| to(&packed(row, codes.bits)))
    }
}

/// Passes the codes of a tensor to `each`, some rows at once, with the number of rows.
///
/// # Errors
/// - Input: the file is damaged.
/// - Io: the file cannot be read.
pub(super) fn for_each_code_rows(
    checkpoint: &Checkpoint,
    index: usize,
    each: &mut dyn FnMut(usize, &[i8]) -> Result<()>,
) -> Result<()> {
    let stored = checkpoint.stored().ok_or_else(|| Error::bug("the tensor has no codes"))?;
    let (rows, mut scratch, mut codes) = (stored.tensors[index].rows(), DecodeBuffers::default(), Vec::new());
    // Blocks of entropy-coded codes are read whole.
    let per_block = rows.rows_per_block();
    let step = (PIECE / rows.n_cols.max(1) / per_block).max(1) * per_block;
    for start in (0..rows.n_rows).step_by(step) {
        let range = start..(start + step).min(rows.n_rows);
        codes.resize(range.len() * rows.n_cols, 0);
        stored.read_codes(index, range.clone(), &mut scratch, &mut codes)?;
        each(range.len(), &codes)?;
    }
    Ok(())
}

/// Returns the type of a tensor with floats.
fn float_of(dtype: OnnxType) -> DType {
    match dtype {
        OnnxType::F16 => DType::F16,
        OnnxType::BF16 => DType::BF16,
        OnnxType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Converts the bytes of floats to another type.
fn converted(bytes: &[u8], dtype: DType, to: DType) -> Result<Vec<u8>> {
    if dtype == to {
        return Ok(bytes.to_vec());
    }
    let mut values = vec![0.0_f32; bytes.len() * 8 / dtype.n_bits()];
    to_f32(bytes, dtype, &mut values);
    of_values(&values, to)
}

/// Refuses a number that a type does not hold.
fn of_values(values: &[f32], to: DType) -> Result<Vec<u8>> {
    let overflows = |value: &&f32| value.is_finite() && !briquette_core::rows::fits(**value, to);
    if let Some(value) = values.iter().find(overflows) {
        let message =
            format!("found {value}, which is infinity in {to}; export without --cast, or compress without it");
        return Err(Error::refused(message));
    }
    Ok(bytes_of(values, to))
}

/// The bytes of values in a type of floats.
pub(super) fn bytes_of(values: &[f32], dtype: DType) -> Vec<u8> {
    let mut out = vec![0; values.len() * dtype.n_bits() / 8];
    from_f32(values, dtype, &mut out);
    out
}

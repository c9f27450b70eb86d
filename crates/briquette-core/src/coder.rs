//! Rows of weights to parts, as decided: the one place where weights become codes, kept values, and what those stand for.

use crate::block::RowEncoder;
use crate::coding::{Coding, Parts};
use crate::{Affine, BlockHasher, DType, Decision, Grid, Grouping, Hash128, Mask, rows, simd};
use std::ops::Range;

/// What all rows of a tensor have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowForm {
    /// How the tensor is kept.
    pub coding: Coding,
    /// The type of its elements in the output, where they are no codes.
    pub dtype: DType,
    /// Whether that is another type than they came in.
    pub is_cast: bool,
    /// The grid that weights are rounded to, and which of them share a scale.
    pub quant: Option<(Grid, Grouping)>,
    /// Inputs of each row.
    pub n_cols: usize,
}

impl RowForm {
    /// An encoder for rows before which `n_kept` elements were kept, into emptied parts; see [`RowEncoder::new`].
    pub fn encoder(&self, n_kept: usize, parts: Parts) -> RowEncoder {
        RowEncoder::new(self.coding, self.dtype, n_kept, parts)
    }
}

/// A [`Decision`] about a few consecutive rows, in buffers that serve for the next ones too.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowsDecision {
    /// A bit for each weight that is kept, [`Mask::row_bytes`] for each row; empty where all are kept.
    pub keep: Vec<u8>,
    /// The scales of each row, row by row, or the tensor's only one; empty where weights stay floats.
    pub affines: Vec<Affine>,
}

impl RowsDecision {
    /// Takes what a decision says of some rows.
    ///
    /// # Panics
    /// If it has no such rows.
    pub fn take_from(&mut self, decision: &Decision, rows: Range<usize>) {
        self.keep.clear();
        self.affines.clear();
        if let Some(mask) = &decision.mask {
            rows.clone().for_each(|row| self.keep.extend_from_slice(mask.row(row)));
        }
        match &decision.quant {
            Some(quant) if quant.grouping == Grouping::Tensor => self.affines.extend_from_slice(&quant.affines),
            Some(quant) => rows.for_each(|row| self.affines.extend_from_slice(quant.row(row))),
            None => {}
        }
    }

    /// The rows' weights with 0 for those that are dropped, in `scratch` where any are.
    pub fn kept_of<'a>(&self, values: &'a [f32], n_cols: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        if self.keep.is_empty() {
            return values;
        }
        scratch.resize(values.len(), 0.0);
        let rows = values.chunks_exact(n_cols).zip(scratch.chunks_exact_mut(n_cols));
        for ((values, kept), keep) in rows.zip(self.keep.chunks_exact(Mask::row_bytes(n_cols))) {
            simd::copy_kept(values, keep, kept);
        }
        scratch
    }
}

/// Rows of weights on their way into parts.
#[derive(Debug, Clone)]
pub struct WeightRows<'a> {
    /// Their places in the tensor.
    pub rows: Range<usize>,
    /// Their elements as they came, in the type they came in.
    pub bytes: &'a [u8],
    /// The same as f32, 0 for those that are dropped: see [`RowsDecision::kept_of`].
    pub kept: &'a [f32],
}

/// Makes parts of rows, and hashes what they stand for.
#[derive(Debug, Default)]
pub struct RowCoder {
    codes: Vec<i8>,
    simulated: Vec<f32>,
    bytes: Vec<u8>,
    hasher: BlockHasher,
}

impl RowCoder {
    /// Appends rows to the parts of their tensor, with a decision about them.
    ///
    /// Codes `q = clamp(round(w·m / scale) + zero)` where the coding has codes, and else the elements in the type of the output:
    /// as they came, rounded to it, or simulated. A tensor's only scale is appended with its first row. Returns what the rows stand for.
    ///
    /// # Panics
    /// If the lengths disagree.
    pub fn push<'a>(
        &'a mut self,
        form: &RowForm,
        strip: &WeightRows<'a>,
        decision: &RowsDecision,
        encoder: &mut RowEncoder,
    ) -> &'a [f32] {
        let WeightRows { rows, bytes, kept } = strip;
        let is_rounded = form.quant.is_some() || form.is_cast;
        // All of it is written below, but where a row is cast in place.
        self.simulated.resize(if is_rounded { kept.len() } else { 0 }, 0.0);
        self.bytes.clear();
        match form.quant {
            Some((_, Grouping::Tensor)) if rows.start == 0 => encoder.push_scales(&decision.affines),
            _ => {}
        }
        for row in 0..rows.len() {
            let cols = row * form.n_cols..(row + 1) * form.n_cols;
            let keep = (!decision.keep.is_empty()).then(|| of_row(&decision.keep, row, rows.len()));
            match form.quant {
                Some((grid, grouping)) => {
                    let affines = match grouping {
                        Grouping::Tensor => &decision.affines,
                        Grouping::Row | Grouping::Group(_) => of_row(&decision.affines, row, rows.len()),
                    };
                    self.push_rounded(form, grid, (cols.clone(), &kept[cols]), affines, keep, encoder);
                    if grouping != Grouping::Tensor {
                        encoder.push_scales(affines);
                    }
                }
                None if form.is_cast => {
                    self.simulated[cols.clone()].copy_from_slice(&kept[cols.clone()]);
                    self.push_cast(form.dtype, cols, keep, encoder);
                }
                None => self.push_own(form.dtype, &kept[cols], of_row(bytes, row, rows.len()), keep, encoder),
            }
        }
        let is_f32 = form.coding.codes.is_some() || form.dtype == DType::F32;
        let values = if is_rounded { &self.simulated } else { *kept };
        self.hasher.push(if is_f32 { bytemuck::cast_slice(values) } else { &self.bytes });
        values
    }

    /// The digest of what all rows since the last call stand for.
    pub fn end_block(&mut self) -> Hash128 {
        self.hasher.take()
    }

    /// A row on a grid: its codes, or the floats they stand for where the output has no codes.
    fn push_rounded(
        &mut self,
        form: &RowForm,
        grid: Grid,
        (cols, kept): (Range<usize>, &[f32]),
        affines: &[Affine],
        keep: Option<&[u8]>,
        encoder: &mut RowEncoder,
    ) {
        self.codes.resize(kept.len(), 0);
        quantize_row(kept, grid, affines, &mut self.codes);
        dequantize_row(&self.codes, affines, &mut self.simulated[cols.clone()]);
        match form.coding.codes {
            Some(_) => encoder.push_codes(&self.codes, keep),
            None => self.push_cast(form.dtype, cols, None, encoder),
        }
    }

    /// A row of floats rounded to a type: what it stands for is what that type can hold.
    fn push_cast(&mut self, dtype: DType, cols: Range<usize>, keep: Option<&[u8]>, encoder: &mut RowEncoder) {
        if dtype == DType::F32 {
            return encoder.push_floats(bytemuck::cast_slice(&self.simulated[cols]), keep);
        }
        let (start, values) = (self.bytes.len(), &mut self.simulated[cols]);
        self.bytes.resize(start + values.len() * dtype.n_bits() / 8, 0);
        rows::from_f32(values, dtype, &mut self.bytes[start..]);
        rows::to_f32(&self.bytes[start..], dtype, values);
        encoder.push_floats(&self.bytes[start..], keep);
    }

    /// A row in the type that it came in: every kept element to the bit, whatever f32 can hold of it.
    fn push_own(&mut self, dtype: DType, kept: &[f32], own: &[u8], keep: Option<&[u8]>, encoder: &mut RowEncoder) {
        if dtype == DType::F32 {
            return encoder.push_floats(bytemuck::cast_slice(kept), keep);
        }
        let start = self.bytes.len();
        match keep {
            Some(keep) => {
                self.bytes.resize(start + own.len(), 0);
                simd::keep(own, dtype.n_bits() / 8, keep, &mut self.bytes[start..]);
            }
            None => self.bytes.extend_from_slice(own),
        }
        encoder.push_floats(&self.bytes[start..], keep);
    }
}

/// The codes of one row, each of its groups by its own scale.
fn quantize_row(values: &[f32], grid: Grid, affines: &[Affine], codes: &mut [i8]) {
    let size = (values.len() / affines.len().max(1)).max(1);
    for ((values, codes), &affine) in values.chunks(size).zip(codes.chunks_mut(size)).zip(affines) {
        simd::quantize(values, affine, grid, codes);
    }
}

/// The values of one row of codes, each of its groups by its own scale.
fn dequantize_row(codes: &[i8], affines: &[Affine], values: &mut [f32]) {
    let size = (values.len() / affines.len().max(1)).max(1);
    for ((codes, values), &affine) in codes.chunks(size).zip(values.chunks_mut(size)).zip(affines) {
        simd::dequantize(codes, affine, values);
    }
}

/// The share of one of `n_rows` rows, which all have as many items.
fn of_row<T>(items: &[T], row: usize, n_rows: usize) -> &[T] {
    let n = items.len() / n_rows;
    &items[row * n..(row + 1) * n]
}

//! Encoding rows of weights according to a decision.
//!
//! Only this module makes codes and kept values, and the values that they decode to.

use crate::block::RowEncoder;
use crate::coding::{Coding, Parts};
use crate::{Affine, BlockHasher, ColumnScales, DType, Decision, Grid, Grouping, Hash128, Mask, rows, simd};
use std::ops::Range;

/// How all rows of a tensor are encoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowForm {
    /// How the tensor is stored.
    pub coding: Coding,
    /// The element type of the output, for elements that are not codes.
    pub dtype: DType,
    /// Whether `dtype` differs from the type in the source.
    pub is_cast: bool,
    /// The grid that weights are rounded to, and the grouping of weights that share a scale.
    pub quant: Option<(Grid, Grouping)>,
    /// Inputs of each row.
    pub n_cols: usize,
}

impl RowForm {
    /// Returns an encoder that empties `parts`. See [`RowEncoder::new`].
    ///
    /// `n_kept` is the number of kept elements in earlier rows of the tensor.
    pub fn encoder(&self, n_kept: usize, parts: Parts) -> RowEncoder {
        RowEncoder::new(self.coding, self.dtype, n_kept, parts)
    }
}

/// A [`Decision`] for a few consecutive rows, in buffers that are reused for the next rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowsDecision {
    /// One mask bit per weight, set = kept, [`Mask::row_bytes`] bytes per row; empty if all weights are kept.
    pub keep: Vec<u8>,
    /// The scales, row by row, or the single scale of the tensor; empty if weights stay floats.
    pub affines: Vec<Affine>,
    /// The scales of columns, if there are any.
    pub columns: Option<ColumnScales>,
}

impl RowsDecision {
    /// Copies the part of a decision for these rows.
    ///
    /// # Panics
    /// If the decision does not cover `rows`.
    pub fn take_from(&mut self, decision: &Decision, rows: Range<usize>) {
        self.keep.clear();
        self.affines.clear();
        if let Some(mask) = &decision.mask {
            rows.clone().for_each(|row| self.keep.extend_from_slice(mask.row(row)));
        }
        self.columns = decision.quant.as_ref().and_then(|quant| quant.columns.clone());
        match &decision.quant {
            Some(quant) if quant.grouping == Grouping::Tensor => self.affines.extend_from_slice(&quant.affines),
            Some(quant) => rows.for_each(|row| self.affines.extend_from_slice(quant.row(row))),
            None => {}
        }
    }

    /// Returns the weights of these rows with dropped weights set to 0.
    ///
    /// This is `values` itself if all are kept, otherwise a copy in `scratch`.
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

/// Rows of weights to encode.
#[derive(Debug, Clone)]
pub struct WeightRows<'a> {
    /// The range of these rows in the tensor.
    pub rows: Range<usize>,
    /// The elements in the type of the source.
    pub bytes: &'a [u8],
    /// The same elements as f32, 0 where dropped: see [`RowsDecision::kept_of`].
    pub kept: &'a [f32],
}

/// Encodes rows into parts, and hashes the values that they decode to.
#[derive(Debug, Default)]
pub struct RowCoder {
    codes: Vec<i8>,
    fake_quantized: Vec<f32>,
    bytes: Vec<u8>,
    hasher: BlockHasher,
}

impl RowCoder {
    /// Encodes rows with a decision, appends them to the parts of their tensor, and returns the decoded values.
    ///
    /// Stores codes `q = clamp(round(w·m / scale) + zero)` if the coding has codes, otherwise floats in the
    /// type of the output: unchanged, rounded to that type, or fake-quantized. The single scale of a tensor is
    /// appended with its first row.
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
        // These zeros are overwritten below. A cast row is first copied here, then rounded in place.
        self.fake_quantized.resize(if is_rounded { kept.len() } else { 0 }, 0.0);
        self.bytes.clear();
        match form.quant {
            Some((_, Grouping::Tensor)) if rows.start == 0 => encoder.push_scales(&decision.affines),
            _ => {}
        }
        if let (Some(columns), 0) = (&decision.columns, rows.start) {
            encoder.push_columns(columns);
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
                    let scales = (affines, decision.columns.as_ref());
                    self.push_rounded(form, grid, (cols.clone(), &kept[cols]), scales, keep, encoder);
                    if grouping != Grouping::Tensor {
                        encoder.push_scales(affines);
                    }
                }
                None if form.is_cast => {
                    self.fake_quantized[cols.clone()].copy_from_slice(&kept[cols.clone()]);
                    self.push_cast(form.dtype, cols, keep, encoder);
                }
                None => self.push_own(form.dtype, &kept[cols], of_row(bytes, row, rows.len()), keep, encoder),
            }
        }
        let is_f32 = form.coding.codes.is_some() || form.dtype == DType::F32;
        let values = if is_rounded { &self.fake_quantized } else { *kept };
        self.hasher.push(if is_f32 { bytemuck::cast_slice(values) } else { &self.bytes });
        values
    }

    /// Returns the digest of the values of all rows since the last call.
    pub fn end_block(&mut self) -> Hash128 {
        self.hasher.take()
    }

    /// Encodes a row rounded to a grid, as codes or, if the output has no codes, as fake-quantized floats.
    fn push_rounded(
        &mut self,
        form: &RowForm,
        grid: Grid,
        (cols, kept): (Range<usize>, &[f32]),
        (affines, columns): (&[Affine], Option<&ColumnScales>),
        keep: Option<&[u8]>,
        encoder: &mut RowEncoder,
    ) {
        self.codes.resize(kept.len(), 0);
        let values = &mut self.fake_quantized[cols.clone()];
        match columns {
            Some(columns) => {
                values.copy_from_slice(kept);
                columns.divide(values);
                quantize_row(values, grid, affines, &mut self.codes);
                dequantize_row(&self.codes, affines, values);
                columns.multiply(values);
            }
            None => {
                quantize_row(kept, grid, affines, &mut self.codes);
                dequantize_row(&self.codes, affines, values);
            }
        }
        match form.coding.codes {
            Some(_) => encoder.push_codes(&self.codes, keep),
            None => self.push_cast(form.dtype, cols, None, encoder),
        }
    }

    /// Encodes a row of floats rounded to `dtype`, and stores the rounded values as the decoded ones.
    fn push_cast(&mut self, dtype: DType, cols: Range<usize>, keep: Option<&[u8]>, encoder: &mut RowEncoder) {
        if dtype == DType::F32 {
            return encoder.push_floats(bytemuck::cast_slice(&self.fake_quantized[cols]), keep);
        }
        let (start, values) = (self.bytes.len(), &mut self.fake_quantized[cols]);
        self.bytes.resize(start + values.len() * dtype.n_bits() / 8, 0);
        rows::from_f32(values, dtype, &mut self.bytes[start..]);
        rows::to_f32(&self.bytes[start..], dtype, values);
        encoder.push_floats(&self.bytes[start..], keep);
    }

    /// Encodes a row in its own type. Every kept element keeps its bits, even if f32 cannot represent it.
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

/// Computes the codes of one row; each group is quantized with its own scale.
fn quantize_row(values: &[f32], grid: Grid, affines: &[Affine], codes: &mut [i8]) {
    let size = (values.len() / affines.len().max(1)).max(1);
    for ((values, codes), &affine) in values.chunks(size).zip(codes.chunks_mut(size)).zip(affines) {
        simd::quantize(values, affine, grid, codes);
    }
}

/// Dequantizes one row of codes; each group is multiplied by its own scale.
fn dequantize_row(codes: &[i8], affines: &[Affine], values: &mut [f32]) {
    let size = (values.len() / affines.len().max(1)).max(1);
    for ((codes, values), &affine) in codes.chunks(size).zip(values.chunks_mut(size)).zip(affines) {
        simd::dequantize(codes, affine, values);
    }
}

/// Returns the items of one of `n_rows` rows that have the same number of items.
fn of_row<T>(items: &[T], row: usize, n_rows: usize) -> &[T] {
    let n = items.len() / n_rows;
    &items[row * n..(row + 1) * n]
}

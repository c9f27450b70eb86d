//! The rows of a block: masked, rounded, and appended to the parts of their tensor.

use super::masker::{Masker, scored};
use crate::context::Stop;
use crate::piece::{Block, Piece, check_finite};
use crate::plan::TensorPlan;
use crate::recipe::PruneMethod;
use briquette_core::block::RowEncoder;
use briquette_core::encoded::{Parts, dequantize_row, quantize_row};
use briquette_core::{Affine, BlockHasher, Coding, DType, Grouping, Hash128, Mask, Result, bits, rows, simd};
use briquette_quant::{QuantSpec, Range, range};

/// Codes the rows of one tensor after another in the same buffers.
#[derive(Default)]
pub(super) struct RowCoder {
    dtype: Option<DType>,
    n_cols: usize,
    method: Option<PruneMethod>,
    is_pruned: bool,
    is_cast: bool,
    spec: Option<QuantSpec>,
    has_codes: bool,
    /// The only scale of a tensor that has just one.
    whole: Option<Affine>,
    /// Scales that the model has already, from row `first_given` on.
    given: Vec<Affine>,
    first_given: usize,
    scores: Vec<f32>,
    bits: Vec<u8>,
    kept: Vec<f32>,
    group: Vec<f32>,
    affines: Vec<Affine>,
    codes: Vec<i8>,
    simulated: Vec<f32>,
    bytes: Vec<u8>,
    hasher: BlockHasher,
    stop: Stop,
}

impl RowCoder {
    /// Turns to another tensor.
    pub(super) fn begin(&mut self, tensor: &TensorPlan, coding: Coding, stop: &Stop) {
        self.stop = stop.clone();
        self.dtype = Some(tensor.stored_dtype());
        self.is_cast = tensor.cast.is_some();
        self.n_cols = tensor.rows.n_cols;
        self.method = tensor.method();
        self.is_pruned = tensor.prune.is_some();
        self.spec = tensor.quant.map(|quant| quant.spec);
        self.has_codes = coding.codes.is_some();
        self.whole = None;
        self.given.clear();
        self.bits.resize(Mask::row_bytes(self.n_cols), 0);
        self.kept.resize(self.n_cols, 0.0);
        self.codes.resize(self.n_cols, 0);
    }

    /// What the last strip stands for.
    pub(super) fn simulated(&self) -> &[f32] {
        &self.simulated
    }

    /// Takes scales that the model has already, those of the rows from `first` on.
    pub(super) fn give(&mut self, affines: Vec<Affine>, first: usize) {
        (self.given, self.first_given) = (affines, first);
    }

    /// Finds the scale of a tensor that has just one, from all of its kept weights.
    pub(super) fn fit_tensor(
        &mut self,
        tensor: &TensorPlan,
        piece: &mut Piece,
        mut masker: Masker,
        encoder: &mut RowEncoder,
        parts: &mut Parts,
    ) -> Result<()> {
        let Some(spec) = self.spec.filter(|spec| spec.grouping == Grouping::Tensor) else { return Ok(()) };
        if let Some(&affine) = self.given.first() {
            self.whole = Some(affine);
            encoder.push_scales(&[affine], parts);
            return Ok(());
        }
        let mut kept = Vec::new();
        piece.for_each_block(|block| {
            check_finite(tensor, block)?;
            self.stop.check()?;
            for (i, values) in block.values.chunks_exact(self.n_cols).enumerate() {
                let has_bits = self.mask(values, block.first_row + i, &mut masker);
                kept.extend(
                    (0..values.len()).filter(|&col| !has_bits || bits::get(&self.bits, col)).map(|col| values[col]),
                );
            }
            Ok(())
        })?;
        let affine = range::try_choose(spec.range, &kept, spec.grid, &|| self.stop.check())?;
        let affine = spec.scale.round(affine);
        self.whole = Some(affine);
        encoder.push_scales(&[affine], parts);
        Ok(())
    }

    fn mask(&mut self, values: &[f32], row: usize, masker: &mut Masker) -> bool {
        let method = self.method.unwrap_or(PruneMethod::Magnitude);
        let scores = scored(method, row * self.n_cols, values, &mut self.scores);
        masker.mask(values, scores, &mut self.bits)
    }

    /// Appends a strip to the parts, and what it stands for to the hash of its block.
    ///
    /// # Errors
    /// Interrupted.
    pub(super) fn strip(
        &mut self,
        block: Block,
        masker: &mut Masker,
        encoder: &mut RowEncoder,
        parts: &mut Parts,
    ) -> Result<()> {
        self.stop.check()?;
        self.simulated.resize(block.values.len(), 0.0);
        self.bytes.clear();
        let row_bytes = self.n_cols * block.bytes.len() / block.values.len().max(1);
        let rows = block.values.chunks_exact(self.n_cols).zip(block.bytes.chunks_exact(row_bytes));
        for (i, (values, bytes)) in rows.enumerate() {
            let has_bits = self.mask(values, block.first_row + i, masker);
            match self.spec {
                Some(spec) => {
                    self.fit(&spec, block.first_row + i, values, has_bits)?;
                    self.code_row(&spec, i, values, has_bits, encoder, parts);
                }
                None if self.is_cast => self.cast_row(i, values, has_bits, encoder, parts),
                None if has_bits => self.mask_row(i, values, bytes, encoder, parts),
                None => self.copy_row(i, values, bytes, encoder, parts),
            }
        }
        self.hasher.push(match (self.has_codes, self.dtype) {
            (true, _) | (false, Some(DType::F32)) => bytemuck::cast_slice(&self.simulated),
            _ => &self.bytes,
        });
        Ok(())
    }

    /// The digest of what the strips since the last call stand for.
    pub(super) fn end_block(&mut self) -> Hash128 {
        self.hasher.take()
    }

    /// Puts the scales of a row into `affines`, and its kept weights into `kept` where some are not.
    fn fit(&mut self, spec: &QuantSpec, row: usize, values: &[f32], has_bits: bool) -> Result<()> {
        if has_bits {
            simd::copy_kept(values, &self.bits, &mut self.kept);
        }
        self.affines.clear();
        if let Some(whole) = self.whole {
            self.affines.push(whole);
        } else if !self.given.is_empty() {
            let per_row = spec.grouping.per_row(self.n_cols).unwrap_or(1).max(1);
            self.affines.extend_from_slice(&self.given[(row - self.first_given) * per_row..][..per_row]);
        } else {
            let kept = if has_bits { self.kept.as_slice() } else { values };
            let keep = (has_bits && self.is_pruned).then_some(self.bits.as_slice());
            fit_row(spec, kept, keep, &mut self.group, &mut self.affines, &self.stop)?;
        }
        Ok(())
    }

    fn code_row(
        &mut self,
        spec: &QuantSpec,
        row: usize,
        values: &[f32],
        has_bits: bool,
        encoder: &mut RowEncoder,
        parts: &mut Parts,
    ) {
        let keep = has_bits.then_some(self.bits.as_slice());
        let kept = if has_bits { self.kept.as_slice() } else { values };
        quantize_row(kept, spec.grid, &self.affines, &mut self.codes);
        let simulated = &mut self.simulated[row * self.n_cols..(row + 1) * self.n_cols];
        dequantize_row(&self.codes, &self.affines, simulated);
        if self.has_codes {
            encoder.push_codes(&self.codes, keep, parts);
            if self.whole.is_none() {
                encoder.push_scales(&self.affines, parts);
            }
        } else {
            let stored = round_to(simulated, self.dtype, &mut self.bytes);
            encoder.push_floats(stored, None, parts);
        }
    }

    /// A row in another type than it came in: what it stands for is what that type can hold.
    fn cast_row(&mut self, row: usize, values: &[f32], has_bits: bool, encoder: &mut RowEncoder, parts: &mut Parts) {
        let simulated = &mut self.simulated[row * self.n_cols..(row + 1) * self.n_cols];
        if has_bits {
            simd::copy_kept(values, &self.bits, simulated);
        } else {
            simulated.copy_from_slice(values);
        }
        let stored = round_to(simulated, self.dtype, &mut self.bytes);
        encoder.push_floats(stored, has_bits.then_some(self.bits.as_slice()), parts);
    }

    fn copy_row(&mut self, row: usize, values: &[f32], bytes: &[u8], encoder: &mut RowEncoder, parts: &mut Parts) {
        self.simulated[row * self.n_cols..(row + 1) * self.n_cols].copy_from_slice(values);
        self.bytes.extend_from_slice(bytes);
        encoder.push_floats(bytes, None, parts);
    }

    fn mask_row(&mut self, row: usize, values: &[f32], bytes: &[u8], encoder: &mut RowEncoder, parts: &mut Parts) {
        let simulated = &mut self.simulated[row * self.n_cols..(row + 1) * self.n_cols];
        simd::copy_kept(values, &self.bits, simulated);
        let masked: &[u8] = if self.dtype == Some(DType::F32) {
            bytemuck::cast_slice(simulated)
        } else {
            let start = self.bytes.len();
            self.bytes.resize(start + bytes.len(), 0);
            simd::keep(bytes, bytes.len() / self.n_cols, &self.bits, &mut self.bytes[start..]);
            &self.bytes[start..]
        };
        encoder.push_floats(masked, Some(&self.bits), parts);
    }
}

/// Appends values to `bytes` as a type holds them, and turns them into what it holds. Returns what was appended.
fn round_to<'a>(values: &mut [f32], dtype: Option<DType>, bytes: &'a mut Vec<u8>) -> &'a [u8] {
    let (start, dtype) = (bytes.len(), dtype.unwrap_or(DType::F32));
    bytes.resize(start + values.len() * dtype.n_bits() / 8, 0);
    rows::from_f32(values, dtype, &mut bytes[start..]);
    rows::to_f32(&bytes[start..], dtype, values);
    &bytes[start..]
}

/// The scales of a row. Robust ranges look at kept weights only; zeros do not move the others.
fn fit_row(
    spec: &QuantSpec,
    kept: &[f32],
    keep: Option<&[u8]>,
    group: &mut Vec<f32>,
    affines: &mut Vec<Affine>,
    stop: &Stop,
) -> Result<()> {
    let per_row = spec.grouping.per_row(kept.len()).unwrap_or(1).max(1);
    let size = kept.len() / per_row;
    let sees_zeros = matches!(spec.range, Range::AbsMax | Range::MinMax);
    for (i, values) in kept.chunks_exact(size.max(1)).enumerate() {
        let seen = match keep {
            Some(keep) if !sees_zeros => {
                group.clear();
                let is_kept = |col: &usize| bits::get(keep, i * size + col);
                group.extend((0..values.len()).filter(is_kept).map(|col| values[col]));
                group.as_slice()
            }
            _ => values,
        };
        let affine = range::try_choose(spec.range, seen, spec.grid, &|| stop.check())?;
        affines.push(spec.scale.round(affine));
    }
    Ok(())
}

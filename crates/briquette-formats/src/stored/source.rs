//! Reads compressed tensors as plain tensors: decoded to their original type, row-major in their original
//! shape.

use super::{DecodeBuffers, StoredDir, StoredTensor};
use crate::InputFile;
use crate::tensor::{TensorInfo, TensorSource};
use briquette_core::encoded::Part;
use briquette_core::{Affine, Coding, ColumnScales, DType, Error, Grouping, Result, block, rows, simd};
use std::ops::Range;

impl StoredDir {
    /// Returns the scale of each row of a tensor with codes, or of each group of each row.
    ///
    /// # Errors
    /// - Input: a scale is invalid.
    /// - Io: the scales cannot be read.
    pub fn scales(&self, index: usize) -> Result<Vec<f32>> {
        let (tensor, n_rows) = (&self.tensors[index], self.tensors[index].rows().n_rows);
        let scales: Vec<f32> = self.affines(index, 0..n_rows)?.into_iter().map(|affine| affine.scale).collect();
        match tensor.coding.codes.is_some_and(|codes| codes.grouping == Grouping::Tensor) {
            true => Ok(vec![scales.first().copied().unwrap_or(1.0); n_rows]),
            false => Ok(scales),
        }
    }
}

/// Refuses values that overflow the type of their tensor.
fn check_holds(tensor: &StoredTensor, values: &[f32]) -> Result<()> {
    let dtype = tensor.info.dtype;
    let largest = f32::from_bits(simd::max_magnitude(values));
    if dtype == DType::F32 || rows::fits(largest, dtype) {
        return Ok(());
    }
    let message = format!("found {largest}, which is infinity in {dtype}; its codes cannot be dequantized to {dtype}");
    Err(Error::refused(message).at(format_args!("tensor {:?}", tensor.info.name)))
}

impl TensorSource for StoredDir {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        let tensor = &self.tensors[index];
        let row_view = tensor.rows();
        let width = tensor.info.dtype.n_bits() / 8;
        if tensor.coding == Coding::DENSE {
            let mut bytes = Vec::new();
            self.read_part(tensor, Part::Weight, crate::tensor::range_of(start, out.len()), &mut bytes)?;
            out.copy_from_slice(&bytes);
            return self.check_values(index, start, out);
        }
        let row_bytes = (row_view.n_cols * width).max(1);
        let rows = match row_view.axis {
            axis if !axis.is_turned() => {
                start / row_bytes..(start + out.len()).div_ceil(row_bytes).min(row_view.n_rows)
            }
            _ => 0..row_view.n_rows,
        };
        let (skipped, n) = (rows.start * row_bytes, rows.len() * row_view.n_cols);
        let mut scratch = DecodeBuffers::default();
        let mut bytes = vec![0; n * width];
        if tensor.coding.codes.is_some() {
            let mut values = vec![0.0_f32; n];
            self.decode_rows(index, rows, &mut scratch, bytemuck::cast_slice_mut(&mut values))?;
            rows::from_f32(&values, tensor.info.dtype, &mut bytes);
            check_holds(tensor, &values)?;
        } else {
            self.decode_rows(index, rows, &mut scratch, &mut bytes)?;
        }
        if row_view.axis.is_turned() {
            let mut own_order = vec![0; bytes.len()];
            row_view.turn_back(&bytes, &mut own_order, width);
            bytes = own_order;
        }
        out.copy_from_slice(&bytes[start - skipped..start - skipped + out.len()]);
        Ok(())
    }

    fn affines(&self, index: usize, rows: Range<usize>) -> Result<Vec<Affine>> {
        let tensor = &self.tensors[index];
        let Some(codes) = tensor.coding.codes else { return Ok(Vec::new()) };
        let mut scratch = DecodeBuffers::default();
        self.read_scales(tensor, rows, &mut scratch)?;
        let n = scratch.scale.len() / codes.scale.n_bytes();
        Ok((0..n).map(|i| block::read_affine(codes, &scratch.scale, &scratch.zero, i)).collect())
    }

    fn columns(&self, index: usize) -> Result<Option<ColumnScales>> {
        let tensor = &self.tensors[index];
        if !tensor.coding.codes.is_some_and(|codes| codes.has_columns) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        self.read_part(tensor, Part::ColumnScale, 0..tensor.rows().n_cols, &mut bytes)?;
        Ok(Some(ColumnScales::of_bytes(bytes)))
    }

    fn reads_ranges(&self, index: usize) -> bool {
        let tensor = &self.tensors[index];
        tensor.coding == Coding::DENSE || !tensor.axis.is_turned()
    }

    fn files(&self) -> Vec<&InputFile> {
        self.files.iter().collect()
    }
}

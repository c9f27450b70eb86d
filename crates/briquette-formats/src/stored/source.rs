//! Reads compressed tensors as plain tensors: decoded to their original type, row-major in their original
//! shape.

use super::{DecodeBuffers, StoredDir, StoredTensor};
use crate::InputFile;
use crate::tensor::{TensorInfo, TensorSource};
use briquette_core::encoded::Part;
use briquette_core::{Affine, Coding, ColumnScales, DType, Error, Grouping, Result, Rows, block, rows, simd};
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

impl StoredDir {
    /// Decodes rows to the tensor's own type.
    fn decode_own_type(
        &self,
        index: usize,
        rows: Range<usize>,
        scratch: &mut DecodeBuffers,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let tensor = &self.tensors[index];
        let n = rows.len() * tensor.rows().n_cols;
        bytes.resize(n * tensor.info.dtype.n_bits() / 8, 0);
        if tensor.coding.codes.is_none() {
            return self.decode_rows(index, rows, scratch, bytes);
        }
        let mut values = vec![0.0_f32; n];
        self.decode_rows(index, rows, scratch, bytemuck::cast_slice_mut(&mut values))?;
        rows::from_f32(&values, tensor.info.dtype, bytes);
        check_holds(tensor, &values)
    }
}

/// Copies decoded rows to their places in the tensor's own order, `[in, out, ..]`, of which `out` has the bytes from `start` on.
fn scatter(view: Rows, rows: &Range<usize>, width: usize, bytes: &[u8], (start, out): (usize, &mut [u8])) {
    let run = view.run.max(1) * width;
    let (of_input, end) = (view.n_rows * run, start + out.len());
    let inputs = start / of_input..end.div_ceil(of_input);
    for (row, values) in rows.clone().zip(bytes.chunks_exact(view.n_cols * width)) {
        for input in inputs.clone() {
            let place = input * of_input + row * run;
            let (first, last) = (place.max(start), (place + run).min(end));
            if first < last {
                let from = input * run + first - place;
                out[first - start..last - start].copy_from_slice(&values[from..from + last - first]);
            }
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
        let (mut scratch, mut bytes) = (DecodeBuffers::default(), Vec::new());
        if row_view.axis.is_turned() {
            for rows in row_view.blocks() {
                self.decode_own_type(index, rows.clone(), &mut scratch, &mut bytes)?;
                scatter(row_view, &rows, width, &bytes, (start, out));
            }
            return Ok(());
        }
        let row_bytes = (row_view.n_cols * width).max(1);
        let rows = start / row_bytes..(start + out.len()).div_ceil(row_bytes).min(row_view.n_rows);
        let skipped = rows.start * row_bytes;
        self.decode_own_type(index, rows, &mut scratch, &mut bytes)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::{OutputAxis, Shape};

    #[test]
    fn any_bytes_of_a_turned_tensor_are_those_of_the_whole() {
        for (shape, axis) in [(vec![5, 3], OutputAxis::Last), (vec![2, 4, 3], OutputAxis::Second)] {
            let view = Rows::of(&Shape(shape), axis);
            let (width, n) = (2, view.n_elements() * 2);
            let by_row: Vec<u8> = (0..n as u8).collect();
            let mut own = vec![0; n];
            view.turn_back(&by_row, &mut own, width);
            for start in 0..n {
                for end in start + 1..=n {
                    let mut found = vec![0xff; end - start];
                    for rows in [0..1, 1..view.n_rows] {
                        let bytes = &by_row[rows.start * view.n_cols * width..rows.end * view.n_cols * width];
                        scatter(view, &rows, width, bytes, (start, &mut found));
                    }
                    assert_eq!(found, own[start..end], "{axis:?} {start}..{end}");
                }
            }
        }
    }
}

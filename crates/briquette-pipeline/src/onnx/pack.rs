//! Layouts of codes and matrices in ONNX.

use briquette_core::Result;
use briquette_core::rows::transpose_bytes;
use std::ops::Range;

/// The bytes of a part of a matrix that is transposed.
const PART: usize = 16 << 20;

/// Fills the elements of a range of columns, row by row.
type ColumnReader<'a> = dyn FnMut(Range<usize>, &mut [u8]) -> Result<()> + 'a;

/// Takes the next bytes of a tensor.
pub(super) type ByteSink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Shifts codes by half of their range, so that they have no sign, and packs 4-bit codes in pairs.
pub(super) fn packed(codes: &[i8], bits: u8) -> Vec<u8> {
    match bits {
        4 => {
            let unsigned = |code: &i8| (i16::from(*code) + 8) as u8 & 0x0f;
            let pair = |pair: &[i8]| unsigned(&pair[0]) | pair.get(1).map_or(0, |high| unsigned(high) << 4);
            codes.chunks(2).map(pair).collect()
        }
        _ => codes.iter().map(|code| (i16::from(*code) + 128) as u8).collect(),
    }
}

/// Packs 4-bit codes with a sign in pairs, the first in the low bits.
pub(super) fn paired(codes: &[i8], bits: u8) -> Vec<u8> {
    match bits {
        4 => {
            let low = |code: &i8| code.cast_unsigned() & 0x0f;
            codes.chunks(2).map(|pair| low(&pair[0]) | pair.get(1).map_or(0, |high| low(high) << 4)).collect()
        }
        _ => bytemuck::cast_slice(codes).to_vec(),
    }
}

/// Passes a matrix of this shape to `to`, transposed, some columns at once.
///
/// `fill` gets a range of columns, and room for them in every row.
pub(super) fn transpose_in_parts(
    [n_rows, n_cols]: [usize; 2],
    width: usize,
    fill: &mut ColumnReader,
    to: &mut ByteSink,
) -> Result<()> {
    // Codes of 4 bits are packed in pairs, so that a part has whole pairs.
    let step = (PART / (n_rows * width).max(1)).max(1).next_multiple_of(2);
    let mut part = Vec::new();
    for start in (0..n_cols).step_by(step) {
        let columns = start..(start + step).min(n_cols);
        part.resize(n_rows * columns.len() * width, 0);
        fill(columns.clone(), &mut part)?;
        to(&transposed(&part, &[n_rows, columns.len()], width))?;
    }
    Ok(())
}

/// Copies a range of bytes of each row.
pub(super) fn copy_columns(rows: &[u8], row_bytes: usize, columns: &Range<usize>, out: &mut [u8]) {
    for (row, out) in rows.chunks(row_bytes.max(1)).zip(out.chunks_mut(columns.len().max(1))) {
        out.copy_from_slice(&row[columns.clone()]);
    }
}

/// Transposes a matrix of this shape.
pub(super) fn transposed(bytes: &[u8], shape: &[usize], width: usize) -> Vec<u8> {
    let mut out = vec![0; bytes.len()];
    let [rows, cols] = [shape[0], shape.get(1).copied().unwrap_or(1)];
    transpose_bytes(bytes, &mut out, cols, rows, width);
    out
}

/// Transposes a matrix of floats of this shape.
pub(super) fn transposed_values(values: &[f32], shape: &[usize]) -> Vec<f32> {
    let bytes = transposed(bytemuck::cast_slice(values), shape, size_of::<f32>());
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lose_their_sign_and_the_first_has_the_low_bits() {
        assert_eq!(packed(&[-8, 7, 0, -1], 4), [0xf0, 0x78]);
        assert_eq!(packed(&[3], 4), [0x0b]);
        assert_eq!((paired(&[-8, 7, -1], 4), paired(&[-2], 8)), (vec![0x78, 0x0f], vec![0xfe]));
        assert_eq!(packed(&[-128, 0, 127], 8), [0, 128, 255]);
    }

    #[test]
    fn a_matrix_is_transposed() {
        assert_eq!(transposed(&[1, 2, 3, 4, 5, 6], &[2, 3], 1), [1, 4, 2, 5, 3, 6]);
        assert_eq!(transposed(&[1, 2, 3, 4, 5, 6, 7, 8], &[2, 2], 2), [1, 2, 5, 6, 3, 4, 7, 8]);
    }

    #[test]
    fn a_matrix_of_several_parts_is_transposed() {
        let (n_rows, n_cols) = (PART / 2 + 1, 5);
        let matrix: Vec<u8> = (0..n_rows * n_cols).map(|at| (at * 7 % 251) as u8).collect();
        let mut fill = |columns: Range<usize>, out: &mut [u8]| {
            copy_columns(&matrix, n_cols, &columns, out);
            Ok(())
        };
        let (mut found, mut n_parts) = (Vec::new(), 0);
        transpose_in_parts([n_rows, n_cols], 1, &mut fill, &mut |part| {
            found.extend_from_slice(part);
            n_parts += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!((found == transposed(&matrix, &[n_rows, n_cols], 1), n_parts), (true, 3));
    }
}

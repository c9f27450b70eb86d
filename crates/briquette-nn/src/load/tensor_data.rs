//! Reads a tensor of a checkpoint as the data of a burn tensor, in pieces.

use briquette_core::{DType, Error, Result, rows};
use briquette_formats::burnpack::to_burn;
use briquette_formats::{TensorInfo, TensorSource};
use burn::tensor::{Bytes, TensorData};

/// The bytes that are read at a time, where a tensor changes its element type or its axes.
const PIECE_BYTES: usize = 1 << 20;

/// Reads a whole tensor, transposed if it `is_turned`. Floats of another width become f32; other elements keep their type.
///
/// Beside the result, a piece is in memory; of a source that reads whole tensors only, the tensor as stored.
///
/// # Errors
/// - Input: burn has no such element type.
/// - Any error of reading the source.
pub(super) fn read(source: &dyn TensorSource, index: usize, is_turned: bool) -> Result<TensorData> {
    let info = &source.tensors()[index];
    let read_as = if is_other_float(info.dtype) { DType::F32 } else { info.dtype };
    let width = read_as.n_bits() / 8;
    let mut bytes = zeros(info.n_elements() * width, width);
    if read_as == info.dtype && !is_turned {
        source.read(index, 0, &mut bytes)?;
    } else {
        read_pieces(source, index, is_turned, read_as, &mut bytes)?;
    }
    let mut shape = info.shape.0.clone();
    if is_turned {
        shape.reverse();
    }
    if read_as == DType::Bool {
        let bools: Vec<bool> = bytes.iter().map(|&byte| byte != 0).collect();
        return Ok(TensorData::new(bools, shape));
    }
    let dtype = to_burn(read_as)
        .ok_or_else(|| Error::input(format!("{read_as} cannot be loaded")).at(format_args!("{:?}", info.name)))?;
    Ok(TensorData::from_bytes(bytes, shape, dtype))
}

fn is_other_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F64)
}

/// Reads a tensor by some of its rows at a time, and puts them into `out`, as columns if it is turned.
fn read_pieces(source: &dyn TensorSource, index: usize, is_turned: bool, read_as: DType, out: &mut [u8]) -> Result<()> {
    let info = &source.tensors()[index];
    let (n_rows, n_cols) = rows_of(info);
    let (stored_width, width) = (info.dtype.n_bits() / 8, read_as.n_bits() / 8);
    let row_bytes = n_cols * stored_width;
    let at_a_time = if source.reads_ranges(index) { PIECE_BYTES / row_bytes.max(1) } else { n_rows };
    let at_a_time = at_a_time.clamp(1, n_rows.max(1));
    let mut stored = zeros(at_a_time * row_bytes, stored_width);
    let mut floats = vec![0.0; if read_as == info.dtype { 0 } else { at_a_time * n_cols }];
    for first in (0..n_rows).step_by(at_a_time) {
        let n = at_a_time.min(n_rows - first);
        let stored = &mut stored[..n * row_bytes];
        source.read(index, first * row_bytes, stored)?;
        let piece: &[u8] = match read_as == info.dtype {
            true => stored,
            false => {
                rows::to_f32(stored, info.dtype, &mut floats[..n * n_cols]);
                bytemuck::cast_slice(&floats[..n * n_cols])
            }
        };
        match is_turned {
            true => put_columns(piece, out, [n, n_cols], [first, n_rows], width),
            false => out[first * n_cols * width..][..piece.len()].copy_from_slice(piece),
        }
    }
    Ok(())
}

/// Returns the number of rows of a tensor, and of elements in a row.
fn rows_of(info: &TensorInfo) -> (usize, usize) {
    match info.shape.0.as_slice() {
        [] => (1, 1),
        [n_rows, columns @ ..] => (*n_rows, columns.iter().product()),
    }
}

/// Puts `n` rows of a piece into `out`, which is transposed and has `n_rows` columns, from column `first` on.
fn put_columns(piece: &[u8], out: &mut [u8], [n, n_cols]: [usize; 2], [first, n_rows]: [usize; 2], width: usize) {
    const TILE: usize = 32;
    for tile in (0..n_cols).step_by(TILE) {
        for row in 0..n {
            for col in tile..(tile + TILE).min(n_cols) {
                let (from, to) = ((row * n_cols + col) * width, (col * n_rows + first + row) * width);
                out[to..to + width].copy_from_slice(&piece[from..from + width]);
            }
        }
    }
}

/// Returns zeros for elements of `width` bytes.
///
/// Bytes from a `Vec<u8>` would be copied into an aligned buffer, which doubles the memory of a large tensor.
fn zeros(n_bytes: usize, width: usize) -> Bytes {
    let n = n_bytes / width.max(1);
    match width {
        8 => Bytes::from_elems(vec![0_u64; n]),
        4 => Bytes::from_elems(vec![0_u32; n]),
        2 => Bytes::from_elems(vec![0_u16; n]),
        _ => Bytes::from_elems(vec![0_u8; n_bytes]),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use briquette_core::Shape;
    use briquette_formats::InputFile;

    /// A tensor in memory, and whether its source reads ranges.
    struct HeldTensor(Vec<TensorInfo>, Vec<u8>, bool);

    impl TensorSource for HeldTensor {
        fn tensors(&self) -> &[TensorInfo] {
            &self.0
        }

        fn read(&self, _index: usize, start: usize, out: &mut [u8]) -> Result<()> {
            out.copy_from_slice(&self.1[start..start + out.len()]);
            Ok(())
        }

        fn reads_ranges(&self, _index: usize) -> bool {
            self.2
        }

        fn files(&self) -> Vec<&InputFile> {
            Vec::new()
        }
    }

    fn value(at: usize) -> f32 {
        (at % 251) as f32 - 125.0
    }

    fn read_as_f32(dtype: DType, shape: [usize; 2], is_turned: bool, reads_ranges: bool) -> (Vec<f32>, Vec<usize>) {
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(value).collect();
        let mut bytes = vec![0; dtype.n_bytes(values.len()).unwrap()];
        rows::from_f32(&values, dtype, &mut bytes);
        let info = TensorInfo { name: "w".into(), dtype, shape: Shape(shape.to_vec()).into() };
        let data = read(&HeldTensor(vec![info], bytes, reads_ranges), 0, is_turned).unwrap();
        let dims = data.shape().to_vec();
        (data.try_to_vec().unwrap(), dims)
    }

    #[test]
    fn pieces_hold_every_element_in_both_orders() {
        // Two pieces and a part; rows that are larger than a piece; one element.
        for shape in [[1500, 700], [3, 300_001], [1, 1]] {
            let [n_rows, n_cols] = shape;
            for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
                let (found, dims) = read_as_f32(dtype, shape, false, true);
                assert_eq!(dims, shape);
                assert!(found.iter().enumerate().all(|(at, found)| *found == value(at)));
                for reads_ranges in [true, false] {
                    let (found, dims) = read_as_f32(dtype, shape, true, reads_ranges);
                    assert_eq!(dims, [n_cols, n_rows]);
                    let of = |at: usize| value(at % n_rows * n_cols + at / n_rows);
                    assert!(found.iter().enumerate().all(|(at, found)| *found == of(at)));
                }
            }
        }
    }
}

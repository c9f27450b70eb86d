//! The row view of a tensor: one row per output, one column per input.
//!
//! Only this module transposes.

use crate::{DType, Shape, simd};
use half::{bf16, f16, slice::HalfFloatSliceExt};
use serde::{Deserialize, Serialize};

/// The axis of a weight that counts its outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputAxis {
    /// PyTorch's `[out, in, ..]`: the order in the file is already by rows.
    #[default]
    First,
    /// burn's Linear, `[in, out]`: rows are the columns of the file.
    Last,
    /// Transposed convolutions, `[in, out, ..]`: a row is gathered from one run of the trailing axes per input.
    Second,
    /// A stack of matrices such as experts, `[.., out, in]`: the rows of each matrix follow those of the
    /// previous one.
    Stacked,
}

impl OutputAxis {
    /// Returns whether rows have to be gathered because they are not contiguous in the tensor.
    pub const fn is_turned(self) -> bool {
        matches!(self, Self::Last | Self::Second)
    }
}

/// The target size of a block of rows, in elements. A block is the unit of hashing and of work, and fits in the
/// cache of a core.
const BLOCK_ELEMENTS: usize = 1 << 16;

/// The target size of a strip of rows, in elements. A strip passes through all loops while it is in the fastest
/// cache.
const STRIP_ELEMENTS: usize = 1 << 11;

/// The row view of a tensor: `n_rows` outputs by `n_cols` inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Number of outputs.
    pub n_rows: usize,
    /// Number of inputs of each output; for a convolution `in / groups * height * width`.
    pub n_cols: usize,
    /// The axis of the tensor that counts outputs.
    pub axis: OutputAxis,
    /// Contiguous elements per input of a turned row: 1 in a matrix, a kernel in a transposed convolution.
    pub run: usize,
}

impl Rows {
    /// Flattens `shape` to rows: all axes but the output axis become columns.
    ///
    /// Tensors of rank 0 and 1 are one row. `OutputAxis::Last` applies only to matrices, `Second` and `Stacked`
    /// only above rank 2; otherwise they are ignored.
    pub fn of(shape: &Shape, axis: OutputAxis) -> Self {
        let n: usize = shape.0.iter().product();
        let (n_rows, axis) = match (shape.0.as_slice(), axis) {
            ([] | [_], _) => (1, OutputAxis::First),
            ([_, last], OutputAxis::Last) => (*last, axis),
            ([_, second, _, ..], OutputAxis::Second) => (*second, axis),
            ([leading @ .., _], OutputAxis::Stacked) if leading.len() > 1 => (leading.iter().product(), axis),
            ([first, ..], _) => (*first, OutputAxis::First),
        };
        let run = if axis == OutputAxis::Second { shape.0[2..].iter().product() } else { 1 };
        Self { n_rows, n_cols: n.checked_div(n_rows).unwrap_or(0), axis, run }
    }

    /// Returns a view of contiguous rows.
    pub const fn plain(n_rows: usize, n_cols: usize) -> Self {
        Self { n_rows, n_cols, axis: OutputAxis::First, run: 1 }
    }

    /// Returns a view of a tensor that is not a weight, as rows of one byte.
    pub fn of_bytes(n_bytes: usize) -> Self {
        Self::plain(n_bytes, 1)
    }

    /// Gathers [turned](OutputAxis::is_turned) rows from a tensor in its own order, with elements of `width`
    /// bytes.
    ///
    /// # Panics
    /// If a slice does not have the size of the tensor.
    pub fn turn(&self, own: &[u8], rows: &mut [u8], width: usize) {
        let run = self.run.max(1);
        transpose_bytes(own, rows, self.n_rows, self.n_cols / run, run * width);
    }

    /// Scatters rows into the tensor's own order: the inverse of [`turn`](Self::turn).
    ///
    /// # Panics
    /// If a slice does not have the size of the tensor.
    pub fn turn_back(&self, rows: &[u8], own: &mut [u8], width: usize) {
        let run = self.run.max(1);
        transpose_bytes(rows, own, self.n_cols / run, self.n_rows, run * width);
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        self.n_rows * self.n_cols
    }

    /// Returns the rows per block: as many whole rows as fit in 65,536 elements, at least one.
    pub fn rows_per_block(&self) -> usize {
        (BLOCK_ELEMENTS / self.n_cols.max(1)).max(1)
    }

    /// Returns the rows per strip: as many whole rows as fit in 2,048 elements, at least one.
    ///
    /// A block is divided into strips from its start.
    pub fn rows_per_strip(&self) -> usize {
        (STRIP_ELEMENTS / self.n_cols.max(1)).max(1)
    }

    /// Returns the row ranges of the blocks in order; none for a tensor without elements.
    pub fn blocks(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let (n_rows, step) = (self.n_rows, self.rows_per_block());
        let n_rows = if self.n_cols == 0 { 0 } else { n_rows };
        (0..n_rows).step_by(step).map(move |start| start..(start + step).min(n_rows))
    }
}

/// Copies a matrix stored as `[cols, rows]` to `[rows, cols]`, with elements of `width` bytes.
///
/// # Panics
/// If a slice does not have `rows * cols * width` bytes.
pub fn transpose_bytes(from: &[u8], to: &mut [u8], rows: usize, cols: usize, width: usize) {
    assert_eq!(from.len(), rows * cols * width, "source holds the whole matrix");
    assert_eq!(to.len(), from.len(), "target holds the whole matrix");
    const TILE: usize = 32;
    for row_tile in (0..rows).step_by(TILE) {
        for col_tile in (0..cols).step_by(TILE) {
            for row in row_tile..(row_tile + TILE).min(rows) {
                for col in col_tile..(col_tile + TILE).min(cols) {
                    let (source, target) = ((col * rows + row) * width, (row * cols + col) * width);
                    to[target..target + width].copy_from_slice(&from[source..source + width]);
                }
            }
        }
    }
}

/// Converts little-endian weights of `dtype` to f32. F64 is rounded to the nearest f32.
///
/// # Panics
/// If `dtype` is not a weight type, or the lengths disagree.
pub fn to_f32(bytes: &[u8], dtype: DType, out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.n_bytes(out.len()), "one element each");
    match dtype {
        DType::F32 => bytemuck::cast_slice_mut(out).copy_from_slice(bytes),
        DType::F16 => match bytemuck::try_cast_slice::<u8, f16>(bytes) {
            Ok(halves) => halves.convert_to_f32_slice(out),
            Err(_) => bytemuck::allocation::pod_collect_to_vec::<u8, f16>(bytes).convert_to_f32_slice(out),
        },
        DType::BF16 => match bytemuck::try_cast_slice(bytes) {
            Ok(halves) => simd::widen_bf16(halves, out),
            Err(_) => simd::widen_bf16(&bytemuck::allocation::pod_collect_to_vec(bytes), out),
        },
        DType::F64 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *value = f64::from_le_bytes(*bytes) as f32;
            }
        }
        other => panic!("{other} is not a weight type"),
    }
}

/// Converts f32 values to little-endian `dtype`, rounding halves to even.
///
/// # Panics
/// If `dtype` is not a weight type, or the lengths disagree.
pub fn from_f32(values: &[f32], dtype: DType, out: &mut [u8]) {
    assert_eq!(Some(out.len()), dtype.n_bytes(values.len()), "one element each");
    match dtype {
        DType::F32 => out.copy_from_slice(bytemuck::cast_slice(values)),
        DType::F16 => fill(values, out, |value| f16::from_f32(value).to_le_bytes()),
        DType::BF16 => fill(values, out, |value| bf16::from_f32(value).to_le_bytes()),
        DType::F64 => fill(values, out, |value| f64::from(value).to_le_bytes()),
        other => panic!("{other} is not a weight type"),
    }
}

/// Returns whether a number stays finite when rounded to `dtype`.
///
/// The largest F16 is 65504: 65519 stays finite and 65520 does not.
///
/// # Panics
/// If `dtype` is not a weight type.
pub fn fits(value: f32, dtype: DType) -> bool {
    let (mut bytes, mut rounded) = ([0; 8], [value]);
    let bytes = &mut bytes[..dtype.n_bits() / 8];
    from_f32(&[value], dtype, bytes);
    to_f32(bytes, dtype, &mut rounded);
    rounded[0].is_finite()
}

/// Returns whether values up to this magnitude keep at least seven significant bits when rounded to `dtype`.
///
/// The limit is `2^-17` for F16, which is 128 times its smallest number above 0, `2^-126` for BF16 and `2^-142`
/// for F32. A magnitude of 0 keeps all bits.
///
/// # Panics
/// If `dtype` is not a weight type.
pub fn keeps_bits(largest: f64, dtype: DType) -> bool {
    let exponent = match dtype {
        DType::F16 => -17,
        DType::BF16 => -126,
        DType::F32 => -142,
        DType::F64 => -1022,
        other => panic!("{other} is not a weight type"),
    };
    largest == 0.0 || largest >= f64::from(exponent).exp2()
}

fn fill<const N: usize>(values: &[f32], out: &mut [u8], to_bytes: impl Fn(f32) -> [u8; N]) {
    for (bytes, &value) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *bytes = to_bytes(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_outputs_in_either_layout() {
        let torch = Rows::of(&Shape(vec![3, 2, 5]), OutputAxis::First);
        assert_eq!((torch.n_rows, torch.n_cols), (3, 10));
        let burn = Rows::of(&Shape(vec![2, 3]), OutputAxis::Last);
        assert_eq!((burn.n_rows, burn.n_cols, burn.axis), (3, 2, OutputAxis::Last));
        let conv = Rows::of(&Shape(vec![4, 2, 3, 3]), OutputAxis::Last);
        assert_eq!((conv.n_rows, conv.axis), (4, OutputAxis::First));
        let turned = Rows::of(&Shape(vec![2, 3, 5]), OutputAxis::Second);
        assert_eq!((turned.n_rows, turned.n_cols, turned.run), (3, 10, 5));
        let experts = Rows::of(&Shape(vec![3, 4, 5]), OutputAxis::Stacked);
        assert_eq!((experts.n_rows, experts.n_cols, experts.axis), (12, 5, OutputAxis::Stacked));
        let matrix = Rows::of(&Shape(vec![4, 5]), OutputAxis::Stacked);
        assert_eq!((matrix.n_rows, matrix.axis), (4, OutputAxis::First));
    }

    #[test]
    fn a_scalar_a_vector_and_an_empty_tensor_have_rows() {
        assert_eq!(Rows::of(&Shape(vec![]), OutputAxis::First).n_elements(), 1);
        assert_eq!(Rows::of(&Shape(vec![7]), OutputAxis::First).n_rows, 1);
        let empty = Rows::of(&Shape(vec![0, 3]), OutputAxis::First);
        assert_eq!((empty.n_elements(), empty.blocks().count()), (0, 0));
        assert_eq!(Rows::of(&Shape(vec![3, 0]), OutputAxis::First).blocks().count(), 0);
    }

    #[test]
    fn blocks_cover_every_row_once() {
        for (n_rows, n_cols) in [(1, 1), (1000, 768), (3, 100_000), (65_537, 1)] {
            let rows = Rows::plain(n_rows, n_cols);
            let covered: Vec<usize> = rows.blocks().flatten().collect();
            assert_eq!(covered, (0..n_rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn transposing_twice_gives_the_matrix_back() {
        let bytes: Vec<u8> = (0..2 * 35 * 70).map(|i| i as u8).collect();
        let (mut once, mut twice) = (vec![0; bytes.len()], vec![0; bytes.len()]);
        transpose_bytes(&bytes, &mut once, 35, 70, 2);
        transpose_bytes(&once, &mut twice, 70, 35, 2);
        assert_eq!(twice, bytes);
        assert_eq!(once[..2], bytes[..2]);
        assert_eq!(once[2..4], bytes[70..72], "element (0, 1) was row 1 of 35 columns");
    }

    #[test]
    fn rows_of_a_transposed_convolution_are_gathered_from_its_kernels() {
        let shape = Shape(vec![2, 3, 2]);
        let (rows, own) = (Rows::of(&shape, OutputAxis::Second), (0..12).collect::<Vec<u8>>());
        let (mut turned, mut back) = ([0; 12], [0; 12]);
        rows.turn(&own, &mut turned, 1);
        assert_eq!(turned, [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        rows.turn_back(&turned, &mut back, 1);
        assert_eq!(back[..], own[..]);
    }

    #[test]
    fn values_that_round_to_infinity_do_not_fit() {
        assert!(fits(65519.0, DType::F16) && !fits(-65520.0, DType::F16));
        assert!(fits(1e38, DType::BF16) && !fits(f32::MAX, DType::BF16));
        assert!(fits(f32::MAX, DType::F32) && !fits(f32::NAN, DType::F32));
    }

    #[test]
    fn the_smallest_values_that_keep_bits_are_rounded_by_a_256th_at_most() {
        for (dtype, least) in [(DType::F16, 7.63e-6), (DType::BF16, 1.18e-38)] {
            assert!(keeps_bits(least, dtype) && !keeps_bits(0.99 * least, dtype) && keeps_bits(0.0, dtype));
            let (mut bytes, mut rounded) = ([0; 2], [0.0]);
            from_f32(&[least as f32], dtype, &mut bytes);
            to_f32(&bytes, dtype, &mut rounded);
            assert!((f64::from(rounded[0]) - least).abs() <= least / 256.0, "{dtype}");
        }
        assert!(keeps_bits(1e-42, DType::F32) && !keeps_bits(1e-45, DType::F32) && keeps_bits(1e-300, DType::F64));
    }

    #[test]
    fn half_types_read_and_write_at_any_alignment() {
        let values = [0.0, 1.5, -2.25, 65504.0, 1e-5];
        for dtype in [DType::F16, DType::BF16, DType::F64, DType::F32] {
            let width = dtype.n_bits() / 8;
            let mut bytes = vec![0; 1 + values.len() * width];
            from_f32(&values, dtype, &mut bytes[1..]);
            let mut back = [0.0; 5];
            to_f32(&bytes[1..], dtype, &mut back);
            for (value, back) in values.iter().zip(back) {
                assert!((value - back).abs() <= value.abs() / 128.0 + 1e-7, "{dtype}: {value} {back}");
            }
        }
    }
}

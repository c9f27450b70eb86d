//! Tensors as a file declares them, and where their bytes come from.

use crate::io::{InputFile, limits, names};
use briquette_core::{Affine, DType, Error, Result, Shape};
use std::ops::Range;

/// A tensor's name, type and shape; its size is known not to overflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, byte for byte as in the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
}

impl TensorInfo {
    /// Checks a shape that a file declares. All sizes in bytes are computed from shapes that came through here.
    ///
    /// # Errors
    /// Input, where the rank is above 64, the element count overflows, or elements do not fill whole bytes.
    pub fn checked(name: String, dtype: DType, shape: Vec<usize>) -> Result<Self> {
        let info = Self { name, dtype, shape: Shape(shape) };
        let n_bytes = info.shape.n_elements().and_then(|n| dtype.n_bytes(n));
        let message = if info.shape.rank() > limits::MAX_RANK {
            format!("has {} dimensions, expected at most {}", info.shape.rank(), limits::MAX_RANK)
        } else if n_bytes.is_none_or(|n| n > isize::MAX as usize) {
            format!("shape {} of {dtype} has no size in bytes; the file is damaged", info.shape)
        } else {
            return Ok(info);
        };
        Err(Error::input(message).at(format_args!("tensor {:?}", info.name)))
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.0.iter().product()
    }

    /// Bytes of all elements.
    pub fn n_bytes(&self) -> usize {
        self.n_elements() * self.dtype.n_bits() / 8
    }
}

/// Anything that holds tensors and hands out their bytes: little-endian, row-major, in the declared type.
pub trait TensorSource: Send + Sync {
    /// Every tensor, in the order of the file.
    fn tensors(&self) -> &[TensorInfo];

    /// Fills `out` with the bytes of tensor `index` that start at `start`.
    ///
    /// # Errors
    /// Io where the file cannot be read, Input where it is not what it declared.
    ///
    /// # Panics
    /// If the tensor has no such bytes.
    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()>;

    /// Whether a part of tensor `index` can be read for the cost of that part. Elsewhere the whole is read each time.
    fn reads_ranges(&self, index: usize) -> bool;

    /// The scales (and zero points) that some rows of tensor `index` have already, row by row, or the only one of the
    /// tensor; none where it is not kept as codes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn affines(&self, _index: usize, _rows: Range<usize>) -> Result<Vec<Affine>> {
        Ok(Vec::new())
    }

    /// A bit for each weight of some rows of tensor `index` that is kept, [`Mask::row_bytes`](briquette_core::Mask::row_bytes) for
    /// each row, where a mask was decided before; none elsewhere.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn keep(&self, _index: usize, _rows: Range<usize>) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// The weights that take the place of some rows of tensor `index`, where they were moved to make up for what is dropped or rounded;
    /// none elsewhere.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn updated(&self, _index: usize, _rows: Range<usize>) -> Result<Vec<f32>> {
        Ok(Vec::new())
    }

    /// The files behind it.
    fn files(&self) -> Vec<&InputFile>;
}

/// The first two of `n` names that are the same. Four bytes a name: there may be millions.
pub fn first_repeated<'a>(n: usize, name: impl Fn(usize) -> &'a str) -> Option<(usize, usize)> {
    let order = names::order(n, &name);
    let pair = order.windows(2).find(|pair| name(pair[0] as usize) == name(pair[1] as usize))?;
    Some((pair[0] as usize, pair[1] as usize))
}

/// Bytes `start..start + len` of a tensor.
pub fn range_of(start: usize, len: usize) -> Range<usize> {
    start..start + len
}

//! Tensors as a file declares them, and the source of their bytes.

use crate::io::tensor_name::TensorName;
use crate::io::{InputFile, limits, names};
use briquette_core::{Affine, ColumnScales, DType, Error, Result, Rows, Shape};
use std::ops::Range;
use std::sync::Arc;

/// A tensor's name, type and shape. Its size is known not to overflow.
///
/// It takes 32 bytes, as there may be millions of tensors. They share the texts of names, and equal shapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, byte for byte as in the file.
    pub name: TensorName,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Arc<Shape>,
}

impl TensorInfo {
    /// Checks a shape that a file declares. All sizes in bytes come from shapes that passed this check.
    ///
    /// # Errors
    /// Input: the rank is above 64, the element count overflows, or the elements do not fill whole bytes.
    pub fn checked(name: String, dtype: DType, shape: Vec<usize>) -> Result<Self> {
        Self::with_shape(name.into(), dtype, Arc::new(Shape(shape)))
    }

    /// Checks a shape that other tensors may share: see [`checked`](Self::checked).
    ///
    /// # Errors
    /// See [`checked`](Self::checked).
    pub(crate) fn with_shape(name: TensorName, dtype: DType, shape: Arc<Shape>) -> Result<Self> {
        let info = Self { name, dtype, shape };
        let n_bytes = info.shape.n_elements().and_then(|n| dtype.n_bytes(n));
        let message = if info.shape.rank() > limits::MAX_RANK {
            format!("found {} dimensions, expected at most {}", info.shape.rank(), limits::MAX_RANK)
        } else if n_bytes.is_none_or(|n| n > isize::MAX as usize) {
            format!("shape {} of {dtype} has no size in bytes; the file is damaged", info.shape)
        } else {
            return Ok(info);
        };
        Err(Error::input(message).at(format_args!("tensor {:?}", info.name)))
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.0.iter().product()
    }

    /// Returns the size of all elements in bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_elements() * self.dtype.n_bits() / 8
    }
}

/// Recently used shapes, so that equal shapes are shared.
#[derive(Debug, Default)]
pub(crate) struct SharedShapes(Vec<Arc<Shape>>);

/// The most shapes that are searched for an equal one.
const MAX_SHAPES: usize = 32;

impl SharedShapes {
    /// Returns a shared shape that equals this one.
    pub(crate) fn of(&mut self, shape: Shape) -> Arc<Shape> {
        match self.0.iter().position(|known| **known == shape) {
            Some(place) => self.0[..=place].rotate_right(1),
            None => {
                self.0.truncate(MAX_SHAPES - 1);
                self.0.insert(0, Arc::new(shape));
            }
        }
        self.0[0].clone()
    }
}

/// A source of tensors: their bytes are little-endian, row-major and of the declared type.
pub trait TensorSource: Send + Sync {
    /// Returns every tensor, in the order of the file.
    fn tensors(&self) -> &[TensorInfo];

    /// Fills `out` with the bytes of tensor `index` that start at `start`.
    ///
    /// # Errors
    /// - Io: the file cannot be read.
    /// - Input: the contents differ from what the file declares.
    ///
    /// # Panics
    /// If the tensor has no such bytes.
    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()>;

    /// Returns the source that this one changes, with the same tensors at the same places; `None` for a source of its own.
    ///
    /// It answers what this source does not define.
    fn below(&self) -> Option<&dyn TensorSource> {
        None
    }

    /// Returns whether a range of tensor `index` can be read without reading the whole tensor.
    fn reads_ranges(&self, index: usize) -> bool {
        self.below().is_some_and(|below| below.reads_ranges(index))
    }

    /// Returns the existing scales and zero points for some rows of tensor `index`.
    ///
    /// They are in order of rows and groups, or one for the whole tensor. Empty if the tensor is not stored as
    /// codes.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    fn affines(&self, index: usize, rows: Range<usize>) -> Result<Vec<Affine>> {
        self.below().map_or_else(|| Ok(Vec::new()), |below| below.affines(index, rows))
    }

    /// Returns the scales of the columns of tensor `index`, if it has any.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    fn columns(&self, index: usize) -> Result<Option<ColumnScales>> {
        self.below().map_or(Ok(None), |below| below.columns(index))
    }

    /// Returns the mask of some rows of tensor `index`, if one was already computed; else it is empty.
    ///
    /// There is one bit per weight, set for kept weights, and
    /// [`Mask::row_bytes`](briquette_core::Mask::row_bytes) bytes per row.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    fn keep(&self, index: usize, rows: Range<usize>) -> Result<Vec<u8>> {
        self.below().map_or_else(|| Ok(Vec::new()), |below| below.keep(index, rows))
    }

    /// Returns the updated (error-compensated) weights of some rows of tensor `index`, if there are any; else
    /// it is empty.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    fn updated(&self, index: usize, rows: Range<usize>) -> Result<Vec<f32>> {
        self.below().map_or_else(|| Ok(Vec::new()), |below| below.updated(index, rows))
    }

    /// Returns the files of the source.
    fn files(&self) -> Vec<&InputFile> {
        self.below().map_or_else(Vec::new, TensorSource::files)
    }
}

/// Reads some outputs of every input of a tensor whose outputs are not its first axis: `[in, range, ..]`.
///
/// `rows` is the view of the whole tensor, and `out` has the size of the range.
///
/// # Errors
/// See [`TensorSource::read`].
pub fn read_outputs(
    source: &dyn TensorSource,
    index: usize,
    rows: Rows,
    range: &Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    if range.len() == rows.n_rows {
        // A source may decode the whole tensor for every read.
        return source.read(index, 0, out);
    }
    let n_inputs = rows.n_cols / rows.run.max(1);
    let of_input = out.len() / n_inputs.max(1);
    let of_output = of_input / range.len().max(1);
    for (input, bytes) in out.chunks_mut(of_input.max(1)).enumerate() {
        source.read(index, (input * rows.n_rows + range.start) * of_output, bytes)?;
    }
    Ok(())
}

/// Returns the first two of `n` names that are equal. It needs four bytes per name, as there may be millions.
pub fn first_repeated<'a>(n: usize, name: impl Fn(usize) -> &'a str) -> Option<(usize, usize)> {
    let order = names::order(n, &name);
    let pair = order.windows(2).find(|pair| name(pair[0] as usize) == name(pair[1] as usize))?;
    Some((pair[0] as usize, pair[1] as usize))
}

/// Returns the range `start..start + len`.
pub fn range_of(start: usize, len: usize) -> Range<usize> {
    start..start + len
}

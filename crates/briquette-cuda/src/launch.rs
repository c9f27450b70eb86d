//! All kernel launches. Kernels do not know the lengths of their buffers, so sizes are checked here.

#![expect(unsafe_code, reason = "kernels are launched without bounds checks")]

mod attention;
mod convolve;
mod decode;
mod few;
mod product;
mod quantize;
mod rows;

use crate::epilogue::{EpilogueFlags, OutputLayoutLaunch};
use crate::gpu::{DeviceBuffer, Gpu, u32_of};
pub use attention::{DeviceHeads, attended};
pub(crate) use convolve::{depthwise, patches};
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::BufferArg;
pub use decode::Ids;
pub(crate) use decode::{decode, dense_words, lookup, lookup_bitmask};
pub(crate) use few::{FEW_FLOATS, few_rows_codes, few_rows_int4, few_rows_int8, few_rows_sparse};
pub(crate) use product::{Product, product_dp4a, product_mma, product_wgmma};
pub(crate) use quantize::{coded_words, parts_of, quantize, quantize_into};
pub use rows::{NormWeights, ScoreMask, normed, rotated, softmax_of};

/// Returns a buffer as an argument with elements of `size` bytes.
fn arg(buffer: &DeviceBuffer, size: usize) -> BufferArg {
    // SAFETY: the length is that of the buffer.
    unsafe { BufferArg::from_raw_parts(buffer.handle().clone(), buffer.n_bytes() / size) }
}

/// Rows of floats.
#[derive(Debug, Clone)]
pub struct Floats {
    /// The elements.
    pub buffer: DeviceBuffer,
    /// f32, f16 or bf16.
    pub dtype: ElemType,
    /// Number of rows.
    pub n_rows: usize,
    /// Number of columns.
    pub n_cols: usize,
}

impl Floats {
    /// Allocates rows with unspecified values.
    pub fn empty(gpu: &Gpu, dtype: ElemType, n_rows: usize, n_cols: usize) -> Self {
        let n_bytes = n_rows * n_cols * dtype.size();
        Self { buffer: gpu.empty::<u8>(n_bytes), dtype, n_rows, n_cols }
    }

    fn arg(&self, lanes: usize) -> BufferArg {
        assert_eq!(self.buffer.n_bytes(), self.n_rows * self.n_cols * self.dtype.size(), "the size of floats");
        u32_of(self.n_rows * self.n_cols);
        arg(&self.buffer, lanes * self.dtype.size())
    }
}

/// Rows of codes, in whole words.
#[derive(Debug, Clone)]
pub(crate) struct CodeWords {
    /// The codes.
    pub words: DeviceBuffer,
    /// Number of rows.
    pub n_rows: usize,
    /// Words per row.
    pub row_words: usize,
}

impl CodeWords {
    fn empty(gpu: &Gpu, n_rows: usize, row_words: usize) -> Self {
        Self { words: gpu.empty::<u32>(n_rows * row_words), n_rows, row_words }
    }

    fn arg(&self, lanes: usize) -> BufferArg {
        assert_eq!(self.words.n_bytes(), self.n_rows * self.row_words * 4, "the size of codes");
        u32_of(self.n_rows * self.row_words);
        arg(&self.words, lanes * 4)
    }
}

/// Scale and zero point of each row or image.
#[derive(Debug, Clone)]
pub(crate) struct RowScales {
    /// Scales, f32.
    pub scales: DeviceBuffer,
    /// Zero points, i32.
    pub zeros: DeviceBuffer,
}

/// The epilogue of a product: see [`EpilogueFlags`].
#[derive(Debug, Clone, Default)]
pub struct DeviceEpilogue {
    /// A factor for each output, f32.
    pub scale: Option<DeviceBuffer>,
    /// A summand for each output, f32.
    pub shift: Option<DeviceBuffer>,
    /// Whether to add outputs to the values in `y`.
    pub adds: bool,
    /// Whether to set negative outputs to 0.
    pub relu: bool,
}

impl DeviceEpilogue {
    const fn flags(&self) -> EpilogueFlags {
        EpilogueFlags { scale: self.scale.is_some(), shift: self.shift.is_some(), adds: self.adds, relu: self.relu }
    }

    /// Returns factors and summands for at least `n_out` outputs. For a missing one, `other` is passed but not
    /// read.
    fn args(&self, n_out: usize, other: &DeviceBuffer) -> [BufferArg; 2] {
        [&self.scale, &self.shift].map(|given| {
            assert!(given.as_ref().is_none_or(|given| given.n_bytes() >= 4 * n_out), "one for each of {n_out} outputs");
            arg(given.as_ref().unwrap_or(other), 4)
        })
    }
}

/// The positions of a product's outputs; see [`crate::epilogue::OutputLayout`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputPlacement {
    /// Rows per image.
    pub image_rows: usize,
    /// Rows that share a scale.
    pub scale_rows: usize,
    /// Stride between images, in outputs.
    pub image_stride: usize,
    /// Stride between rows, in outputs.
    pub row_stride: usize,
    /// Stride between columns, in outputs.
    pub col_stride: usize,
    /// The index of the product's first row, counted over all images.
    pub first_row: usize,
    /// The first column to compute.
    pub first_col: usize,
    /// The column after the last one to compute.
    pub end_col: usize,
}

impl OutputPlacement {
    /// Returns the positions of contiguous rows, each with its own scale.
    pub(crate) const fn rows(n_cols: usize) -> Self {
        Self {
            image_rows: 1,
            scale_rows: 1,
            image_stride: n_cols,
            row_stride: 0,
            col_stride: 1,
            first_row: 0,
            first_col: 0,
            end_col: n_cols,
        }
    }

    /// Returns the positions of images `[image, n_cols, image_rows]` whose rows share a scale `scale_rows` at a time.
    pub(crate) const fn images(n_cols: usize, image_rows: usize, scale_rows: usize) -> Self {
        Self {
            image_rows,
            scale_rows,
            image_stride: n_cols * image_rows,
            row_stride: 1,
            col_stride: image_rows,
            first_row: 0,
            first_col: 0,
            end_col: n_cols,
        }
    }

    /// Returns whether `n_rows` rows have no outputs.
    pub(crate) const fn is_empty(&self, n_rows: usize) -> bool {
        n_rows == 0 || self.first_col == self.end_col
    }

    fn launch(self) -> OutputLayoutLaunch {
        let Self { image_rows, scale_rows, image_stride, row_stride, col_stride, first_row, first_col, end_col: _ } =
            self;
        let rows = [image_rows, scale_rows, image_stride, row_stride, col_stride, first_row, first_col];
        let [a, b, c, d, e, f, g] = rows.map(u32_of);
        OutputLayoutLaunch::new(a, b, c, d, e, f, g)
    }
}

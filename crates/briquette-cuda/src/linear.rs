//! Linear layers with int8 weights, and conversion of the weights to floats.

use crate::fastest::multiply;
use crate::gpu::{DeviceBuffer, Gpu};
use crate::int8::Int8;
use crate::launch::{self, CodeWords, DeviceEpilogue, FEW_FLOATS, Floats, OutputPlacement, Product, RowScales};
use crate::pack;
use crate::way::{Way, multiply_by};
use cubecl_core::ir::ElemType;

/// Rows of 8-bit codes, with the scale and zero point of each row, in one buffer.
#[derive(Debug, Clone)]
pub struct CodedRows {
    /// [`Self::n_words`] 32-bit words.
    pub buffer: DeviceBuffer,
    /// Number of rows.
    pub n_rows: usize,
    /// Values of a row.
    pub n_cols: usize,
}

impl CodedRows {
    /// Returns the 32-bit words of rows.
    pub const fn n_words(n_rows: usize, n_cols: usize) -> usize {
        launch::coded_words(n_rows, pack::row_words(n_cols))
    }

    /// Quantizes each row of `x`.
    pub fn new(gpu: &Gpu, x: &Floats, symmetric: bool) -> Self {
        let buffer = gpu.empty::<u32>(Self::n_words(x.n_rows, x.n_cols));
        let coded = Self { buffer, n_rows: x.n_rows, n_cols: x.n_cols };
        let (codes, rows) = coded.parts();
        launch::quantize_into(gpu, x, &codes, &rows, symmetric);
        coded
    }

    fn parts(&self) -> (CodeWords, RowScales) {
        launch::parts_of(&self.buffer, self.n_rows, pack::row_words(self.n_cols))
    }
}

impl Int8 {
    /// Computes `y = x · wᵀ` with `x` quantized per row, followed by the epilogue.
    ///
    /// # Panics
    /// If the columns of `x` are not the inputs of the weights.
    pub fn linear(&self, x: &Floats, symmetric: bool, epilogue: &DeviceEpilogue) -> Floats {
        self.linear_of(&CodedRows::new(self.gpu(), x, symmetric), x.dtype, epilogue)
    }

    /// Like [`Self::linear`], for rows that are quantized already, with outputs of a type.
    ///
    /// # Panics
    /// If the columns of `x` are not the inputs of the weights.
    pub fn linear_of(&self, x: &CodedRows, dtype: ElemType, epilogue: &DeviceEpilogue) -> Floats {
        self.by(x, dtype, epilogue, |product, y| {
            multiply(product, y);
            Ok(())
        })
        .expect("a kernel for all extents")
    }

    /// Like [`Self::linear`], with the given kernel.
    ///
    /// # Errors
    /// The kernel does not support the device or the extents.
    ///
    /// # Panics
    /// See [`Self::linear`].
    pub fn linear_by(
        &self,
        way: Way,
        x: &Floats,
        symmetric: bool,
        epilogue: &DeviceEpilogue,
    ) -> Result<Floats, String> {
        self.by(&CodedRows::new(self.gpu(), x, symmetric), x.dtype, epilogue, |product, y| multiply_by(way, product, y))
    }

    /// Allocates outputs and computes them by a kernel.
    fn by(
        &self,
        x: &CodedRows,
        dtype: ElemType,
        epilogue: &DeviceEpilogue,
        kernel: impl FnOnce(&Product, &Floats) -> Result<(), String>,
    ) -> Result<Floats, String> {
        assert_eq!(x.n_cols, self.n_in(), "columns of activations for weights of [{}, {}]", self.n_out(), self.n_in());
        let (y, (codes, rows)) = (Floats::empty(self.gpu(), dtype, x.n_rows, self.n_out()), x.parts());
        let place = OutputPlacement::rows(self.n_out());
        kernel(&Product { codes: &codes, rows: &rows, weights: self, place, epilogue }, &y)?;
        Ok(y)
    }

    /// Returns the weights as floats.
    pub fn decode(&self, dtype: ElemType) -> Floats {
        let out = Floats::empty(self.gpu(), dtype, self.n_out(), self.n_in());
        if self.n_out() * self.n_in() > 0 {
            launch::decode(self.gpu(), &launch::dense_words(self), &self.scales, self.n_in(), 8, &out);
        }
        out
    }

    /// Computes `y = x · wᵀ + shift` with unquantized `x`, if there is a kernel for this number of rows.
    ///
    /// If it returns `None`, use [`Self::decode`] and multiply.
    pub fn weight_only(&self, x: &Floats, shift: Option<&DeviceBuffer>) -> Option<Floats> {
        let fits = (1..=FEW_FLOATS).contains(&x.n_rows) && x.n_cols == self.n_in() && self.n_in().is_multiple_of(4);
        if !fits || self.n_in() == 0 || self.n_out() == 0 {
            return None;
        }
        let y = Floats::empty(self.gpu(), x.dtype, x.n_rows, self.n_out());
        launch::few_rows_int8(self.gpu(), x, self, &launch::dense_words(self), shift, &y);
        Some(y)
    }
}

//! Linear layers with int8 weights, and conversion of the weights to floats.

use crate::fastest::multiply;
use crate::gpu::DeviceBuffer;
use crate::int8::Int8;
use crate::launch::{self, CodeWords, DeviceEpilogue, FEW_FLOATS, Floats, OutputPlacement, Product, RowScales};
use crate::way::{Way, multiply_by};
use cubecl_core::ir::ElemType;

impl Int8 {
    /// Computes `y = x · wᵀ` with `x` quantized per row, followed by the epilogue.
    ///
    /// # Panics
    /// If the columns of `x` are not the inputs of the weights.
    pub fn linear(&self, x: &Floats, symmetric: bool, epilogue: &DeviceEpilogue) -> Floats {
        let (y, codes, rows) = self.quantized(x, symmetric);
        let place = OutputPlacement::rows(self.n_out());
        multiply(&Product { codes: &codes, rows: &rows, weights: self, place, epilogue }, &y);
        y
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
        let (y, codes, rows) = self.quantized(x, symmetric);
        let place = OutputPlacement::rows(self.n_out());
        multiply_by(way, &Product { codes: &codes, rows: &rows, weights: self, place, epilogue }, &y)?;
        Ok(y)
    }

    /// Allocates outputs and quantizes activations.
    fn quantized(&self, x: &Floats, symmetric: bool) -> (Floats, CodeWords, RowScales) {
        assert_eq!(x.n_cols, self.n_in(), "columns of activations for weights of [{}, {}]", self.n_out(), self.n_in());
        let y = Floats::empty(self.gpu(), x.dtype, x.n_rows, self.n_out());
        let (codes, rows) = launch::quantize(self.gpu(), x, self.row_words(), symmetric);
        (y, codes, rows)
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

//! Products of int8 weights, and the weights as floats.

use crate::fastest::multiply;
use crate::gpu::DeviceBuffer;
use crate::int8::Int8;
use crate::launch::{self, CodeWords, DeviceEpilogue, FEW_FLOATS, Floats, OutputPlacement, Product, RowScales};
use crate::way::{Way, multiply_by};
use cubecl_core::ir::ElemType;

impl Int8 {
    /// `y = x · wᵀ` with `x` quantized by the row, and what follows.
    ///
    /// # Panics
    /// If `x` has other columns than there are inputs.
    pub fn linear(&self, x: &Floats, symmetric: bool, epilogue: &DeviceEpilogue) -> Floats {
        let (y, codes, rows) = self.quantized(x, symmetric);
        let place = OutputPlacement::rows(self.n_out());
        multiply(&Product { codes: &codes, rows: &rows, weights: self, place, epilogue }, &y);
        y
    }

    /// As [`Self::linear`], by a kernel of one's choice.
    ///
    /// # Errors
    /// Where the kernel does not fit the device or the extents.
    ///
    /// # Panics
    /// As [`Self::linear`].
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

    /// Room for outputs, and activations as codes.
    fn quantized(&self, x: &Floats, symmetric: bool) -> (Floats, CodeWords, RowScales) {
        assert_eq!(x.n_cols, self.n_in(), "columns of activations for weights of [{}, {}]", self.n_out(), self.n_in());
        let y = Floats::empty(self.gpu(), x.dtype, x.n_rows, self.n_out());
        let (codes, rows) = launch::quantize(self.gpu(), x, self.row_words(), symmetric);
        (y, codes, rows)
    }

    /// The weights as floats.
    pub fn decode(&self, dtype: ElemType) -> Floats {
        let out = Floats::empty(self.gpu(), dtype, self.n_out(), self.n_in());
        if self.n_out() * self.n_in() > 0 {
            launch::decode(self.gpu(), &launch::dense_words(self), &self.scales, self.n_in(), 8, &out);
        }
        out
    }

    /// `y = x · wᵀ + shift` with `x` as it is, where there is a kernel for so few rows; else [`Self::decode`] and multiply.
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

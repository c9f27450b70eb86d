//! int4 weights on a device.

use crate::gpu::{DeviceBuffer, Gpu};
use crate::launch::{self, FEW_FLOATS, Floats};
use crate::pack;
use cubecl_core::ir::ElemType;

/// int4 weights `[n_out, n_in]` with a scale for each `group` inputs of each output.
#[derive(Debug, Clone)]
pub struct Int4 {
    gpu: Gpu,
    n_out: usize,
    n_in: usize,
    group: usize,
    words: DeviceBuffer,
    scales: DeviceBuffer,
}

impl Int4 {
    /// Copies row-major `codes` from -8 to 7 with the values `codes[o, i] * scales[o, i / group]` to the
    /// device.
    ///
    /// # Panics
    /// If the lengths do not match the shape.
    pub fn new(gpu: &Gpu, codes: &[i8], scales: &[f32], [n_out, n_in]: [usize; 2], group: usize) -> Self {
        let n_scales = n_out * n_in.div_ceil(group);
        assert_eq!((codes.len(), scales.len()), (n_out * n_in, n_scales), "[{n_out}, {n_in}] in groups of {group}");
        let words = gpu.keep(&pack::rows_of_int4(codes, n_in));
        Self { gpu: gpu.clone(), n_out, n_in, group, words, scales: gpu.keep(scales) }
    }

    /// Returns the number of outputs.
    pub const fn n_out(&self) -> usize {
        self.n_out
    }

    /// Returns the number of inputs.
    pub const fn n_in(&self) -> usize {
        self.n_in
    }

    /// Returns the size on the device in bytes.
    pub fn n_bytes(&self) -> usize {
        self.words.n_bytes() + self.scales.n_bytes()
    }

    /// Returns the weights as floats.
    pub fn decode(&self, dtype: ElemType) -> Floats {
        let out = Floats::empty(&self.gpu, dtype, self.n_out, self.n_in);
        if self.n_out * self.n_in > 0 {
            launch::decode(&self.gpu, &self.words, &self.scales, self.group, 4, &out);
        }
        out
    }

    /// Like [`Int8::weight_only`](crate::Int8::weight_only).
    pub fn weight_only(&self, x: &Floats, shift: Option<&DeviceBuffer>) -> Option<Floats> {
        let is_whole = self.n_in.is_multiple_of(8) && self.group.is_multiple_of(8);
        let fits = (1..=FEW_FLOATS).contains(&x.n_rows) && x.n_cols == self.n_in && is_whole;
        if !fits || self.n_in == 0 || self.n_out == 0 {
            return None;
        }
        let y = Floats::empty(&self.gpu, x.dtype, x.n_rows, self.n_out);
        launch::few_rows_int4(&self.gpu, x, [&self.words, &self.scales], self.group, shift, &y);
        Some(y)
    }
}

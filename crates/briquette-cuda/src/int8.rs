//! int8 weights on a device.

use crate::gpu::{DeviceBuffer, Gpu};
use crate::pack;
use crate::stored::{DeviceBitmask, DeviceCodes};

/// int8 weights `[n_out, n_in]` with a scale for each output.
#[derive(Debug, Clone)]
pub struct Int8 {
    gpu: Gpu,
    n_out: usize,
    n_in: usize,
    pub(crate) kept: DeviceCodes,
    /// The sum of the codes of each output, to be multiplied by the zero point of activations.
    pub(crate) sums: DeviceBuffer,
    pub(crate) scales: DeviceBuffer,
}

impl Int8 {
    /// Copies row-major `codes` `[n_out, n_in]` with the values `codes[o, i] * scales[o]` to the device.
    ///
    /// # Panics
    /// If the lengths do not match the shape.
    pub fn new(gpu: &Gpu, codes: &[i8], scales: &[f32], [n_out, n_in]: [usize; 2], is_sparse: bool) -> Self {
        assert_eq!((codes.len(), scales.len()), (n_out * n_in, n_out), "codes and scales of [{n_out}, {n_in}]");
        let kept = match is_sparse {
            true => DeviceCodes::Bitmask(DeviceBitmask::new(gpu, &pack::blocks(codes, n_out, n_in))),
            false => DeviceCodes::Dense(gpu.keep(&pack::rows(codes, n_out, n_in))),
        };
        let sum = |row: usize| codes[row * n_in..(row + 1) * n_in].iter().map(|&code| i32::from(code)).sum::<i32>();
        let sums: Vec<i32> = (0..n_out).map(sum).collect();
        Self { gpu: gpu.clone(), n_out, n_in, kept, sums: gpu.keep(&sums), scales: gpu.keep(scales) }
    }

    /// Returns the number of outputs.
    pub const fn n_out(&self) -> usize {
        self.n_out
    }

    /// Returns the number of inputs.
    pub const fn n_in(&self) -> usize {
        self.n_in
    }

    /// Returns whether zeros are omitted.
    pub const fn is_sparse(&self) -> bool {
        self.kept.is_sparse()
    }

    /// Returns the size on the device in bytes.
    pub fn n_bytes(&self) -> usize {
        self.kept.n_bytes() + self.sums.n_bytes() + self.scales.n_bytes()
    }

    /// Returns the device of the weights.
    pub const fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) const fn row_words(&self) -> usize {
        pack::row_words(self.n_in)
    }
}

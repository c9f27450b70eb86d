//! Weights of a convolution.

use crate::compressed::cube::{self, CudaConv2d};
use crate::compressed::host_or_cuda::{HostOrCuda, WeightInfo};
use briquette_core::Result;
use briquette_cpu::ActivationGrid;
use briquette_cpu::check_depth;
use briquette_cpu::{Conv2dShape, OutputBounds, PackedConv2d};
use burn::tensor::Device;
use std::sync::Arc;

/// Quantized weights of a convolution.
#[derive(Debug, Clone)]
pub struct QuantizedConv2d {
    dims: [usize; 4],
    pub(in crate::compressed) placed: HostOrCuda<Arc<PackedConv2d>, CudaConv2d>,
    pub(in crate::compressed) grid: ActivationGrid,
}

impl WeightInfo for PackedConv2d {
    fn dims(&self) -> [usize; 2] {
        let [n_out, n_in, height, width] = self.dims();
        [n_out, n_in * height * width]
    }

    fn is_sparse(&self) -> bool {
        self.is_sparse()
    }

    fn n_bytes(&self) -> usize {
        self.n_bytes()
    }
}

impl QuantizedConv2d {
    /// Returns int8 weights on the CPU; each image is quantized separately, and each pixel if the kernel has one tap.
    pub fn new(weights: PackedConv2d, grid: ActivationGrid) -> Self {
        Self { dims: weights.dims(), placed: HostOrCuda::Host(Arc::new(weights)), grid }
    }

    /// Packs row-major `codes` `[out, in / groups, ky, kx]` with the values `codes[o, ..] * scales[o]` for
    /// `device`.
    ///
    /// # Errors
    /// Refused: an output has more than [`MAX_DEPTH`](briquette_cpu::MAX_DEPTH) inputs.
    ///
    /// # Panics
    /// If the lengths do not match the extents.
    pub fn on(
        device: &Device,
        codes: &[i8],
        scales: &[f32],
        dims: [usize; 4],
        is_sparse: bool,
        grid: ActivationGrid,
    ) -> Result<Self> {
        check_depth(dims[1] * dims[2] * dims[3])?;
        match cube::conv2d(device, codes, scales, dims, is_sparse) {
            Some(weights) => Ok(Self { dims, placed: HostOrCuda::Cuda(weights, scales.into()), grid }),
            None => Ok(Self::new(PackedConv2d::new(codes, scales, dims, is_sparse)?, grid)),
        }
    }

    /// Returns the extents of the weights, `[out, in / groups, ky, kx]`.
    pub const fn dims(&self) -> [usize; 4] {
        self.dims
    }

    /// Returns `int8` or `sparse int8`.
    pub fn name(&self) -> &'static str {
        if self.placed.is_sparse() { "sparse int8" } else { "int8" }
    }

    /// Returns the size in memory in bytes.
    pub fn n_bytes(&self) -> usize {
        self.placed.n_bytes()
    }
}

/// The parameters of a convolution operation. See [`ConvEpilogue`](briquette_cpu::ConvEpilogue) for scale, shift
/// and bounds.
#[derive(Debug, Clone)]
pub struct Conv2dCall {
    /// The quantized weights.
    pub weights: QuantizedConv2d,
    /// Stride, padding, dilation and channels.
    pub shape: Conv2dShape,
    /// Whether there is a factor for each output channel.
    pub has_scale: bool,
    /// Whether there is a summand for each output channel.
    pub has_shift: bool,
    /// The bounds of outputs.
    pub bounds: OutputBounds,
    /// Whether outputs on the CPU may have their channels last in memory, which convolutions of codes read and write faster.
    pub channels_last: bool,
}

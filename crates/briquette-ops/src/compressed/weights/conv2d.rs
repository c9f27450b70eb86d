//! Weights of a convolution.

use crate::compressed::cube::{self, CudaConv2d};
use crate::compressed::host_or_cuda::{HostOrCuda, WeightInfo};
use briquette_core::Result;
use briquette_cpu::ActivationGrid;
use briquette_cpu::check_depth;
use briquette_cpu::{Conv2dShape, PackedConv2d};
use burn::tensor::Device;
use std::sync::Arc;

/// Weights of a convolution.
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
    /// int8 weights for the CPU, each image quantized by itself.
    pub fn new(weights: PackedConv2d, grid: ActivationGrid) -> Self {
        Self { dims: weights.dims(), placed: HostOrCuda::Host(Arc::new(weights)), grid }
    }

    /// Lays out row-major `codes` `[out, in / groups, ky, kx]`, worth `codes[o, ..] * scales[o]` each, for `device`.
    ///
    /// # Errors
    /// Refuses more than [`MAX_DEPTH`](briquette_cpu::MAX_DEPTH) inputs of an output.
    ///
    /// # Panics
    /// If the lengths disagree with the extents.
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

    /// Extents of the weights, `[out, in / groups, ky, kx]`.
    pub const fn dims(&self) -> [usize; 4] {
        self.dims
    }

    /// `int8` or `sparse int8`.
    pub fn name(&self) -> &'static str {
        if self.placed.is_sparse() { "sparse int8" } else { "int8" }
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        self.placed.n_bytes()
    }
}

/// A convolution as an operation: see [`ConvEpilogue`](briquette_cpu::ConvEpilogue) for its last three.
#[derive(Debug, Clone)]
pub struct Conv2dCall {
    /// Its weights.
    pub weights: QuantizedConv2d,
    /// How they step over an image.
    pub shape: Conv2dShape,
    /// Whether each output channel has a factor.
    pub has_scale: bool,
    /// Whether each output channel has a term.
    pub has_shift: bool,
    /// Whether negatives become 0.
    pub relu: bool,
}

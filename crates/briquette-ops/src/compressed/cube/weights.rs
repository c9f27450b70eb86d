//! Weights on a CUDA device. Each function copies them to `device` if it is one.

use crate::compressed::host_or_cuda::WeightInfo;
use crate::cube_tensor::gpu_of;
use briquette_cuda::{DeviceConv2d, DeviceTable, Int4, Int8};
use burn::tensor::Device;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub(in crate::compressed) enum CudaLinear {
    Int8(Box<Int8>),
    Int4(Box<Int4>),
}

pub(in crate::compressed) type CudaConv2d = Arc<DeviceConv2d>;
pub(in crate::compressed) type CudaTable = Arc<DeviceTable>;

/// Copies rows of int8 codes.
pub(in crate::compressed) fn int8(
    device: &Device,
    codes: &[i8],
    scales: &[f32],
    dims: [usize; 2],
    is_sparse: bool,
) -> Option<CudaLinear> {
    gpu_of(device).map(|gpu| CudaLinear::Int8(Box::new(Int8::new(&gpu, codes, scales, dims, is_sparse))))
}

/// Copies rows of 4-bit codes, with a scale for each `group` inputs.
pub(in crate::compressed) fn int4(
    device: &Device,
    codes: &[i8],
    scales: &[f32],
    dims: [usize; 2],
    group: usize,
) -> Option<CudaLinear> {
    gpu_of(device).map(|gpu| CudaLinear::Int4(Box::new(Int4::new(&gpu, codes, scales, dims, group))))
}

/// Copies the weights of a convolution.
pub(in crate::compressed) fn conv2d(
    device: &Device,
    codes: &[i8],
    scales: &[f32],
    dims: [usize; 4],
    is_sparse: bool,
) -> Option<CudaConv2d> {
    gpu_of(device).map(|gpu| Arc::new(DeviceConv2d::new(&gpu, codes, scales, dims, is_sparse)))
}

/// Copies a lookup table.
pub(in crate::compressed) fn table(
    device: &Device,
    codes: &[i8],
    scales: &[f32],
    dims: [usize; 2],
    is_sparse: bool,
) -> Option<CudaTable> {
    gpu_of(device).map(|gpu| Arc::new(DeviceTable::new(&gpu, codes, scales, dims, is_sparse)))
}

impl WeightInfo for CudaLinear {
    fn dims(&self) -> [usize; 2] {
        match self {
            Self::Int8(weights) => [weights.n_out(), weights.n_in()],
            Self::Int4(weights) => [weights.n_out(), weights.n_in()],
        }
    }

    fn is_sparse(&self) -> bool {
        matches!(self, Self::Int8(weights) if weights.is_sparse())
    }

    fn n_bytes(&self) -> usize {
        match self {
            Self::Int8(weights) => weights.n_bytes(),
            Self::Int4(weights) => weights.n_bytes(),
        }
    }

    fn n_bits(&self) -> usize {
        match self {
            Self::Int8(_) => 8,
            Self::Int4(_) => 4,
        }
    }
}

impl WeightInfo for DeviceConv2d {
    fn dims(&self) -> [usize; 2] {
        [self.rows().n_out(), self.rows().n_in()]
    }

    fn is_sparse(&self) -> bool {
        self.is_sparse()
    }

    fn n_bytes(&self) -> usize {
        self.n_bytes()
    }
}

impl WeightInfo for DeviceTable {
    fn dims(&self) -> [usize; 2] {
        [self.n_rows(), self.n_cols()]
    }

    fn is_sparse(&self) -> bool {
        self.is_sparse()
    }

    fn n_bytes(&self) -> usize {
        self.n_bytes()
    }
}

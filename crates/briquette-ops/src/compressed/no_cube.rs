//! Replaces the CUDA module in builds without CUDA: no device is a CUDA device.

use super::host_or_cuda::WeightInfo;
use super::int8_blocks::CodedLinear;
use briquette_cpu::ActivationGrid;
use burn::tensor::{Device, Tensor};
use std::convert::Infallible;
pub(super) use std::convert::{Infallible as CudaLinear, Infallible as CudaConv2d, Infallible as CudaTable};

impl WeightInfo for Infallible {
    fn dims(&self) -> [usize; 2] {
        match *self {}
    }

    fn is_sparse(&self) -> bool {
        match *self {}
    }

    fn n_bytes(&self) -> usize {
        match *self {}
    }
}

pub(super) const fn is_cuda(_: &Device) -> bool {
    false
}

pub(super) const fn int8(_: &Device, _: &[i8], _: &[f32], _: [usize; 2], _: bool) -> Option<CudaLinear> {
    None
}

pub(super) const fn int4(_: &Device, _: &[i8], _: &[f32], _: [usize; 2], _: usize) -> Option<CudaLinear> {
    None
}

pub(super) const fn conv2d(_: &Device, _: &[i8], _: &[f32], _: [usize; 4], _: bool) -> Option<CudaConv2d> {
    None
}

pub(super) const fn table(_: &Device, _: &[i8], _: &[f32], _: [usize; 2], _: bool) -> Option<CudaTable> {
    None
}

pub(super) fn linears<const D: usize>(_: Tensor<D>, _: &[CodedLinear], _: ActivationGrid) -> Vec<Tensor<D>> {
    unreachable!("no weights are on a GPU")
}

//! Weights on the CPU or on a CUDA device, with a common interface.

use std::sync::Arc;

/// The panic message if weights and input are on different devices, which is a bug of the caller.
pub(super) const ELSEWHERE: &str = "the weights are packed for another device";

/// Properties of weights on any device.
pub(super) trait WeightInfo {
    /// Returns the number of rows (outputs) and columns.
    fn dims(&self) -> [usize; 2];

    /// Returns whether zeros are omitted.
    fn is_sparse(&self) -> bool;

    /// Returns the size in memory in bytes.
    fn n_bytes(&self) -> usize;

    /// Returns the bits of a code.
    fn n_bits(&self) -> usize {
        8
    }
}

impl<T: WeightInfo> WeightInfo for Arc<T> {
    fn dims(&self) -> [usize; 2] {
        T::dims(self)
    }

    fn is_sparse(&self) -> bool {
        T::is_sparse(self)
    }

    fn n_bytes(&self) -> usize {
        T::n_bytes(self)
    }

    fn n_bits(&self) -> usize {
        T::n_bits(self)
    }
}

/// Weights of one kind on the CPU or on a CUDA device.
#[derive(Debug, Clone)]
pub(super) enum HostOrCuda<H, C> {
    /// On the CPU.
    Host(H),
    /// On a CUDA device. The scales are also on the host, so that codes can be read back.
    Cuda(C, Arc<[f32]>),
}

impl<H, C> HostOrCuda<H, C> {
    /// Returns the weights if they are on the CPU.
    pub(super) const fn on_host(&self) -> Option<&H> {
        match self {
            Self::Host(weights) => Some(weights),
            Self::Cuda(..) => None,
        }
    }

    /// Returns the scales of weights on a CUDA device, row by row.
    pub(super) fn cuda_scales(&self) -> Option<&[f32]> {
        match self {
            Self::Host(_) => None,
            Self::Cuda(_, scales) => Some(scales),
        }
    }
}

impl<H: WeightInfo, C: WeightInfo> HostOrCuda<H, C> {
    fn info(&self) -> &dyn WeightInfo {
        match self {
            Self::Host(weights) => weights,
            Self::Cuda(weights, _) => weights,
        }
    }
}

impl<H: WeightInfo, C: WeightInfo> WeightInfo for HostOrCuda<H, C> {
    fn dims(&self) -> [usize; 2] {
        self.info().dims()
    }

    fn is_sparse(&self) -> bool {
        self.info().is_sparse()
    }

    fn n_bytes(&self) -> usize {
        self.info().n_bytes()
    }

    fn n_bits(&self) -> usize {
        self.info().n_bits()
    }
}

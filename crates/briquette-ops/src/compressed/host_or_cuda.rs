//! Weights on the CPU or on a CUDA device, and what is known of them on either.

use std::sync::Arc;

/// What an operation says of weights that are not on the device of its input, which is a bug of the caller.
pub(super) const ELSEWHERE: &str = "weights are laid out for another device";

/// What is known of weights wherever they lie.
pub(super) trait WeightInfo {
    /// Rows, one for each output, and columns.
    fn dims(&self) -> [usize; 2];

    /// Whether zeros are left out.
    fn is_sparse(&self) -> bool;

    /// Bytes held.
    fn n_bytes(&self) -> usize;

    /// Bits of a code.
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

/// Weights of one kind, where they were laid out.
#[derive(Debug, Clone)]
pub(super) enum HostOrCuda<H, C> {
    /// For the CPU.
    Host(H),
    /// On a CUDA device; their scales are kept on the host too, so that codes can be read back.
    Cuda(C, Arc<[f32]>),
}

impl<H, C> HostOrCuda<H, C> {
    /// The weights, if they are laid out for the CPU.
    pub(super) const fn on_host(&self) -> Option<&H> {
        match self {
            Self::Host(weights) => Some(weights),
            Self::Cuda(..) => None,
        }
    }

    /// The scales of weights on a CUDA device, row by row.
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

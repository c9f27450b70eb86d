//! Weights on the CPU or on a CUDA device, and what is known of them on either.

use std::sync::Arc;

/// What an operation says of weights that are not on the device of its input, which is a bug of the caller.
pub(super) const ELSEWHERE: &str = "weights are laid out for another device";

/// What is known of weights wherever they lie.
pub(super) trait Stored {
    /// Rows, of outputs, and columns.
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

impl<T: Stored> Stored for Arc<T> {
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
pub(super) enum Placed<H, C> {
    /// For the CPU.
    Host(H),
    /// On a CUDA device.
    Cuda(C),
}

impl<H, C> Placed<H, C> {
    /// Those for the CPU.
    pub(super) const fn on_host(&self) -> Option<&H> {
        match self {
            Self::Host(weights) => Some(weights),
            Self::Cuda(_) => None,
        }
    }
}

impl<H: Stored, C: Stored> Placed<H, C> {
    fn stored(&self) -> &dyn Stored {
        match self {
            Self::Host(weights) => weights,
            Self::Cuda(weights) => weights,
        }
    }
}

impl<H: Stored, C: Stored> Stored for Placed<H, C> {
    fn dims(&self) -> [usize; 2] {
        self.stored().dims()
    }

    fn is_sparse(&self) -> bool {
        self.stored().is_sparse()
    }

    fn n_bytes(&self) -> usize {
        self.stored().n_bytes()
    }

    fn n_bits(&self) -> usize {
        self.stored().n_bits()
    }
}

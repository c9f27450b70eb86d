//! Dense or sparse codes on a device.

use crate::gpu::{DeviceBuffer, Gpu};
use crate::pack;

/// Sparse codes on a device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceBitmask {
    pub(crate) bits: DeviceBuffer,
    pub(crate) values: DeviceBuffer,
    pub(crate) bases: DeviceBuffer,
}

impl DeviceBitmask {
    pub(crate) fn new(gpu: &Gpu, packed: &pack::Bitmask) -> Self {
        Self { bits: gpu.keep(&packed.bits), values: gpu.keep(&packed.values), bases: gpu.keep(&packed.bases) }
    }

    pub(crate) fn n_bytes(&self) -> usize {
        self.bits.n_bytes() + self.values.n_bytes() + self.bases.n_bytes()
    }
}

/// Dense or sparse codes.
#[derive(Debug, Clone)]
pub(crate) enum DeviceCodes {
    Dense(DeviceBuffer),
    Bitmask(DeviceBitmask),
}

impl DeviceCodes {
    pub(crate) const fn is_sparse(&self) -> bool {
        matches!(self, Self::Bitmask(_))
    }

    pub(crate) fn n_bytes(&self) -> usize {
        match self {
            Self::Dense(words) => words.n_bytes(),
            Self::Bitmask(blocks) => blocks.n_bytes(),
        }
    }
}

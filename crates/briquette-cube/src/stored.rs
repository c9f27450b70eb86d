//! Codes on a device, with their zeros or without.

use crate::gpu::{Buffer, Gpu};
use crate::pack;

/// Codes without their zeros, on a device.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    pub(crate) bits: Buffer,
    pub(crate) values: Buffer,
    pub(crate) bases: Buffer,
}

impl Blocks {
    pub(crate) fn new(gpu: &Gpu, packed: &pack::Bitmask) -> Self {
        Self { bits: gpu.keep(&packed.bits), values: gpu.keep(&packed.values), bases: gpu.keep(&packed.bases) }
    }

    pub(crate) fn n_bytes(&self) -> usize {
        self.bits.n_bytes() + self.values.n_bytes() + self.bases.n_bytes()
    }
}

/// How codes are kept.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    Dense(Buffer),
    Blocks(Blocks),
}

impl Kept {
    pub(crate) fn n_bytes(&self) -> usize {
        match self {
            Self::Dense(words) => words.n_bytes(),
            Self::Blocks(blocks) => blocks.n_bytes(),
        }
    }
}

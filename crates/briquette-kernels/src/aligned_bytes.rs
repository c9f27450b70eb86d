//! Bytes that begin on a cache line.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// A growable array of bytes aligned to 64.
#[derive(Clone, Default)]
pub(crate) struct AlignedBytes(Vec<CacheLine>);

impl AlignedBytes {
    /// `n` zeros, rounded up to whole lines.
    pub(crate) fn zeroed(n: usize) -> Self {
        Self(vec![CacheLine([0; 64]); n.div_ceil(64)])
    }

    /// Makes room for `n` bytes; those that were there keep their values, new ones are 0.
    pub(crate) fn resize(&mut self, n: usize) {
        self.0.resize(n.div_ceil(64), CacheLine([0; 64]));
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    pub(crate) fn codes(&self) -> &[i8] {
        bytemuck::cast_slice(&self.0)
    }

    pub(crate) fn codes_mut(&mut self) -> &mut [i8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

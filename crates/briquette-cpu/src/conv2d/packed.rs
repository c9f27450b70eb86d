//! Packed weights of a convolution.

use crate::packed::PackedInt8;
use crate::panel_layout::{check_depth, check_lengths};
use crate::simd::TapWeights;
use crate::sparse::SparseInt8;
use crate::weights::{Int8Weights, codes_of};
use briquette_core::Result;
use std::sync::OnceLock;

/// Weights of a convolution `[out, in / groups, ky, kx]`, packed in panels.
///
/// A panel has 32 outputs over patches `[ky, kx, in]`. The caller of the convolution gives stride, padding and
/// dilation.
#[derive(Clone, Debug)]
pub struct PackedConv2d {
    pub(super) dims: [usize; 4],
    pub(super) panels: ConvPanels,
    /// The weights of a depthwise convolution in the order of its kernel; set by the first convolution of codes.
    by_tap: OnceLock<TapWeights>,
    /// The weights with rows of the kernel in multiples of 4 codes; set in the same way.
    with_whole_groups: OnceLock<PackedInt8>,
}

#[derive(Clone, Debug)]
pub(super) enum ConvPanels {
    Dense(PackedInt8),
    Sparse(SparseInt8),
}

impl PackedConv2d {
    /// Packs codes `[out, in / groups, ky, kx]` with one scale for each output.
    ///
    /// With `is_sparse`, only nonzero codes are stored.
    ///
    /// # Errors
    /// Refused: a patch has more than [`MAX_DEPTH`](crate::MAX_DEPTH) inputs.
    ///
    /// # Panics
    /// If the lengths do not match `dims`.
    pub fn new(codes: &[i8], scales: &[f32], dims: [usize; 4], is_sparse: bool) -> Result<Self> {
        let [n_out, n_in, height, width] = dims;
        let depth = n_in * height * width;
        check_lengths(codes.len(), scales.len(), n_out, depth);
        check_depth(depth)?;
        let codes = swap_inner(codes, n_in, height * width);
        let panels = match is_sparse {
            true => ConvPanels::Sparse(SparseInt8::new(&codes, scales, n_out, depth)?),
            false => ConvPanels::Dense(PackedInt8::new(&codes, scales, n_out, depth)?),
        };
        Ok(Self { dims, panels, by_tap: OnceLock::new(), with_whole_groups: OnceLock::new() })
    }

    /// Returns the extents of the weights, `[out, in / groups, ky, kx]`.
    pub const fn dims(&self) -> [usize; 4] {
        self.dims
    }

    /// Returns whether zeros are omitted.
    pub const fn is_sparse(&self) -> bool {
        matches!(self.panels, ConvPanels::Sparse(_))
    }

    /// Returns the size in memory in bytes.
    pub fn n_bytes(&self) -> usize {
        let n_bytes = match &self.panels {
            ConvPanels::Dense(weights) => weights.n_bytes(),
            ConvPanels::Sparse(weights) => weights.n_bytes(),
        };
        let by_tap = self.by_tap.get().map_or(0, TapWeights::n_bytes);
        n_bytes + by_tap + self.with_whole_groups.get().map_or(0, Int8Weights::n_bytes)
    }

    /// Returns the weights of a depthwise convolution in the order of its kernel.
    pub(super) fn by_tap(&self) -> &TapWeights {
        self.by_tap.get_or_init(|| {
            let (codes, _) = self.codes();
            TapWeights::new(&codes, [self.dims[2], self.dims[3]])
        })
    }

    /// Returns the weights of one group with codes of 0 after each row of the kernel, up to a multiple of 4.
    pub(super) fn with_whole_groups(&self) -> &PackedInt8 {
        self.with_whole_groups.get_or_init(|| {
            let ((codes, scales), [n_out, n_in, height, width]) = (self.patch_codes(), self.dims);
            let (n_run, n_whole) = (n_in * width, (n_in * width).next_multiple_of(4));
            let mut wide = vec![0; n_out * height * n_whole];
            for (from, to) in codes.chunks_exact(n_run.max(1)).zip(wide.chunks_exact_mut(n_whole.max(1))) {
                to[..n_run].copy_from_slice(from);
            }
            PackedInt8::new(&wide, &scales, n_out, height * n_whole).expect("a few more inputs")
        })
    }

    /// Returns the weights as f32, `[out, in / groups, ky, kx]`.
    pub fn to_floats(&self) -> Vec<f32> {
        let (codes, scales) = self.codes();
        let depth = self.dims[1..].iter().product::<usize>().max(1);
        codes.iter().enumerate().map(|(i, &code)| f32::from(code) * scales[i / depth]).collect()
    }

    /// Returns the codes `[out, in / groups, ky, kx]` and the scale of each output.
    pub fn codes(&self) -> (Vec<i8>, Vec<f32>) {
        let ((codes, scales), [_, n_in, height, width]) = (self.patch_codes(), self.dims);
        (swap_inner(&codes, height * width, n_in), scales)
    }

    /// Returns the codes `[out, ky, kx, in / groups]` and the scale of each output.
    fn patch_codes(&self) -> (Vec<i8>, Vec<f32>) {
        match &self.panels {
            ConvPanels::Dense(weights) => codes_of(weights),
            ConvPanels::Sparse(weights) => codes_of(weights),
        }
    }
}

/// Transposes `[.., a, b]` to `[.., b, a]`, so that the channels of a tap are contiguous.
pub(super) fn swap_inner<E: Copy>(from: &[E], a: usize, b: usize) -> Vec<E> {
    let each = from.chunks_exact((a * b).max(1));
    each.flat_map(|one| (0..b).flat_map(move |j| (0..a).map(move |i| one[i * b + j]))).collect()
}

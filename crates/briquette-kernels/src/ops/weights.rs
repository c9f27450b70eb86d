//! Handles of packed weights, cheap to clone.

use crate::conv2d::{Conv2dShape, PackedConv2d};
use crate::int4::PackedInt4;
use crate::packed::PackedInt8;
use crate::quantize_rows::ActivationGrid;
use crate::sparse::SparseInt8;
use crate::weights::Int8Weights;
use std::sync::Arc;

/// Weights of a linear layer, however they are kept.
#[derive(Debug, Clone)]
pub struct LinearWeights(pub(crate) Kind);

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Int8(Arc<PackedInt8>, Option<ActivationGrid>),
    Sparse(Arc<SparseInt8>, Option<ActivationGrid>),
    Int4(Arc<PackedInt4>),
}

/// Calls `$run` with the weights of any kind.
macro_rules! with_weights {
    ($kind:expr, |$weights:ident| $run:expr) => {
        match $kind {
            Kind::Int8($weights, _) => $run,
            Kind::Sparse($weights, _) => $run,
            Kind::Int4($weights) => $run,
        }
    };
}

impl LinearWeights {
    /// int8 weights; activations are quantized by the row, or left as they are where there is no grid.
    pub fn int8(weights: PackedInt8, grid: Option<ActivationGrid>) -> Self {
        Self(Kind::Int8(Arc::new(weights), grid))
    }

    /// As [`Self::int8`], with zeros left out.
    pub fn sparse_int8(weights: SparseInt8, grid: Option<ActivationGrid>) -> Self {
        Self(Kind::Sparse(Arc::new(weights), grid))
    }

    /// int4 weights, activations as they are.
    pub fn int4(weights: PackedInt4) -> Self {
        Self(Kind::Int4(Arc::new(weights)))
    }

    /// Outputs.
    pub fn n_out(&self) -> usize {
        with_weights!(&self.0, |weights| weights.n_out())
    }

    /// Inputs.
    pub fn n_in(&self) -> usize {
        with_weights!(&self.0, |weights| weights.n_in())
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        with_weights!(&self.0, |weights| weights.n_bytes())
    }

    /// `int8`, `sparse int8`, either of them `weight-only` where activations stay floats, or `int4`.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Kind::Int8(_, Some(_)) => "int8",
            Kind::Int8(_, None) => "int8 weight-only",
            Kind::Sparse(_, Some(_)) => "sparse int8",
            Kind::Sparse(_, None) => "sparse int8 weight-only",
            Kind::Int4(_) => "int4",
        }
    }

    /// The weights as f32, `[n_out, n_in]`.
    pub fn to_floats(&self) -> Vec<f32> {
        with_weights!(&self.0, |weights| weights.to_floats())
    }
}

/// Weights of a convolution.
#[derive(Debug, Clone)]
pub struct QuantizedConv2d {
    pub(crate) weights: Arc<PackedConv2d>,
    pub(crate) grid: ActivationGrid,
}

impl QuantizedConv2d {
    /// int8 weights, each image quantized by itself.
    pub fn new(weights: PackedConv2d, grid: ActivationGrid) -> Self {
        Self { weights: Arc::new(weights), grid }
    }

    /// Extents of the weights, `[out, in / groups, ky, kx]`.
    pub fn dims(&self) -> [usize; 4] {
        self.weights.dims()
    }

    /// `int8` or `sparse int8`.
    pub fn name(&self) -> &'static str {
        if self.weights.is_sparse() { "sparse int8" } else { "int8" }
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        self.weights.n_bytes()
    }

    /// The weights as f32, in their extents.
    pub fn to_floats(&self) -> Vec<f32> {
        self.weights.to_floats()
    }
}

/// A convolution as an operation: see [`Finish`](crate::Finish) for its last three.
#[derive(Debug, Clone)]
pub struct Conv2dCall {
    /// Its weights.
    pub weights: QuantizedConv2d,
    /// How they step over an image.
    pub shape: Conv2dShape,
    /// What each output channel is multiplied by.
    pub scale: Option<Vec<f32>>,
    /// What is added to each output channel.
    pub shift: Option<Vec<f32>>,
    /// Whether negatives become 0.
    pub relu: bool,
}

//! Handles of packed weights, cheap to clone.

use crate::conv2d::PackedConv2d;
use crate::int4::PackedInt4;
use crate::packed::PackedInt8;
use crate::quantize_rows::ActivationGrid;
use crate::sparse::SparseInt8;
use crate::weights::Int8Weights;
use std::sync::Arc;

/// Weights of a linear layer, however they are kept, and its bias.
#[derive(Debug, Clone)]
pub struct LinearWeights {
    pub(crate) kind: Kind,
    pub(crate) bias: Option<Arc<[f32]>>,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Int8(Arc<PackedInt8>, ActivationGrid),
    Sparse(Arc<SparseInt8>, ActivationGrid),
    Int4(Arc<PackedInt4>),
}

impl LinearWeights {
    /// int8 weights, activations quantized by the row.
    ///
    /// # Panics
    /// If the bias is not as long as there are outputs; so do the others.
    pub fn int8(weights: PackedInt8, grid: ActivationGrid, bias: Option<Vec<f32>>) -> Self {
        Self::new(Kind::Int8(Arc::new(weights), grid), bias)
    }

    /// As [`Self::int8`], with zeros left out.
    pub fn sparse_int8(weights: SparseInt8, grid: ActivationGrid, bias: Option<Vec<f32>>) -> Self {
        Self::new(Kind::Sparse(Arc::new(weights), grid), bias)
    }

    /// int4 weights, activations as they are.
    pub fn int4(weights: PackedInt4, bias: Option<Vec<f32>>) -> Self {
        Self::new(Kind::Int4(Arc::new(weights)), bias)
    }

    fn new(kind: Kind, bias: Option<Vec<f32>>) -> Self {
        let weights = Self { kind, bias: bias.map(Arc::from) };
        if let Some(bias) = &weights.bias {
            assert_eq!(bias.len(), weights.n_out(), "a bias of {} for {} outputs", bias.len(), weights.n_out());
        }
        weights
    }

    /// Outputs.
    pub fn n_out(&self) -> usize {
        match &self.kind {
            Kind::Int8(weights, _) => weights.n_out(),
            Kind::Sparse(weights, _) => weights.n_out(),
            Kind::Int4(weights) => weights.n_out(),
        }
    }

    /// Inputs.
    pub fn n_in(&self) -> usize {
        match &self.kind {
            Kind::Int8(weights, _) => weights.n_in(),
            Kind::Sparse(weights, _) => weights.n_in(),
            Kind::Int4(weights) => weights.n_in(),
        }
    }

    /// Bytes held, the bias included.
    pub fn n_bytes(&self) -> usize {
        let weights = match &self.kind {
            Kind::Int8(weights, _) => weights.n_bytes(),
            Kind::Sparse(weights, _) => weights.n_bytes(),
            Kind::Int4(weights) => weights.n_bytes(),
        };
        weights + self.bias.as_ref().map_or(0, |bias| 4 * bias.len())
    }
}

/// Weights of a convolution and its bias.
#[derive(Debug, Clone)]
pub struct QuantizedConv2d {
    pub(crate) weights: Arc<PackedConv2d>,
    pub(crate) grid: ActivationGrid,
    pub(crate) bias: Option<Arc<[f32]>>,
}

impl QuantizedConv2d {
    /// int8 weights, each image quantized by itself.
    ///
    /// # Panics
    /// If the bias is not as long as there are outputs.
    pub fn new(weights: PackedConv2d, grid: ActivationGrid, bias: Option<Vec<f32>>) -> Self {
        if let Some(bias) = &bias {
            assert_eq!(bias.len(), weights.shape().n_out, "as long a bias as there are outputs");
        }
        Self { weights: Arc::new(weights), grid, bias: bias.map(Arc::from) }
    }

    /// Bytes held, the bias included.
    pub fn n_bytes(&self) -> usize {
        self.weights.n_bytes() + self.bias.as_ref().map_or(0, |bias| 4 * bias.len())
    }
}

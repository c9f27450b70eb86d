//! Handles of packed weights, cheap to clone.

use crate::conv2d::PackedConv2d;
use crate::int4::PackedInt4;
use crate::packed::{PackedInt8, panel_bytes};
use crate::quantize_rows::ActivationGrid;
use crate::simd::PANEL;
use crate::sparse::SparseInt8;
use crate::weights::Int8Weights;
use std::sync::Arc;

/// Weights of a linear layer, however they are kept.
#[derive(Debug, Clone)]
pub struct LinearWeights(pub(crate) Kind);

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Int8(Arc<PackedInt8>, ActivationGrid),
    Sparse(Arc<SparseInt8>, ActivationGrid),
    Int4(Arc<PackedInt4>),
}

impl LinearWeights {
    /// int8 weights, activations quantized by the row.
    pub fn int8(weights: PackedInt8, grid: ActivationGrid) -> Self {
        Self(Kind::Int8(Arc::new(weights), grid))
    }

    /// As [`Self::int8`], with zeros left out.
    pub fn sparse_int8(weights: SparseInt8, grid: ActivationGrid) -> Self {
        Self(Kind::Sparse(Arc::new(weights), grid))
    }

    /// int4 weights, activations as they are.
    pub fn int4(weights: PackedInt4) -> Self {
        Self(Kind::Int4(Arc::new(weights)))
    }

    /// Outputs.
    pub fn n_out(&self) -> usize {
        match &self.0 {
            Kind::Int8(weights, _) => weights.n_out(),
            Kind::Sparse(weights, _) => weights.n_out(),
            Kind::Int4(weights) => weights.n_out(),
        }
    }

    /// Inputs.
    pub fn n_in(&self) -> usize {
        match &self.0 {
            Kind::Int8(weights, _) => weights.n_in(),
            Kind::Sparse(weights, _) => weights.n_in(),
            Kind::Int4(weights) => weights.n_in(),
        }
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        match &self.0 {
            Kind::Int8(weights, _) => weights.n_bytes(),
            Kind::Sparse(weights, _) => weights.n_bytes(),
            Kind::Int4(weights) => weights.n_bytes(),
        }
    }

    /// `int8`, `sparse int8` or `int4`.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Kind::Int8(..) => "int8",
            Kind::Sparse(..) => "sparse int8",
            Kind::Int4(..) => "int4",
        }
    }

    /// The weights as f32, `[n_out, n_in]`.
    pub fn to_floats(&self) -> Vec<f32> {
        match &self.0 {
            Kind::Int8(weights, _) => panel_floats(&**weights),
            Kind::Sparse(weights, _) => panel_floats(&**weights),
            Kind::Int4(weights) => weights.to_floats(),
        }
    }
}

/// Unpacks panels of 32 outputs, one at a time.
fn panel_floats<W: Int8Weights>(weights: &W) -> Vec<f32> {
    let (n_out, n_in) = (weights.n_out(), weights.n_in());
    let (mut floats, mut codes) = (vec![0.0; n_out * n_in], vec![0; panel_bytes(n_in)]);
    if n_in == 0 {
        return floats;
    }
    for (row, out) in floats.chunks_exact_mut(n_in).enumerate() {
        let (index, lane) = (row / PANEL, row % PANEL);
        if lane == 0 {
            weights.unpack(index, &mut codes);
        }
        let scale = weights.scale(row);
        for (col, value) in out.iter_mut().enumerate() {
            *value = f32::from(codes[(col / 4 * PANEL + lane) * 4 + col % 4]) * scale;
        }
    }
    floats
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

    /// Outputs.
    pub fn n_out(&self) -> usize {
        self.weights.shape().n_out
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        self.weights.n_bytes()
    }
}

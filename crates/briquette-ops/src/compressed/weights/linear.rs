//! Weights of a linear layer.

use crate::compressed::cube::{self, CudaLinear};
use crate::compressed::host_or_cuda::{HostOrCuda, WeightInfo};
use crate::compressed::weights::InputColumns;
use briquette_core::{ColumnScales, Result};
use briquette_cpu::PackedInt4;
use briquette_cpu::PackedInt8;
use briquette_cpu::PackedW4A8;
use briquette_cpu::SparseInt8;
use briquette_cpu::check_depth;
use briquette_cpu::{ActivationGrid, InputRounding};
use briquette_cpu::{Int8Weights, codes_of};
use burn::tensor::Device;
use std::sync::Arc;

/// Quantized weights of a linear layer, in any format.
#[derive(Debug, Clone)]
pub struct LinearWeights {
    pub(in crate::compressed) placed: HostOrCuda<HostLinear, CudaLinear>,
    /// The grid for quantizing activations; `None` if they stay floats.
    pub(in crate::compressed) grid: Option<ActivationGrid>,
    columns: Option<Arc<InputColumns>>,
}

#[derive(Debug, Clone)]
pub(in crate::compressed) enum HostLinear {
    Int8(Arc<PackedInt8>),
    Sparse(Arc<SparseInt8>),
    Int4(Arc<PackedInt4>),
    W4A8(Arc<PackedW4A8>),
}

impl HostLinear {
    /// Returns the weights as f32, `[n_out, n_in]`.
    pub(super) fn to_floats(&self) -> Vec<f32> {
        match self {
            Self::Int8(weights) => weights.to_floats(),
            Self::Sparse(weights) => weights.to_floats(),
            Self::Int4(weights) => weights.to_floats(),
            Self::W4A8(weights) => weights.to_floats(),
        }
    }

    /// Dequantizes the weights of one output.
    pub(in crate::compressed) fn read_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Int8(weights) => weights.read_row(row, out),
            Self::Sparse(weights) => weights.read_row(row, out),
            Self::Int4(weights) => weights.read_row(row, out),
            Self::W4A8(weights) => weights.read_row(row, out),
        }
    }

    /// Returns the codes `[n_out, n_in]`, including zeros, and the scales of each row.
    pub(super) fn codes(&self) -> (Vec<i8>, Vec<f32>) {
        match self {
            Self::Int8(weights) => codes_of(&**weights),
            Self::Sparse(weights) => codes_of(&**weights),
            Self::Int4(weights) => weights.codes(),
            Self::W4A8(weights) => weights.codes(),
        }
    }
}

impl WeightInfo for HostLinear {
    fn dims(&self) -> [usize; 2] {
        match self {
            Self::Int8(weights) => [weights.n_out(), weights.n_in()],
            Self::Sparse(weights) => [weights.n_out(), weights.n_in()],
            Self::Int4(weights) => [weights.n_out(), weights.n_in()],
            Self::W4A8(weights) => [weights.n_out(), weights.n_in()],
        }
    }

    fn is_sparse(&self) -> bool {
        matches!(self, Self::Sparse(_))
    }

    fn n_bytes(&self) -> usize {
        match self {
            Self::Int8(weights) => weights.n_bytes(),
            Self::Sparse(weights) => weights.n_bytes(),
            Self::Int4(weights) => weights.n_bytes(),
            Self::W4A8(weights) => weights.n_bytes(),
        }
    }

    fn n_bits(&self) -> usize {
        if matches!(self, Self::Int4(_) | Self::W4A8(_)) { 4 } else { 8 }
    }
}

impl LinearWeights {
    /// Returns int8 weights on the CPU. With a grid, activations are quantized per row.
    pub fn int8(weights: PackedInt8, grid: Option<ActivationGrid>) -> Self {
        Self::on_host(HostLinear::Int8(Arc::new(weights)), grid)
    }

    /// Like [`Self::int8`], with zeros omitted.
    pub fn sparse_int8(weights: SparseInt8, grid: Option<ActivationGrid>) -> Self {
        Self::on_host(HostLinear::Sparse(Arc::new(weights)), grid)
    }

    /// Returns int4 weights on the CPU; activations stay floats.
    pub fn int4(weights: PackedInt4) -> Self {
        Self::on_host(HostLinear::Int4(Arc::new(weights)), None)
    }

    /// Returns int4 weights on the CPU, with activations quantized per row.
    pub fn w4a8(weights: PackedW4A8, grid: ActivationGrid) -> Self {
        Self::on_host(HostLinear::W4A8(Arc::new(weights)), Some(grid))
    }

    fn on_host(weights: HostLinear, grid: Option<ActivationGrid>) -> Self {
        Self { placed: HostOrCuda::Host(weights), grid, columns: None }
    }

    /// Adds scales of columns on the device of the weights: the layer multiplies its inputs by them.
    ///
    /// # Panics
    /// If there is not one scale for each input.
    #[must_use]
    pub fn with_columns(self, scales: Option<ColumnScales>, device: &Device) -> Self {
        let n_in = self.n_in();
        let columns = scales.map(|scales| {
            assert_eq!(scales.values().len(), n_in, "scales of columns");
            Arc::new(InputColumns::new(scales, device))
        });
        Self { columns, ..self }
    }

    /// Returns the scales of columns, if there are any.
    pub fn columns(&self) -> Option<&InputColumns> {
        self.columns.as_deref()
    }

    /// Returns how a kernel of the CPU rounds inputs. It multiplies them by the scales of columns itself.
    pub(in crate::compressed) fn input_rounding(&self) -> Option<InputRounding<'_>> {
        let columns = self.columns.as_ref().map_or(&[][..], |columns| columns.scales().values());
        self.grid.map(|grid| InputRounding { grid, columns })
    }

    /// Returns whether the codes of inputs are those that other weights take.
    pub(in crate::compressed) fn takes_codes_of(&self, other: &Self) -> bool {
        let scales = |weights: &Self| weights.columns.as_ref().map(|columns| columns.scales().clone());
        self.grid == other.grid && self.n_in() == other.n_in() && scales(self) == scales(other)
    }

    /// Returns the scales of columns that inputs are multiplied by before the product, because no kernel does it.
    pub(in crate::compressed) fn multiplies_before(&self) -> Option<&InputColumns> {
        let is_in_kernel = self.placed.on_host().is_some() && self.grid.is_some();
        self.columns().filter(|_| !is_in_kernel)
    }

    /// Packs row-major int8 `codes` `[n_out, n_in]` with the values `codes[o, i] * scales[o]` for `device`.
    ///
    /// # Errors
    /// Refused: there are more than [`MAX_DEPTH`](briquette_cpu::MAX_DEPTH) inputs.
    ///
    /// # Panics
    /// If the lengths do not match the shape.
    pub fn int8_on(
        device: &Device,
        codes: &[i8],
        scales: &[f32],
        [n_out, n_in]: [usize; 2],
        is_sparse: bool,
        grid: Option<ActivationGrid>,
    ) -> Result<Self> {
        check_depth(n_in)?;
        if let Some(weights) = cube::int8(device, codes, scales, [n_out, n_in], is_sparse) {
            return Ok(Self { placed: HostOrCuda::Cuda(weights, scales.into()), grid, columns: None });
        }
        Ok(match is_sparse {
            true => Self::sparse_int8(SparseInt8::new(codes, scales, n_out, n_in)?, grid),
            false => Self::int8(PackedInt8::new(codes, scales, n_out, n_in)?, grid),
        })
    }

    /// Packs row-major 4-bit `codes` with the values `codes[o, i] * scales[o, i / group]` for `device`.
    ///
    /// With a grid, activations are quantized per row.
    ///
    /// # Errors
    /// Refused: with a grid, there are more than [`MAX_DEPTH`](briquette_cpu::MAX_DEPTH) inputs.
    ///
    /// # Panics
    /// If the lengths do not match the shape, a code has more than 4 bits, or `group` is 0.
    pub fn int4_on(
        device: &Device,
        codes: &[i8],
        scales: &[f32],
        [n_out, n_in]: [usize; 2],
        group: usize,
        grid: Option<ActivationGrid>,
    ) -> Result<Self> {
        if let Some(weights) = cube::int4(device, codes, scales, [n_out, n_in], group) {
            return Ok(Self { placed: HostOrCuda::Cuda(weights, scales.into()), grid, columns: None });
        }
        Ok(match grid {
            Some(grid) => Self::w4a8(PackedW4A8::new(codes, scales, n_out, n_in, group)?, grid),
            None => Self::int4(PackedInt4::new(codes, scales, n_out, n_in, group)),
        })
    }

    /// Returns the grid on which activations are fake-quantized before the product, because no kernel of the
    /// device multiplies these codes by int8 codes, or none rounds to a fixed grid.
    pub(in crate::compressed) fn rounds_before(&self) -> Option<ActivationGrid> {
        let has_no_kernel = |grid: &ActivationGrid| self.placed.n_bits() == 4 || grid.is_fixed();
        self.grid.filter(|grid| self.placed.on_host().is_none() && has_no_kernel(grid))
    }

    /// Returns the number of outputs.
    pub fn n_out(&self) -> usize {
        self.placed.dims()[0]
    }

    /// Returns the number of inputs.
    pub fn n_in(&self) -> usize {
        self.placed.dims()[1]
    }

    /// Returns the size in memory in bytes.
    pub fn n_bytes(&self) -> usize {
        self.placed.n_bytes()
    }

    /// Returns the format: `int8`, `sparse int8`, either with `weight-only`, `int4` or `int4 by int8`.
    pub fn name(&self) -> &'static str {
        match (self.placed.n_bits(), self.placed.is_sparse(), self.grid) {
            (4, _, None) => "int4",
            (4, _, Some(_)) => "int4 by int8",
            (_, false, Some(_)) => "int8",
            (_, false, None) => "int8 weight-only",
            (_, true, Some(_)) => "sparse int8",
            (_, true, None) => "sparse int8 weight-only",
        }
    }
}

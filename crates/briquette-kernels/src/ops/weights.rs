//! Handles of weights, cheap to clone, laid out for the device they are used on.

use crate::activations::ActivationGrid;
use crate::code_rows::CodeRows;
use crate::conv2d::{Conv2dShape, PackedConv2d};
use crate::embedding::Int8Embedding;
use crate::int4::PackedInt4;
use crate::packed::PackedInt8;
use crate::panel_layout::check_depth;
use crate::sparse::SparseInt8;
use crate::weights::Int8Weights;
use briquette_core::Result;
use burn::tensor::Device;
use std::sync::Arc;

/// Weights of a linear layer, however they are kept.
#[derive(Debug, Clone)]
pub struct LinearWeights(pub(crate) Kind);

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Int8(Arc<PackedInt8>, Option<ActivationGrid>),
    Sparse(Arc<SparseInt8>, Option<ActivationGrid>),
    Int4(Arc<PackedInt4>),
    #[cfg(feature = "cuda")]
    CubeInt8(Box<briquette_cube::Int8>, Option<ActivationGrid>),
    #[cfg(feature = "cuda")]
    CubeInt4(Box<briquette_cube::Int4>),
}

/// Calls `$run` with the weights of any kind.
macro_rules! with_weights {
    ($kind:expr, |$weights:ident| $run:expr) => {
        match $kind {
            Kind::Int8($weights, _) => $run,
            Kind::Sparse($weights, _) => $run,
            Kind::Int4($weights) => $run,
            #[cfg(feature = "cuda")]
            Kind::CubeInt8($weights, _) => $run,
            #[cfg(feature = "cuda")]
            Kind::CubeInt4($weights) => $run,
        }
    };
}

impl LinearWeights {
    /// int8 weights for the CPU; activations are quantized by the row, or left as they are where there is no grid.
    pub fn int8(weights: PackedInt8, grid: Option<ActivationGrid>) -> Self {
        Self(Kind::Int8(Arc::new(weights), grid))
    }

    /// As [`Self::int8`], with zeros left out.
    pub fn sparse_int8(weights: SparseInt8, grid: Option<ActivationGrid>) -> Self {
        Self(Kind::Sparse(Arc::new(weights), grid))
    }

    /// int4 weights for the CPU, activations as they are.
    pub fn int4(weights: PackedInt4) -> Self {
        Self(Kind::Int4(Arc::new(weights)))
    }

    /// Lays out row-major int8 `codes` `[n_out, n_in]`, worth `codes[o, i] * scales[o]` each, for `device`.
    ///
    /// # Errors
    /// Refuses more than [`MAX_DEPTH`](crate::MAX_DEPTH) inputs.
    ///
    /// # Panics
    /// If the lengths disagree with the shape.
    pub fn int8_on(
        device: &Device,
        codes: &[i8],
        scales: &[f32],
        [n_out, n_in]: [usize; 2],
        is_sparse: bool,
        grid: Option<ActivationGrid>,
    ) -> Result<Self> {
        check_depth(n_in)?;
        #[cfg(feature = "cuda")]
        if let Some(gpu) = super::cube::gpu_of(device) {
            let weights = briquette_cube::Int8::new(&gpu, codes, scales, [n_out, n_in], is_sparse);
            return Ok(Self(Kind::CubeInt8(Box::new(weights), grid)));
        }
        let _ = device;
        Ok(match is_sparse {
            true => Self::sparse_int8(SparseInt8::new(codes, scales, n_out, n_in)?, grid),
            false => Self::int8(PackedInt8::new(codes, scales, n_out, n_in)?, grid),
        })
    }

    /// Lays out row-major `codes` of 4 bits, worth `codes[o, i] * scales[o, i / group]` each, for `device`.
    ///
    /// # Panics
    /// If the lengths disagree with the shape, a code has more than 4 bits, or `group` is 0.
    pub fn int4_on(device: &Device, codes: &[i8], scales: &[f32], [n_out, n_in]: [usize; 2], group: usize) -> Self {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = super::cube::gpu_of(device) {
            let weights = briquette_cube::Int4::new(&gpu, codes, scales, [n_out, n_in], group);
            return Self(Kind::CubeInt4(Box::new(weights)));
        }
        let _ = device;
        Self::int4(PackedInt4::new(codes, scales, n_out, n_in, group))
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
        let (is_sparse, grid) = match &self.0 {
            Kind::Int8(_, grid) => (false, grid),
            Kind::Sparse(_, grid) => (true, grid),
            Kind::Int4(_) => return "int4",
            #[cfg(feature = "cuda")]
            Kind::CubeInt8(weights, grid) => (weights.is_sparse(), grid),
            #[cfg(feature = "cuda")]
            Kind::CubeInt4(_) => return "int4",
        };
        match (is_sparse, grid) {
            (false, Some(_)) => "int8",
            (false, None) => "int8 weight-only",
            (true, Some(_)) => "sparse int8",
            (true, None) => "sparse int8 weight-only",
        }
    }
}

/// Weights of a convolution.
#[derive(Debug, Clone)]
pub struct QuantizedConv2d {
    pub(crate) kind: ConvKind,
    pub(crate) grid: ActivationGrid,
}

#[derive(Debug, Clone)]
pub(crate) enum ConvKind {
    Host(Arc<PackedConv2d>),
    #[cfg(feature = "cuda")]
    Cube(Arc<briquette_cube::Conv2d>),
}

/// Calls `$run` with the weights of any kind.
macro_rules! with_conv {
    ($kind:expr, |$weights:ident| $run:expr) => {
        match $kind {
            ConvKind::Host($weights) => $run,
            #[cfg(feature = "cuda")]
            ConvKind::Cube($weights) => $run,
        }
    };
}

impl QuantizedConv2d {
    /// int8 weights for the CPU, each image quantized by itself.
    pub fn new(weights: PackedConv2d, grid: ActivationGrid) -> Self {
        Self { kind: ConvKind::Host(Arc::new(weights)), grid }
    }

    /// Lays out row-major `codes` `[out, in / groups, ky, kx]`, worth `codes[o, ..] * scales[o]` each, for `device`.
    ///
    /// # Errors
    /// Refuses more than [`MAX_DEPTH`](crate::MAX_DEPTH) inputs of an output.
    ///
    /// # Panics
    /// If the lengths disagree with the extents.
    pub fn on(
        device: &Device,
        codes: &[i8],
        scales: &[f32],
        dims: [usize; 4],
        is_sparse: bool,
        grid: ActivationGrid,
    ) -> Result<Self> {
        check_depth(dims[1] * dims[2] * dims[3])?;
        #[cfg(feature = "cuda")]
        if let Some(gpu) = super::cube::gpu_of(device) {
            let weights = briquette_cube::Conv2d::new(&gpu, codes, scales, dims, is_sparse);
            return Ok(Self { kind: ConvKind::Cube(Arc::new(weights)), grid });
        }
        let _ = device;
        Ok(Self::new(PackedConv2d::new(codes, scales, dims, is_sparse)?, grid))
    }

    /// Extents of the weights, `[out, in / groups, ky, kx]`.
    pub fn dims(&self) -> [usize; 4] {
        with_conv!(&self.kind, |weights| weights.dims())
    }

    /// `int8` or `sparse int8`.
    pub fn name(&self) -> &'static str {
        if with_conv!(&self.kind, |weights| weights.is_sparse()) { "sparse int8" } else { "int8" }
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        with_conv!(&self.kind, |weights| weights.n_bytes())
    }
}

/// A convolution as an operation: see [`Finish`](crate::Finish) for its last three.
#[derive(Debug, Clone)]
pub struct Conv2dCall {
    /// Its weights.
    pub weights: QuantizedConv2d,
    /// How they step over an image.
    pub shape: Conv2dShape,
    /// Whether each output channel has a factor.
    pub has_scale: bool,
    /// Whether each output channel has a term.
    pub has_shift: bool,
    /// Whether negatives become 0.
    pub relu: bool,
}

/// Rows that are looked up.
#[derive(Debug, Clone)]
pub struct Table(pub(crate) TableKind);

#[derive(Debug, Clone)]
pub(crate) enum TableKind {
    Host(Arc<Int8Embedding>),
    #[cfg(feature = "cuda")]
    Cube(Arc<briquette_cube::Table>),
}

/// Calls `$run` with the table of any kind.
macro_rules! with_table {
    ($kind:expr, |$table:ident| $run:expr) => {
        match $kind {
            TableKind::Host($table) => $run,
            #[cfg(feature = "cuda")]
            TableKind::Cube($table) => $run,
        }
    };
}

impl Table {
    /// A table for the CPU.
    pub fn new(table: Int8Embedding) -> Self {
        Self(TableKind::Host(Arc::new(table)))
    }

    /// Lays out row-major `codes` `[n_rows, n_cols]`, worth `codes[r, c] * scales[r]` each, for `device`.
    ///
    /// # Panics
    /// If the lengths disagree with the shape.
    pub fn on(device: &Device, codes: &[i8], scales: &[f32], [n_rows, n_cols]: [usize; 2], is_sparse: bool) -> Self {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = super::cube::gpu_of(device) {
            let table = briquette_cube::Table::new(&gpu, codes, scales, [n_rows, n_cols], is_sparse);
            return Self(TableKind::Cube(Arc::new(table)));
        }
        let _ = device;
        let pack = if is_sparse { CodeRows::bitmask } else { CodeRows::dense };
        Self::new(Int8Embedding::new(pack(codes, n_rows, n_cols), scales.to_vec()))
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        with_table!(&self.0, |table| table.n_rows())
    }

    /// Columns.
    pub fn n_cols(&self) -> usize {
        with_table!(&self.0, |table| table.n_cols())
    }

    /// Whether zeros are left out.
    pub fn is_sparse(&self) -> bool {
        with_table!(&self.0, |table| table.is_sparse())
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        with_table!(&self.0, |table| table.n_bytes())
    }
}

/// Weights of any kind, as rows of outputs.
#[derive(Debug, Clone)]
pub enum Weights {
    /// Of a linear layer.
    Linear(LinearWeights),
    /// Of a convolution.
    Conv(QuantizedConv2d),
    /// Of a table.
    Table(Table),
}

impl Weights {
    /// Rows and columns.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Linear(weights) => [weights.n_out(), weights.n_in()],
            Self::Conv(weights) => {
                let [n_out, n_in, height, width] = weights.dims();
                [n_out, n_in * height * width]
            }
            Self::Table(table) => [table.n_rows(), table.n_cols()],
        }
    }

    /// Whether they are laid out for operations on this device.
    pub fn runs_on(&self, device: &Device) -> bool {
        super::runs_on(device) && super::is_cpu(device) == self.is_on_host()
    }

    const fn is_on_host(&self) -> bool {
        match self {
            Self::Linear(LinearWeights(Kind::Int8(..) | Kind::Sparse(..) | Kind::Int4(_)))
            | Self::Conv(QuantizedConv2d { kind: ConvKind::Host(_), .. })
            | Self::Table(Table(TableKind::Host(_))) => true,
            #[cfg(feature = "cuda")]
            _ => false,
        }
    }

    /// The weights as f32, where they are kept on the host.
    pub(crate) fn host_floats(&self) -> Option<Vec<f32>> {
        match self {
            Self::Linear(LinearWeights(Kind::Int8(weights, _))) => Some(weights.to_floats()),
            Self::Linear(LinearWeights(Kind::Sparse(weights, _))) => Some(weights.to_floats()),
            Self::Linear(LinearWeights(Kind::Int4(weights))) => Some(weights.to_floats()),
            Self::Conv(QuantizedConv2d { kind: ConvKind::Host(weights), .. }) => Some(weights.to_floats()),
            Self::Table(Table(TableKind::Host(table))) => Some(table.to_floats()),
            #[cfg(feature = "cuda")]
            _ => None,
        }
    }
}

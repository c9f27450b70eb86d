//! Integer codes that replace a parameter: as rows of outputs, and as a quantized tensor of burn.

use crate::module::{unreadable, view};
use crate::packed_weights::PackedWeights;
use briquette_core::encoded::{CodeBlocks, ScaleType};
use briquette_core::{
    Affine, ColumnScales, Decision, Grid, GridKind, Grouping, Mask, OutputAxis, QuantParams, Result, Rows, Shape, simd,
};
use briquette_cpu::{ActivationGrid, CodeGrid, PackedInt8};
use briquette_formats::TensorSource;
use briquette_formats::stored::{DecodeBuffers, StoredDir};
use briquette_methods::quant::{Activations, QuantSpec, ScaleSearch, fit};
use briquette_ops::compressed::{self, LinearWeights, QuantizedConv2d, Table};
use burn::tensor::quantization::{
    BlockSize, QuantMode, QuantScheme, QuantStore, QuantValue, QuantizedBytes, ScaleDtype,
};
use burn::tensor::{DType, Device, Tensor, TensorData};
use rayon::prelude::*;

/// Smallest share of zeros for sparse storage; below it, one mask bit per weight takes more memory than the
/// zeros.
const SPARSE_PAYS: f64 = 1.0 / 8.0;

/// The operation that uses the codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Use {
    /// A linear layer with int8 activations on this grid, or float activations for `None`.
    Int8(Option<ActivationGrid>),
    /// A convolution with int8 activations and weights of these extents.
    Conv(ActivationGrid, [usize; 4]),
    /// A convolution of weights of these extents, whose activations are on fixed grids. It multiplies codes by codes, and floats by
    /// decoded weights.
    Fixed([usize; 4]),
    /// A linear layer with float activations and one scale per `group` inputs of an output.
    Int4 { group: usize },
    /// A linear layer with int8 activations and one scale per `group` inputs of an output.
    W4A8 { grid: ActivationGrid, group: usize },
    /// A table with row lookup.
    Table,
    /// Float arithmetic; codes are decoded for each use.
    Decoded,
}

impl Use {
    /// Returns the number of the variant and its group size (0 if it has none).
    pub(crate) fn to_numbers(self) -> (i64, i64) {
        let grid = |grid: ActivationGrid| match grid {
            ActivationGrid::Symmetric => 2,
            ActivationGrid::SymmetricFull => 3,
            // Only linear layers have a fixed grid.
            ActivationGrid::Asymmetric | ActivationGrid::Fixed(_) => 1,
        };
        match self {
            Self::Int8(Some(ActivationGrid::Fixed(CodeGrid { scale, zero }))) => {
                (14, i64::from(scale.to_bits()) << 8 | i64::from(zero))
            }
            Self::Int8(None) => (0, 0),
            Self::Int8(Some(activations)) => (grid(activations), 0),
            Self::Conv(activations, _) => (3 + grid(activations), 0),
            Self::Int4 { group } => (7, group as i64),
            Self::W4A8 { grid: activations, group } => (9 + grid(activations), group as i64),
            Self::Fixed(_) => (13, 0),
            Self::Table => (8, 0),
            Self::Decoded => (9, 0),
        }
    }

    /// Inverts [`Self::to_numbers`] for a parameter of this shape.
    pub(crate) fn from_numbers(kind: i64, detail: i64, shape: &[usize]) -> Option<Self> {
        let grid = |kind: i64| match kind {
            1 => ActivationGrid::Asymmetric,
            2 => ActivationGrid::Symmetric,
            _ => ActivationGrid::SymmetricFull,
        };
        Some(match kind {
            0 => Self::Int8(None),
            1..=3 => Self::Int8(Some(grid(kind))),
            4..=6 => Self::Conv(grid(kind - 3), shape.try_into().ok()?),
            7 => Self::Int4 { group: usize::try_from(detail).ok()? },
            8 => Self::Table,
            9 => Self::Decoded,
            13 => Self::Fixed(shape.try_into().ok()?),
            14 => {
                let (scale, zero) = (f32::from_bits(u32::try_from(detail >> 8).ok()?), (detail & 0xff) as u8);
                Self::Int8(Some(ActivationGrid::Fixed(CodeGrid { scale, zero })))
            }
            10..=12 => Self::W4A8 { grid: grid(kind - 9), group: usize::try_from(detail).ok()? },
            _ => return None,
        })
    }

    /// Returns the number of inputs that share a scale, in a row of `n_cols`.
    fn group(self, n_cols: usize) -> usize {
        match self {
            Self::Int4 { group } | Self::W4A8 { group, .. } => group.clamp(1, n_cols.max(1)),
            _ => n_cols,
        }
    }

    /// Returns how new floats are quantized when they replace the codes.
    pub(crate) fn spec(self, n_cols: usize) -> QuantSpec {
        let grid = if matches!(self, Self::Int4 { .. } | Self::W4A8 { .. }) {
            Grid::new(4, GridKind::Symmetric)
        } else {
            None
        };
        let group = self.group(n_cols);
        let grouping = if group == n_cols { Grouping::Row } else { Grouping::Group(group) };
        QuantSpec {
            grid: grid.unwrap_or(Grid::INT8),
            grouping,
            range: ScaleSearch::AbsMax,
            scale: ScaleType::F32,
            has_columns: false,
            has_trellis: false,
        }
    }

    /// Returns the quantization of activations.
    pub(crate) fn activations(self) -> Activations {
        match self {
            Self::Int8(Some(grid)) | Self::Conv(grid, _) | Self::W4A8 { grid, .. } => match grid {
                ActivationGrid::Asymmetric => Activations::DynamicAsymmetric,
                ActivationGrid::Symmetric | ActivationGrid::SymmetricFull => Activations::DynamicSymmetric,
                // The grid is not that of a rule for training.
                ActivationGrid::Fixed(_) => Activations::Float,
            },
            _ => Activations::Float,
        }
    }
}

/// A tensor of an output directory whose codes replace a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredUse {
    /// Index of the tensor.
    pub(crate) index: usize,
    pub(crate) what: Use,
    /// Axis of the parameter that counts outputs.
    pub(crate) axis: OutputAxis,
}

/// Integer codes for a parameter, as rows of outputs.
#[derive(Debug, Clone)]
pub(crate) struct Coded {
    pub(crate) rows: Rows,
    pub(crate) codes: Vec<i8>,
    /// One scale per row, or per group of each row.
    pub(crate) scales: Vec<f32>,
    /// Scales of columns, if there are any.
    pub(crate) columns: Option<ColumnScales>,
    pub(crate) is_sparse: bool,
}

impl Coded {
    /// Quantizes rows. If `is_sparse`, zeros are stored sparsely where that saves memory.
    pub(crate) fn of_floats(values: &[f32], rows: Rows, what: Use, is_sparse: bool) -> Self {
        let spec = what.spec(rows.n_cols);
        let scales = fit(values, rows.n_cols, None, &spec).affines;
        let (n_cols, group) = (rows.n_cols.max(1), what.group(rows.n_cols).max(1));
        let mut codes = vec![0; values.len()];
        let groups = values.chunks(n_cols).zip(codes.chunks_mut(n_cols));
        let groups = groups.flat_map(|(row, codes)| row.chunks(group).zip(codes.chunks_mut(group)));
        for ((group, codes), &affine) in groups.zip(&scales) {
            simd::quantize(group, affine, spec.grid, codes);
        }
        let n_zeros = codes.iter().filter(|code| **code == 0).count();
        let is_sparse = is_sparse && n_zeros as f64 > SPARSE_PAYS * codes.len() as f64;
        let scales = scales.iter().map(|affine| affine.scale).collect();
        Self { rows, codes, scales, columns: None, is_sparse }
    }

    /// Reads the codes of a stored tensor on all threads, a few row blocks at a time.
    ///
    /// # Errors
    /// See [`StoredDir::read_codes`].
    pub(crate) fn of_stored(stored: &StoredDir, StoredUse { index, axis, .. }: StoredUse) -> Result<Self> {
        let tensor = &stored.tensors[index];
        let Rows { n_rows, n_cols, .. } = tensor.rows();
        let mut codes = vec![0; n_rows * n_cols];
        // Entropy-coded rows are decoded this many at a time.
        let n_at_once = CodeBlocks::OF_ROW_BLOCKS * tensor.rows().rows_per_block();
        let parts = codes.par_chunks_mut((n_at_once * n_cols).max(1)).enumerate();
        parts.try_for_each_init(DecodeBuffers::default, |scratch, (number, out)| {
            let first = number * n_at_once;
            stored.read_codes(index, first..first + out.len() / n_cols, scratch, out)
        })?;
        let scales = stored.scales(index)?;
        let rows = Rows { axis, ..tensor.rows() };
        let columns = stored.columns(index)?;
        Ok(Self { rows, codes, scales, columns, is_sparse: tensor.is_held_sparse() })
    }

    /// Converts a tensor of a parameter to codes.
    ///
    /// For a quantized tensor made by [`to_burn`](Self::to_burn), returns its codes bit for bit. Other tensors
    /// are quantized by value, after division by `columns`.
    ///
    /// # Errors
    /// Io: the device does not return the tensor.
    pub(crate) fn of_tensor<const D: usize>(
        tensor: Tensor<D>,
        axis: OutputAxis,
        what: Use,
        (columns, is_sparse): (Option<&ColumnScales>, bool),
    ) -> Result<Self> {
        let rows = Rows::of(&Shape(tensor.dims().to_vec()), axis);
        let data = tensor.clone().without_autodiff().try_into_data().map_err(|error| unreadable("codes", &error))?;
        if let Some(coded) = Self::of_burn(data, rows, what, is_sparse) {
            return Ok(coded);
        }
        let floats = if matches!(tensor.dtype(), DType::QFloat(_)) { tensor.dequantize() } else { tensor };
        let mut values = view::to_rows(crate::module::read_f32(floats, "weights")?, &rows);
        columns.iter().for_each(|columns| columns.divide(&mut values));
        Ok(Self { columns: columns.cloned(), ..Self::of_floats(&values, rows, what, true) })
    }

    /// Returns the codes as a quantized tensor of burn, in the parameter's own order. The scale of an output is
    /// repeated for each of its blocks. Codes with scales of columns, which burn does not have, become floats.
    pub(crate) fn to_burn<const D: usize>(&self, shape: [usize; D], what: Use, device: &Device) -> Tensor<D> {
        let device = device.clone().without_autodiff();
        if self.columns.is_some() {
            let data = TensorData::new(view::to_own(self.values(), &self.rows), shape);
            return Tensor::from_data(data, (&device, DType::F32));
        }
        let blocks = ScaleBlocks::of(&shape, self.rows, what);
        let scales: Vec<f32> = blocks.groups().map(|group| self.scales[group]).collect();
        let codes = view::to_own(self.codes.clone(), &self.rows);
        let data = TensorData::quantized(codes, shape, blocks.scheme(), &scales, None);
        let dtype = data.dtype();
        Tensor::from_data(data, (&device, dtype))
    }

    /// Inverts [`to_burn`](Self::to_burn); `None` if the blocks differ or a group has more than one scale.
    fn of_burn(data: TensorData, rows: Rows, what: Use, is_sparse: bool) -> Option<Self> {
        let DType::QFloat(scheme) = data.dtype() else { return None };
        let shape = data.shape().clone();
        let blocks = ScaleBlocks::of(shape.as_slice(), rows, what);
        if scheme.block_size() != blocks.scheme().block_size() {
            return None;
        }
        let (codes, found) = QuantizedBytes { bytes: data.into_bytes(), scheme, shape }.into_vec_i8();
        let mut scales = vec![f32::NAN; rows.n_rows * rows.n_cols.div_ceil(what.group(rows.n_cols).max(1))];
        for (group, &scale) in blocks.groups().zip(&found.block) {
            if !scales[group].is_nan() && scales[group] != scale {
                return None;
            }
            scales[group] = scale;
        }
        Some(Self { rows, codes: view::to_rows(codes, &rows), scales, columns: None, is_sparse })
    }

    /// Returns the same rows with another output axis.
    pub(crate) fn along(self, axis: OutputAxis) -> Self {
        Self { rows: Rows { axis, ..self.rows }, ..self }
    }

    /// Returns the dequantized values, as rows of outputs.
    pub(crate) fn values(&self) -> Vec<f32> {
        let each = (self.codes.len() / self.scales.len().max(1)).max(1);
        let groups = self.codes.chunks(each).zip(&self.scales);
        let mut values: Vec<f32> =
            groups.flat_map(|(codes, scale)| codes.iter().map(move |&code| f32::from(code) * scale)).collect();
        self.columns.iter().for_each(|columns| columns.multiply(&mut values));
        values
    }

    /// Returns the codes and scales as a decision.
    pub(crate) fn decision(&self, what: Use) -> Decision {
        let Rows { n_rows, n_cols, .. } = self.rows;
        let spec = what.spec(n_cols);
        let lowest = self.codes.iter().copied().min().unwrap_or(0);
        let kind = if lowest < spec.grid.min_code() { GridKind::SymmetricFull } else { GridKind::Symmetric };
        let grid = Grid::new(spec.grid.n_bits(), kind).unwrap_or(spec.grid);
        let affines = self.scales.iter().map(|&scale| Affine { scale, zero: 0 }).collect();
        let mask =
            self.is_sparse.then(|| Mask::from_fn(n_rows, n_cols, |row, col| self.codes[row * n_cols + col] != 0));
        let quant = QuantParams::new(grid, spec.grouping, n_cols, affines).with_columns(self.columns.clone());
        Decision { mask, quant: Some(quant) }
    }

    /// Packs the codes for their use on `device`.
    pub(crate) fn pack(self, what: Use, device: &Device) -> Result<PackedCodes> {
        let Self { rows, codes, scales, columns, is_sparse } = self;
        let dims = [rows.n_rows, rows.n_cols];
        let kept = match what {
            Use::Int8(grid) => {
                PackedWeights::Linear(LinearWeights::int8_on(device, &codes, &scales, dims, is_sparse, grid)?)
            }
            Use::Conv(grid, dims) => {
                PackedWeights::Conv(QuantizedConv2d::on(device, &codes, &scales, dims, is_sparse, grid)?)
            }
            // The grid is not used: activations come as codes.
            Use::Fixed(dims) => {
                let grid = ActivationGrid::default();
                PackedWeights::Fixed(QuantizedConv2d::on(device, &codes, &scales, dims, is_sparse, grid)?)
            }
            Use::Int4 { group } => {
                PackedWeights::Linear(LinearWeights::int4_on(device, &codes, &scales, dims, group, None)?)
            }
            Use::W4A8 { grid, group } => {
                PackedWeights::Linear(LinearWeights::int4_on(device, &codes, &scales, dims, group, Some(grid))?)
            }
            Use::Table => PackedWeights::Table(Table::on(device, codes, &scales, dims, is_sparse)),
            Use::Decoded => PackedWeights::Decoded(Table::on(device, codes, &scales, dims, is_sparse)),
        };
        let kept = kept.with_columns(columns, device)?;
        Ok(PackedCodes { kept, rows, is_sparse })
    }

    /// Packs the codes of a stored tensor for their use on `device`. Large CPU panels are filled a few blocks
    /// at a time.
    ///
    /// # Errors
    /// See [`StoredDir::read_codes`].
    pub(crate) fn pack_stored(stored: &StoredDir, its: StoredUse, device: &Device) -> Result<PackedCodes> {
        let tensor = &stored.tensors[its.index];
        let rows = Rows { axis: its.axis, ..tensor.rows() };
        let (dims, n_at_once) = ([rows.n_rows, rows.n_cols], CodeBlocks::rows_by_32(&rows));
        let goes_in_parts = compressed::looks_up(device) && !tensor.is_held_sparse() && rows.n_rows >= 2 * n_at_once;
        let (Use::Int8(grid), true) = (its.what, goes_in_parts) else {
            return Self::of_stored(stored, its)?.pack(its.what, device);
        };
        let read = |scratch: &mut DecodeBuffers, first: usize, out: &mut [i8]| {
            stored.read_codes(its.index, first..first + out.len() / rows.n_cols.max(1), scratch, out)
        };
        let weights = PackedInt8::of_parts(&stored.scales(its.index)?, dims, n_at_once, DecodeBuffers::default, read)?;
        let weights = LinearWeights::int8(weights, grid).with_columns(stored.columns(its.index)?, device);
        Ok(PackedCodes { kept: PackedWeights::Linear(weights), rows, is_sparse: false })
    }
}

/// Codes packed for their use.
pub(crate) struct PackedCodes {
    pub(crate) kept: PackedWeights,
    pub(crate) rows: Rows,
    pub(crate) is_sparse: bool,
}

/// The blocks for which burn stores a scale: at most 255 in each dimension, within inputs that share a scale
/// here.
struct ScaleBlocks {
    shape: Vec<usize>,
    extents: Vec<usize>,
    rows: Rows,
    group: usize,
}

impl ScaleBlocks {
    fn of(shape: &[usize], rows: Rows, what: Use) -> Self {
        let group = what.group(rows.n_cols);
        let last = shape.len().saturating_sub(1);
        let extent = |(index, &extent): (usize, &usize)| match rows.axis {
            OutputAxis::Last if index == last => 1,
            OutputAxis::First if index == 0 => 1,
            OutputAxis::Second if index == 1 => 1,
            _ if group == rows.n_cols => divisor(extent),
            _ => divisor(group),
        };
        let extents = shape.iter().enumerate().map(extent).collect();
        Self { shape: shape.to_vec(), extents, rows, group: group.max(1) }
    }

    fn size(&self) -> BlockSize {
        BlockSize::new(self.extents.iter().map(|&extent| extent as u8).collect::<Vec<_>>())
    }

    fn scheme(&self) -> QuantScheme {
        let scheme = QuantScheme::default().with_value(QuantValue::Q8F).with_mode(QuantMode::Symmetric);
        scheme.with_store(QuantStore::Native).per_block(self.size().as_slice(), ScaleDtype::F32)
    }

    /// Returns the index of the scale here for each block in burn's order.
    fn groups(&self) -> impl Iterator<Item = usize> + '_ {
        let counts: Vec<usize> = self.shape.iter().zip(&self.extents).map(|(n, extent)| n / extent.max(&1)).collect();
        let per_row = self.rows.n_cols.div_ceil(self.group);
        (0..counts.iter().product()).map(move |mut block| {
            // First element of the block, in the parameter's own order.
            let (mut element, mut stride) = (0, 1);
            for dim in (0..self.shape.len()).rev() {
                element += block % counts[dim] * self.extents[dim] * stride;
                block /= counts[dim];
                stride *= self.shape[dim];
            }
            let (row, col) = match self.rows.axis {
                OutputAxis::Last | OutputAxis::Second => {
                    let (cell, run) = (element / self.rows.run, self.rows.run);
                    (cell % self.rows.n_rows, cell / self.rows.n_rows * run + element % run)
                }
                _ => (element / self.rows.n_cols, element % self.rows.n_cols),
            };
            row * per_row + col / self.group
        })
    }
}

/// Returns the largest divisor that burn supports as a block size.
fn divisor(extent: usize) -> usize {
    (1..=extent.min(255)).rev().find(|divisor| extent.is_multiple_of(*divisor)).unwrap_or(1)
}

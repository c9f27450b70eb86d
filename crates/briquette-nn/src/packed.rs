//! Weights held as codes in place of a parameter's floats.

use crate::parameters::linear_shape;
use briquette_core::{Error, OutputAxis, Result, Rows};
use briquette_kernels::ActivationGrid;
use briquette_kernels::ops::{self, LinearWeights, QuantizedConv2d, Table, Weights};
use burn::module::{Module, Param, ParamId, Reparameterization};
use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};

/// Codes that replace a parameter. The parameter's own tensor is a single NaN, stretched to its shape; its value is decoded from the
/// codes each time it is asked for, and the layers of [`crate::layers`] do not ask for it.
///
/// Codes are not part of burn's records: call `materialize()` first, or keep the directory that the module was loaded from.
#[derive(Module, Debug)]
pub struct Packed {
    /// What is held, as numbers that visitors can read: an index of [`NAMES`], and bytes.
    form: Param<Tensor<1, Int>>,
    #[module(skip)]
    kept: Kept,
}

/// The forms in which codes are held.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    /// Codes of a linear layer, in the panels of its kernel.
    Linear(LinearWeights),
    /// Codes of a convolution, in the panels of its kernel.
    Conv(QuantizedConv2d),
    /// Rows that are looked up.
    Table(Table),
    /// Rows of weights whose arithmetic stays float: decoded for each use.
    Decoded(Table, OutputAxis),
}

/// The names of the forms in which weights can be held, as reports show them.
pub(crate) const NAMES: [&str; 9] = [
    "int8",
    "sparse int8",
    "int4",
    "int8 table",
    "sparse int8 table",
    "int8 as floats",
    "sparse int8 as floats",
    "int8 weight-only",
    "sparse int8 weight-only",
];

impl Kept {
    fn name(&self) -> usize {
        let name = match self {
            Self::Linear(weights) => weights.name(),
            Self::Conv(weights) => weights.name(),
            Self::Table(table) => NAMES[3 + usize::from(table.is_sparse())],
            Self::Decoded(table, _) => NAMES[5 + usize::from(table.is_sparse())],
        };
        NAMES.iter().position(|known| *known == name).unwrap_or(0)
    }

    fn n_bytes(&self) -> usize {
        match self {
            Self::Linear(weights) => weights.n_bytes(),
            Self::Conv(weights) => weights.n_bytes(),
            Self::Table(table) | Self::Decoded(table, _) => table.n_bytes(),
        }
    }

    /// The weights as rows of outputs, and which axis of the parameter counts outputs.
    fn rows(&self) -> (Weights, OutputAxis) {
        match self {
            Self::Linear(weights) => (Weights::Linear(weights.clone()), OutputAxis::Last),
            Self::Conv(weights) => (Weights::Conv(weights.clone()), OutputAxis::First),
            Self::Table(table) => (Weights::Table(table.clone()), OutputAxis::First),
            Self::Decoded(table, axis) => (Weights::Table(table.clone()), *axis),
        }
    }
}

impl Packed {
    fn new(kept: Kept, device: &Device) -> Self {
        let form = [kept.name() as i64, kept.n_bytes() as i64];
        let form = Tensor::from_data(TensorData::from(form), (device, DType::I64));
        Self { form: Param::initialized(ParamId::new(), form), kept }
    }

    /// Replaces a parameter by codes. If there are none, keeps the parameter and stores the reason in `error`.
    pub(crate) fn replace_or_keep<const D: usize>(
        kept: Result<Kept>,
        param: Param<Tensor<D>>,
        error: &mut Option<Error>,
    ) -> (Param<Tensor<D>>, Option<Self>) {
        match kept {
            Ok(kept) => {
                let (param, packed) = Self::replace(kept, param);
                (param, Some(packed))
            }
            Err(found) => {
                *error = Some(found);
                (param, None)
            }
        }
    }

    /// Replaces a parameter by codes, and frees its floats.
    fn replace<const D: usize>(kept: Kept, param: Param<Tensor<D>>) -> (Param<Tensor<D>>, Self) {
        let (id, device) = (param.id, param.lazy_device());
        let is_linear = matches!(kept, Kept::Linear(_));
        let shape = if is_linear { linear_shape(&param) } else { param.lazy_shape().to_vec() };
        let dtype = if param.is_initialized() { param.base().dtype() } else { DType::F32 };
        let nothing = Tensor::<D>::full([1; D], f32::NAN, (&device, dtype)).expand(Shape::from(shape));
        (Param::initialized(id, nothing), Self::new(kept, &device))
    }
}

impl Reparameterization for Packed {
    const NAME: &'static str = "packed";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let (weights, axis) = self.kept.rows();
        let mut shape: Vec<usize> = base.dims().to_vec();
        if axis == OutputAxis::Last {
            shape.reverse();
        }
        let values = ops::decode(base, &weights).reshape::<D, _>(Shape::from(shape));
        if axis == OutputAxis::Last { values.transpose() } else { values }
    }
}

/// The codes of a parameter, where they are laid out for kernels of `device`.
pub(crate) fn kept_on<'a, const D: usize>(param: &'a Param<Tensor<D>>, device: &Device) -> Option<&'a Kept> {
    let packed = param.reparameterization::<Packed>()?;
    packed.kept.rows().0.runs_on(device).then_some(&packed.kept)
}

/// Whether layers on this device run on codes rather than decode them for each use: on the CPU, and where autodiff is off.
pub fn holds_codes(device: &Device) -> bool {
    ops::runs_on(device)
}

/// Codes that are to replace a parameter, as rows of outputs.
#[derive(Debug)]
pub(crate) struct Coded {
    pub(crate) rows: Rows,
    pub(crate) codes: Vec<i8>,
    /// One scale for each row, or for each group of each row.
    pub(crate) scales: Vec<f32>,
    pub(crate) is_sparse: bool,
}

/// What codes are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A linear layer whose activations are rounded to this int8 grid, or stay floats where there is none.
    Int8(Option<ActivationGrid>),
    /// A convolution with weights of these extents whose activations become int8.
    Conv(ActivationGrid, [usize; 4]),
    /// A linear layer of float activations, with one scale for each `group` inputs of an output.
    Int4 { group: usize },
    /// A table whose rows are looked up.
    Table,
    /// Arithmetic on floats: codes are decoded for each use.
    Decoded,
}

impl Coded {
    /// Lays the codes out for their use on `device`.
    pub(crate) fn pack(self, what: Use, device: &Device) -> Result<Kept> {
        let Self { rows, codes, scales, is_sparse } = &self;
        let dims = [rows.n_rows, rows.n_cols];
        Ok(match what {
            Use::Int8(grid) => Kept::Linear(LinearWeights::int8_on(device, codes, scales, dims, *is_sparse, grid)?),
            Use::Conv(grid, dims) => Kept::Conv(QuantizedConv2d::on(device, codes, scales, dims, *is_sparse, grid)?),
            Use::Int4 { group } => Kept::Linear(LinearWeights::int4_on(device, codes, scales, dims, group)),
            Use::Table => Kept::Table(Table::on(device, codes, scales, dims, *is_sparse)),
            Use::Decoded => Kept::Decoded(Table::on(device, codes, scales, dims, *is_sparse), rows.axis),
        })
    }
}

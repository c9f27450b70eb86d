//! The form of each weight in ONNX, by its coding in the checkpoint.

use briquette_core::encoded::{Codes, ScaleType};
use briquette_core::{Coding, ColumnScales, Error, GridKind, Grouping, OutputAxis, Result};
use briquette_formats::{ActivationGrids, ActivationRounding, Checkpoint, StoredTensor, TensorSource};
use briquette_graph::Weight;
use briquette_graph::fixed_values::FixedGrids;
use briquette_graph::op::FixedGrid;
use briquette_graph::to_onnx::{LinearForm, TableForm, WeightForms};
use std::collections::{BTreeMap, BTreeSet};

/// Matrices up to this size are transposed in memory.
const LARGEST_TRANSPOSED: u64 = 256 << 20;

/// The codings of a checkpoint's tensors, by name.
pub(super) struct StoredForms<'a> {
    tensors: BTreeMap<&'a str, &'a StoredTensor>,
    /// The numbers of scales of columns. Equal scales have one number.
    columns: BTreeMap<&'a str, usize>,
    /// The grids of the inputs of linear layers, by the names of their weights.
    grids: BTreeMap<String, FixedGrid>,
    has_own_operators: bool,
}

impl<'a> StoredForms<'a> {
    /// # Errors
    /// Input and Io: scales of columns or grids of activations cannot be read.
    pub(super) fn of(checkpoint: &'a Checkpoint, has_own_operators: bool) -> Result<Self> {
        let tensors = checkpoint.stored().map(|stored| stored.tensors.as_slice()).unwrap_or_default();
        let (mut columns, mut known) = (BTreeMap::new(), Vec::<ColumnScales>::new());
        for (index, tensor) in tensors.iter().enumerate() {
            let Some(scales) = checkpoint.columns(index)? else { continue };
            let number = known.iter().position(|other| *other == scales).unwrap_or_else(|| {
                known.push(scales);
                known.len() - 1
            });
            if tensor.activations == Some(ActivationRounding::Fixed) && !has_int8_rows(tensor) {
                let message = "found static int8 activations with scales of columns, expected int8 codes with a scale for each output; export to another format";
                return Err(Error::input(message).at(&tensor.info.name));
            }
            columns.insert(tensor.info.name.as_str(), number);
        }
        let tensors = tensors.iter().map(|tensor| (tensor.info.name.as_str(), tensor)).collect();
        let grids = FixedGrids::of_training(&ActivationGrids::of(checkpoint)?, BTreeSet::new()).layers;
        Ok(Self { tensors, columns, grids, has_own_operators })
    }

    /// The matrix of a weight, if the rows of its codes are the outputs that the graph has.
    fn coded(&self, weight: &Weight) -> Option<&StoredTensor> {
        let tensor = self.tensors.get(weight.name.as_str())?;
        let is_turned = weight.layout == OutputAxis::Last;
        (tensor.info.shape.rank() == 2 && tensor.axis.is_turned() == is_turned).then_some(*tensor)
    }
}

impl WeightForms for StoredForms<'_> {
    fn linear(&self, weight: &Weight) -> LinearForm {
        let Some(tensor @ StoredTensor { coding: Coding { codes: Some(codes), .. }, activations, .. }) =
            self.coded(weight)
        else {
            return LinearForm::Float;
        };
        let has_zero_points = codes.grid == GridKind::Asymmetric;
        match codes.grouping {
            // Layers between grids of values get their codes later.
            _ if *activations == Some(ActivationRounding::Fixed) && !self.grids.contains_key(&weight.name) => {
                LinearForm::Float
            }
            Grouping::Row | Grouping::Tensor if codes.bits == 8 && !has_zero_points => match activations {
                None | Some(ActivationRounding::Fixed) => LinearForm::Int8,
                Some(_) => LinearForm::Int8Dynamic,
            },
            Grouping::Group(group) if is_block(codes.bits, group) && tensor.rows().n_cols.is_multiple_of(group) => {
                LinearForm::Blocks { bits: codes.bits, group, has_zero_points }
            }
            _ => LinearForm::Float,
        }
    }

    fn input_scale(&self, weight: &Weight) -> Option<usize> {
        self.columns.get(weight.name.as_str()).copied()
    }

    fn input_grid(&self, weight: &Weight) -> Option<FixedGrid> {
        self.grids.get(&weight.name).copied()
    }

    fn has_own_operators(&self) -> bool {
        self.has_own_operators
    }

    fn table(&self, weight: &Weight) -> TableForm {
        let Some(StoredTensor { coding: Coding { codes: Some(codes), .. }, .. }) =
            self.coded(weight).filter(|_| weight.layout == OutputAxis::First)
        else {
            return TableForm::Float;
        };
        if let LinearForm::Blocks { bits, group, has_zero_points } = self.linear(weight)
            && !codes.has_columns
        {
            return TableForm::Blocks { bits, group, has_zero_points };
        }
        let is_by_row = matches!(codes.grouping, Grouping::Row | Grouping::Tensor) && !codes.has_columns;
        match is_by_row && codes.bits == 8 && codes.grid != GridKind::Asymmetric {
            true => TableForm::Int8 { has_half_scales: codes.scale == ScaleType::F16 },
            false => TableForm::Float,
        }
    }

    fn is_transposed_in_memory(&self, weight: &Weight) -> bool {
        is_transposed_in_memory(weight)
    }
}

/// Returns whether a tensor has int8 codes around 0 with a scale for each output, which its first axis counts.
pub(super) fn has_row_codes(tensor: &StoredTensor) -> bool {
    let is_by_row = |codes: &Codes| {
        matches!(codes.grouping, Grouping::Row | Grouping::Tensor)
            && (codes.bits, codes.grid, codes.has_columns) == (8, GridKind::Symmetric, false)
    };
    !tensor.axis.is_turned() && tensor.coding.codes.as_ref().is_some_and(is_by_row)
}

/// Returns whether a matrix has int8 codes around 0 with a scale for each output or for all.
fn has_int8_rows(tensor: &StoredTensor) -> bool {
    let is_by_row = |codes: &Codes| {
        matches!(codes.grouping, Grouping::Row | Grouping::Tensor)
            && codes.bits == 8
            && codes.grid != GridKind::Asymmetric
    };
    tensor.info.shape.rank() == 2 && tensor.coding.codes.as_ref().is_some_and(is_by_row)
}

/// Whether a matrix is small enough to be transposed in memory.
pub(super) fn is_transposed_in_memory(weight: &Weight) -> bool {
    weight.n_bytes() <= LARGEST_TRANSPOSED
}

/// Whether `MatMulNBits` takes codes of this width and group.
fn is_block(bits: u8, group: usize) -> bool {
    matches!(bits, 4 | 8) && group >= 16 && group.is_power_of_two()
}

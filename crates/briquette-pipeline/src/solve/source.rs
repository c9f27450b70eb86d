//! A checkpoint with the updated weights, masks and scales of some tensors.

use super::unit;
use crate::frequency::ScaledSource;
use briquette_core::{Affine, Grouping, Mask, Result, Rows};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use briquette_writer::TensorPlan;
use std::collections::BTreeMap;
use std::ops::Range;

/// A checkpoint, and files with the results for some of its tensors.
pub(crate) struct SolvedSource<'a> {
    source: &'a ScaledSource<'a>,
    units: Vec<Checkpoint>,
    tensors: BTreeMap<usize, SolvedTensor>,
}

/// The location of a tensor's parts.
struct SolvedTensor {
    unit: usize,
    rows: Rows,
    /// Codes with all their scales, or else plain values.
    weights: UpdatedWeights,
    has_columns: bool,
    keep: Option<usize>,
}

enum UpdatedWeights {
    Codes { place: usize, affines: Vec<Affine>, grouping: Grouping },
    Values(usize),
}

impl<'a> SolvedSource<'a> {
    pub(super) fn new(source: &'a ScaledSource<'a>) -> Self {
        Self { source, units: Vec::new(), tensors: BTreeMap::new() }
    }

    /// Adds the parts of these tensors in a file.
    pub(super) fn add<'p>(
        &mut self,
        unit: Checkpoint,
        tensors: impl Iterator<Item = (usize, &'p TensorPlan<'p>)>,
    ) -> Result<()> {
        let number = self.units.len();
        for (index, tensor) in tensors {
            let name = &tensor.info.name;
            let codes = unit::place(&unit, name, "codes").zip(tensor.quant);
            let weights = match (codes, unit::place(&unit, name, "values")) {
                (Some((place, quant)), _) => {
                    UpdatedWeights::Codes { place, affines: unit::affines(&unit, name)?, grouping: quant.spec.grouping }
                }
                (None, Some(place)) => UpdatedWeights::Values(place),
                (None, None) => continue,
            };
            let keep = unit::place(&unit, name, "keep");
            let has_columns = tensor.quant.is_some_and(|quant| quant.spec.has_columns);
            self.tensors.insert(index, SolvedTensor { unit: number, rows: tensor.rows(), weights, has_columns, keep });
        }
        self.units.push(unit);
        Ok(())
    }

    /// Returns whether some weights of a tensor are dropped.
    pub(super) fn has_mask(&self, index: usize) -> bool {
        self.tensors.get(&index).is_some_and(|tensor| tensor.keep.is_some())
    }

    /// Returns all weights of a tensor row-major, if they were updated.
    #[cfg(feature = "model")]
    pub(super) fn weights(&self, index: usize) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.tensors.get(&index) else { return Ok(None) };
        self.updated(index, 0..tensor.rows.n_rows).map(Some)
    }

    /// Returns the scales of some rows.
    fn scales(tensor: &SolvedTensor, rows: Range<usize>) -> &[Affine] {
        let UpdatedWeights::Codes { affines, grouping, .. } = &tensor.weights else { return &[] };
        let per_row = grouping.per_row(tensor.rows.n_cols).unwrap_or(1).max(1);
        match grouping {
            Grouping::Tensor => affines,
            Grouping::Row | Grouping::Group(_) => &affines[rows.start * per_row..rows.end * per_row],
        }
    }
}

impl TensorSource for SolvedSource<'_> {
    fn below(&self) -> Option<&dyn TensorSource> {
        Some(self.source)
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.source.tensors()
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        self.source.read(index, start, out)
    }

    fn affines(&self, index: usize, rows: Range<usize>) -> Result<Vec<Affine>> {
        match self.tensors.get(&index) {
            Some(tensor) => Ok(Self::scales(tensor, rows).to_vec()),
            None => self.source.affines(index, rows),
        }
    }

    fn keep(&self, index: usize, rows: Range<usize>) -> Result<Vec<u8>> {
        let Some(tensor) = self.tensors.get(&index) else { return self.source.keep(index, rows) };
        let Some(place) = tensor.keep else { return Ok(Vec::new()) };
        let row_bytes = Mask::row_bytes(tensor.rows.n_cols);
        let mut bits = vec![0; rows.len() * row_bytes];
        self.units[tensor.unit].read(place, rows.start * row_bytes, &mut bits)?;
        Ok(bits)
    }

    fn updated(&self, index: usize, rows: Range<usize>) -> Result<Vec<f32>> {
        let Some(tensor) = self.tensors.get(&index) else { return Ok(Vec::new()) };
        let (unit, n_cols) = (&self.units[tensor.unit], tensor.rows.n_cols);
        let mut values = vec![0.0_f32; rows.len() * n_cols];
        match &tensor.weights {
            UpdatedWeights::Values(place) => {
                unit.read(*place, 4 * rows.start * n_cols, bytemuck::cast_slice_mut(&mut values))?;
            }
            UpdatedWeights::Codes { place, .. } => {
                let mut codes = vec![0_u8; values.len()];
                unit.read(*place, rows.start * n_cols, &mut codes)?;
                let affines = Self::scales(tensor, rows);
                let size = (values.len() / affines.len().max(1)).max(1);
                for ((codes, values), affine) in codes.chunks(size).zip(values.chunks_mut(size)).zip(affines) {
                    codes.iter().zip(values).for_each(|(&code, value)| *value = affine.dequantize(code as i8));
                }
                if tensor.has_columns {
                    self.columns(index)?.iter().for_each(|columns| columns.multiply(&mut values));
                }
            }
        }
        Ok(values)
    }
}

//! A checkpoint with scales for some of its tensors.

use briquette_core::{Affine, ColumnScales, Error, Grid, Result};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use briquette_methods::quant::range;
use briquette_writer::piece::{PieceReader, pieces_of};
use briquette_writer::{TensorPlan, Workers};
use std::collections::BTreeMap;
use std::ops::Range;

/// A checkpoint, one scale for each row of some tensors, and one for each column of others.
pub(crate) struct ScaledSource<'a> {
    checkpoint: &'a Checkpoint,
    scales: BTreeMap<usize, Vec<Affine>>,
    columns: BTreeMap<usize, ColumnScales>,
}

impl<'a> ScaledSource<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint, scales: BTreeMap::new(), columns: BTreeMap::new() }
    }

    /// Returns whether columns of a tensor have new scales.
    pub(crate) fn has_columns(&self, index: usize) -> bool {
        self.columns.contains_key(&index)
    }

    /// Sets the scales of a tensor's columns.
    pub(crate) fn add_columns(&mut self, index: usize, columns: ColumnScales) {
        self.columns.insert(index, columns);
    }

    /// Computes the scales of a tensor from its step size and the factor of each row.
    pub(super) fn add(&mut self, tensor: &TensorPlan, size: f32, eighths: &[i8], workers: &Workers) -> Result<()> {
        let (n_cols, grid) = (tensor.rows().n_cols, tensor.quant.map(|quant| quant.spec.grid).unwrap_or(Grid::INT8));
        let pieces = pieces_of(tensor, self.checkpoint.reads_ranges(tensor.index()));
        let of_piece = |reader: &mut PieceReader, rows: &Range<usize>| {
            let mut scales = Vec::with_capacity(rows.len());
            reader.read(self.checkpoint, tensor, rows, workers.stop())?.for_each_block(|block| {
                scales.extend(range::row_steps(block.values, n_cols, size, &eighths[block.first_row..], grid));
                Ok(())
            })?;
            Ok(scales)
        };
        let scales = workers.map(&pieces, PieceReader::default, of_piece)?.concat();
        self.scales.insert(tensor.index(), scales);
        Ok(())
    }

    /// Takes the scales that a tensor has in an output.
    pub(super) fn keep_scales(&mut self, tensor: &TensorPlan, output: &Checkpoint) -> Result<()> {
        let place = output.tensors().iter().position(|info| info.name == tensor.info.name);
        let place = place.ok_or_else(|| Error::bug("the rounded model lacks this tensor").at(tensor.culprit()))?;
        let scales = output.affines(place, 0..tensor.rows().n_rows)?;
        self.scales.insert(tensor.index(), scales);
        Ok(())
    }

    /// Returns the scales of rows of a tensor, if it has any.
    pub(crate) fn scales(&self, index: usize, rows: Range<usize>) -> Option<&[Affine]> {
        self.scales.get(&index).map(|scales| &scales[rows])
    }
}

impl TensorSource for ScaledSource<'_> {
    fn below(&self) -> Option<&dyn TensorSource> {
        Some(self.checkpoint)
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.checkpoint.tensors()
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        self.checkpoint.read(index, start, out)
    }

    fn affines(&self, index: usize, rows: Range<usize>) -> Result<Vec<Affine>> {
        match self.scales(index, rows.clone()) {
            Some(scales) => Ok(scales.to_vec()),
            None => self.checkpoint.affines(index, rows),
        }
    }

    fn columns(&self, index: usize) -> Result<Option<ColumnScales>> {
        match self.columns.get(&index) {
            Some(columns) => Ok(Some(columns.clone())),
            None => self.checkpoint.columns(index),
        }
    }
}

//! Reads pieces of tensors strip by strip, with their scores.

use crate::context::Workers;
use crate::piece::{PieceReader, Strip, sips_of};
use crate::plan::Plan;
use crate::scorer::Scorer;
use briquette_core::Result;
use briquette_formats::TensorSource;
use std::ops::Range;

/// A piece of a tensor of the plan.
pub(super) struct PieceOf {
    pub(super) tensor: usize,
    pub(super) rows: Range<usize>,
}

/// Returns the row ranges of a tensor's pieces.
pub(super) type PiecesOf<'a> = &'a (dyn Fn(usize) -> Vec<Range<usize>> + Sync);

/// Number of elements of a piece below the threshold, and at the threshold.
pub(super) type Dropped = (usize, usize);

/// Returns every piece of some tensors, tensor by tensor.
pub(super) fn pieces_in_order(tensors: &[usize], pieces: PiecesOf) -> Vec<PieceOf> {
    let part = |&tensor: &usize| pieces(tensor).into_iter().map(move |rows| PieceOf { tensor, rows });
    tensors.iter().flat_map(part).collect()
}

/// Buffers for scanning a piece.
#[derive(Default)]
pub(super) struct Scan {
    reader: PieceReader,
    scores: Vec<f32>,
}

impl Scan {
    /// Calls `each` with every strip of a piece and its scores.
    pub(super) fn each(
        &mut self,
        plan: &Plan,
        source: &dyn TensorSource,
        part: &PieceOf,
        workers: &Workers,
        mut each: impl FnMut(Strip, &[f32]) -> Result<()>,
    ) -> Result<()> {
        workers.check_stop()?;
        let tensor = &plan.tensors[part.tensor];
        let scorer = Scorer::new(tensor, plan.inputs.get(&part.tensor), plan.norms.get(&part.tensor));
        let n_cols = tensor.rows().n_cols;
        for rows in sips_of(tensor, source.reads_ranges(tensor.index()), &part.rows) {
            let mut piece = self.reader.read(source, tensor, &rows, workers.stop())?;
            workers.advance(piece.bytes.len());
            piece.for_each_strip(|strip, _| {
                workers.check_stop()?;
                each(strip, scorer.of(strip.values, strip.first_row * n_cols, &mut self.scores))
            })?;
        }
        Ok(())
    }
}

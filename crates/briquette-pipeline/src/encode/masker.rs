//! Which weights of a piece are kept.

use super::Task;
use crate::context::Stop;
use crate::piece::Piece;
use crate::plan::Cut;
use crate::recipe::PruneMethod;
use crate::survey::PieceStart;
use briquette_core::{DType, Result, Storage, simd};
use briquette_prune::select::{Scores, Selector};
use briquette_prune::{Threshold, score, select};

/// Scores between two looks at the wish to stop.
const SLICE: usize = 16 << 20;

/// How the rows of a piece get their bits.
#[derive(Debug, Clone, Copy)]
pub(super) enum Masker {
    /// All are kept, and no bits are needed.
    All,
    /// Whatever has a bit set is kept.
    Nonzero,
    /// Scores above a threshold are kept.
    Threshold(Threshold),
    /// The largest of neighbours are kept.
    NOfM(usize, usize),
}

impl Masker {
    /// What is known before a piece is read; `None` where its scores must be seen whole to find the threshold.
    pub(super) fn known(task: &Task, start: &PieceStart) -> Option<Self> {
        let Some(prune) = task.tensor.prune else {
            return Some(if task.coding.storage == Storage::Bitmask { Self::Nonzero } else { Self::All });
        };
        match (prune.cut, task.survey.threshold) {
            (Cut::NOfM { n, m }, _) => Some(Self::NOfM(n, m)),
            (_, Some(threshold)) => Some(Self::Threshold(Threshold { n_ties: start.n_ties, ..threshold })),
            (Cut::Pool(_), None) => Some(Self::Threshold(Threshold::default())),
            (Cut::Count(_), None) => None,
        }
    }

    /// A tensor in one piece finds its own threshold here; a larger one was surveyed.
    pub(super) fn found(task: &Task, piece: &mut Piece, selector: &mut Selector, stop: &Stop) -> Result<Self> {
        let (Some(Cut::Count(n_drop)), Some(method)) = (task.tensor.prune.map(|prune| prune.cut), task.tensor.method())
        else {
            return Ok(Self::All);
        };
        let (n_cols, mut scratch) = (task.tensor.rows.n_cols, Vec::new());
        let is_bf16 = task.tensor.info.dtype == DType::BF16 && method == PruneMethod::Magnitude;
        let threshold = selector.threshold(task.tensor.info.n_elements(), n_drop, |each| {
            if is_bf16 && let Ok(halves) = bytemuck::try_cast_slice(piece.bytes) {
                return halves.chunks(SLICE).try_for_each(|halves| {
                    each(Scores::BF16(halves));
                    stop.check()
                });
            }
            piece.for_each_block(|block| {
                stop.check()?;
                let scores = scored(method, block.first_row * n_cols, block.values, &mut scratch);
                each(Scores::F32(scores));
                Ok(())
            })
        })?;
        Ok(Self::Threshold(threshold))
    }

    /// Sets the bits of a row. Returns whether there are any to speak of.
    pub(super) fn mask(&mut self, values: &[f32], scores: &[f32], bits: &mut [u8]) -> bool {
        match self {
            Self::All => return false,
            Self::Nonzero => {
                simd::nonzero_bits(values, bits);
            }
            Self::Threshold(threshold) => {
                simd::keep_above(scores, threshold.key, &mut threshold.n_ties, bits);
            }
            Self::NOfM(n, m) => select::n_of_m_row(scores, *n, *m, bits),
        }
        true
    }
}

/// The scores of some weights: their magnitudes, or numbers at random from their positions.
pub(crate) fn scored<'a>(method: PruneMethod, first: usize, values: &'a [f32], scratch: &'a mut Vec<f32>) -> &'a [f32] {
    match method {
        PruneMethod::Magnitude => score::magnitude(values),
        PruneMethod::Random(seed) => {
            scratch.resize(values.len(), 0.0);
            score::random(seed, first, scratch);
            scratch
        }
    }
}

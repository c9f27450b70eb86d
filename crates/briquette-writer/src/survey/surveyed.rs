//! The results of the survey of a tensor.

use crate::plan::TensorPlan;
use briquette_methods::prune::Threshold;
use std::ops::Range;

/// The results of the survey of a tensor, in a few bytes, as there may be millions of tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    /// Number of kept elements.
    pub n_kept: usize,
    known: ThresholdPieces,
}

/// A threshold and pieces. Most tensors have no threshold and one piece.
#[derive(Debug, Clone, PartialEq)]
enum ThresholdPieces {
    /// One piece without a threshold.
    Whole,
    /// One piece with a threshold.
    WithThreshold(Box<Threshold>),
    /// Any pieces.
    Several(Box<(Option<Threshold>, Vec<PieceStart>)>),
}

/// A piece, with counts of earlier pieces.
#[derive(Debug, Clone, PartialEq)]
pub struct PieceStart {
    /// The rows of the piece.
    pub rows: Range<usize>,
    /// Number of elements kept in earlier pieces.
    pub n_kept: usize,
    /// Elements equal to the threshold that are still to be pruned.
    pub n_ties: usize,
}

/// The pieces of a tensor: a slice of [`PieceStart`].
#[derive(Debug, Clone)]
pub enum Pieces<'a> {
    /// A single piece.
    One(PieceStart),
    /// Several pieces, or none.
    Several(&'a [PieceStart]),
}

impl Survey {
    /// Creates the results of a tensor with these pieces.
    pub(super) fn new(n_kept: usize, threshold: Option<Threshold>, pieces: Vec<PieceStart>) -> Self {
        let is_one = matches!(pieces.as_slice(), [only] if only.rows.start == 0);
        let known = match threshold {
            None if is_one => ThresholdPieces::Whole,
            Some(threshold) if is_one => ThresholdPieces::WithThreshold(Box::new(threshold)),
            threshold => ThresholdPieces::Several(Box::new((threshold, pieces))),
        };
        Self { n_kept, known }
    }

    /// Returns the threshold, if the survey had to find it.
    pub fn threshold(&self) -> Option<Threshold> {
        match &self.known {
            ThresholdPieces::Whole => None,
            ThresholdPieces::WithThreshold(threshold) => Some(**threshold),
            ThresholdPieces::Several(known) => known.0,
        }
    }

    /// Returns the pieces of the tensor, with counts of earlier pieces.
    pub fn pieces(&self, tensor: &TensorPlan) -> Pieces<'_> {
        let n_ties = match &self.known {
            ThresholdPieces::Whole => 0,
            ThresholdPieces::WithThreshold(threshold) => threshold.n_ties,
            ThresholdPieces::Several(known) => return Pieces::Several(&known.1),
        };
        Pieces::One(PieceStart { rows: 0..tensor.rows().n_rows, n_kept: 0, n_ties })
    }

    /// Returns the number of pieces.
    pub fn n_pieces(&self) -> usize {
        match &self.known {
            ThresholdPieces::Several(known) => known.1.len(),
            ThresholdPieces::Whole | ThresholdPieces::WithThreshold(_) => 1,
        }
    }
}

impl Pieces<'_> {
    /// Returns the pieces in a range.
    ///
    /// # Panics
    /// If the range is not within the pieces.
    pub(crate) fn range(self, range: Range<usize>) -> Self {
        match self {
            Self::Several(pieces) => Self::Several(&pieces[range]),
            Self::One(_) => self,
        }
    }
}

impl std::ops::Deref for Pieces<'_> {
    type Target = [PieceStart];

    fn deref(&self) -> &[PieceStart] {
        match self {
            Self::One(piece) => std::slice::from_ref(piece),
            Self::Several(pieces) => pieces,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::{Known, Reason};
    use crate::treatment::Treatment;
    use briquette_core::{DType, OutputAxis, Role, Rows, Shape};
    use briquette_formats::TensorInfo;

    #[test]
    fn pieces_and_thresholds_are_kept_and_a_small_tensor_needs_no_list() {
        let info = TensorInfo::checked("w".into(), DType::F32, vec![6, 2]).unwrap();
        let rows = Rows::of(&Shape(vec![6, 2]), OutputAxis::First);
        let role = Known::new(Role::Linear, Reason::Matrix);
        let tensor = TensorPlan::new(0, &info, Treatment::none(role, rows));
        let threshold = Some(Threshold { key: 7, n_ties: 3 });
        let piece = |rows: Range<usize>, n_ties| PieceStart { n_kept: rows.start, rows, n_ties };
        for (threshold, pieces) in [
            (None, vec![piece(0..6, 0)]),
            (threshold, vec![piece(0..6, 3)]),
            (threshold, vec![piece(0..2, 3), piece(2..6, 1)]),
            (None, Vec::new()),
        ] {
            let survey = Survey::new(5, threshold, pieces.clone());
            assert_eq!((survey.threshold(), &*survey.pieces(&tensor)), (threshold, pieces.as_slice()));
            assert_eq!((survey.n_kept, survey.n_pieces()), (5, pieces.len()));
            assert_eq!(*survey.pieces(&tensor).range(0..pieces.len()), pieces);
        }
        assert!(size_of::<Survey>() <= 24);
    }
}

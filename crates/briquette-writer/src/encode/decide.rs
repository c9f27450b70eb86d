//! Decides on rows: the mask, and the scales. The bytes of the output follow from this alone.

use crate::context::Stop;
use crate::piece::{Piece, Strip, check_finite};
use crate::plan::TensorPlan;
use crate::scorer::Scorer;
use crate::survey::{PieceStart, Survey};
use crate::treatment::Cut;
use crate::weight_norm::WeightNorm;
use briquette_core::coder::RowsDecision;
use briquette_core::{Affine, Coding, ColumnScales, DType, Error, Grouping, InputView, Mask, Result, Storage, simd};
use briquette_methods::prune::select::{Scores, Selector};
use briquette_methods::prune::{Score, SparsityPattern, Threshold, select};
use briquette_methods::quant::{Fitter, MaskedRows, RowInputs};

/// Scores computed between two checks for a stop request.
const SLICE: usize = 16 << 20;

/// A tensor and the information for its decision.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) tensor: &'a TensorPlan<'a>,
    pub(super) inputs: Option<&'a InputView>,
    pub(super) norm: Option<&'a WeightNorm>,
    pub(super) survey: &'a Survey,
    pub(super) coding: Coding,
}

/// How the mask bits of a piece are computed.
#[derive(Debug, Clone)]
enum Masker {
    /// All weights are kept, and no bits are needed.
    All,
    /// Every weight except +0.0 is kept.
    Nonzero,
    /// Weights with scores above a threshold are kept.
    Threshold(Threshold),
    /// This many weights with the smallest scores of each row are pruned.
    OfRow(usize),
    /// The n largest of every m neighbours are kept.
    NOfM(usize, usize),
    /// The mask bits are given, for rows from this one on.
    Bits(usize, Vec<u8>),
}

/// The source of the scales of a piece.
#[derive(Debug, Clone)]
enum Scales {
    /// The scale of each group is fitted to its weights.
    Fitted,
    /// The tensor has a single scale.
    Single(Affine),
    /// The scales are given, for rows from this one on.
    Given(usize, Vec<Affine>),
}

/// How masks and scales of a piece are computed.
#[derive(Debug)]
pub(super) struct PieceRules {
    masker: Masker,
    scales: Scales,
    columns: Option<ColumnScales>,
    /// The statistics of inputs that were multiplied by the scales of columns.
    scaled_inputs: Option<InputView>,
}

/// Decides on strips of rows, and reuses its buffers.
#[derive(Default)]
pub(super) struct Decider {
    selector: Selector,
    fitter: Fitter,
    scores: Vec<f32>,
    keys: Vec<u32>,
    kept: Vec<f32>,
    divided: Vec<f32>,
    decision: RowsDecision,
}

impl Subject<'_> {
    /// Returns whether rows can be decided strip by strip; otherwise a whole piece is needed first.
    pub(super) fn is_decided_by_strip(&self) -> bool {
        let has_threshold = self.survey.threshold().is_some();
        let is_one_group = self.tensor.quant.is_some_and(|quant| quant.spec.grouping == Grouping::Tensor);
        !is_one_group
            && match self.tensor.prune.map(|prune| prune.cut) {
                Some(Cut::Pattern(pattern)) => has_threshold || pattern.is_by_row(),
                Some(Cut::Pool(_) | Cut::Given) | None => true,
            }
    }

    /// Returns the input statistics of rows from this one on. With scales of columns, `scaled` has them.
    fn inputs_from<'b>(&'b self, first_row: usize, scaled: Option<&'b InputView>) -> Option<RowInputs<'b>> {
        scaled.or(self.inputs).map(|view| RowInputs { view, first_row, n_rows: self.tensor.rows().n_rows })
    }

    fn scored<'b>(&'b self, strip: &Strip<'b>, scratch: &'b mut Vec<f32>) -> &'b [f32] {
        let first = strip.first_row * self.tensor.rows().n_cols;
        Scorer::new(self.tensor, self.inputs, self.norm).of(strip.values, first, scratch)
    }
}

impl Decider {
    /// Determines the rules for a piece.
    ///
    /// These are the rules `before` of the previous piece, except for masks and scales that the source gives
    /// for these rows. For the first piece of a tensor with its own threshold, the threshold is found among the
    /// scores of the piece.
    ///
    /// # Errors
    /// - Refused: the piece has NaN or infinity.
    /// - Interrupted: a stop was requested.
    pub(super) fn rules(
        &mut self,
        before: Option<PieceRules>,
        subject: &Subject,
        start: &PieceStart,
        piece: &mut Piece,
        stop: &Stop,
    ) -> Result<PieceRules> {
        let is_given = subject.tensor.prune.is_some_and(|prune| prune.cut == Cut::Given);
        let masker = match before {
            Some(rules) if !is_given => rules.masker,
            _ => self.masker(subject, start, piece, stop)?,
        };
        let given = std::mem::take(&mut piece.affines);
        let columns = std::mem::take(&mut piece.columns);
        if subject.tensor.quant.is_some_and(|quant| quant.spec.has_columns) && columns.is_none() {
            return Err(Error::bug("scales of columns are missing").at(subject.tensor.culprit()));
        }
        let scaled_inputs = columns.as_ref().and_then(|columns| Some(subject.inputs?.scaled(columns.values())));
        let is_single = subject.tensor.quant.is_some_and(|quant| quant.spec.grouping == Grouping::Tensor);
        let scales = match given.first() {
            Some(&affine) if is_single => Scales::Single(affine),
            Some(_) => Scales::Given(piece.first_row, given),
            None if subject.tensor.needs_given_scales() => {
                let message = "steps by frequency need the tokenizer of a model's directory; use a plain step";
                return Err(Error::config(message).at(subject.tensor.culprit()));
            }
            None if is_single => {
                let inputs = (columns.as_ref(), scaled_inputs.as_ref());
                Scales::Single(self.single_scale(subject, &masker, inputs, piece, stop)?)
            }
            None => Scales::Fitted,
        };
        Ok(PieceRules { masker, scales, columns, scaled_inputs })
    }

    fn masker(&mut self, subject: &Subject, start: &PieceStart, piece: &mut Piece, stop: &Stop) -> Result<Masker> {
        let Subject { tensor, survey, coding, .. } = *subject;
        let Some(prune) = tensor.prune else {
            return Ok(if coding.storage == Storage::Bitmask { Masker::Nonzero } else { Masker::All });
        };
        Ok(match (prune.cut, survey.threshold()) {
            (Cut::Pattern(SparsityPattern::NOfM { n, m }), _) => Masker::NOfM(n, m),
            (Cut::Pattern(SparsityPattern::PerRow(n_drop)), _) => Masker::OfRow(n_drop),
            (Cut::Given, _) => Masker::Bits(piece.first_row, std::mem::take(&mut piece.keep)),
            (_, Some(threshold)) => Masker::Threshold(Threshold { n_ties: start.n_ties, ..threshold }),
            (Cut::Pool(_), None) => Masker::Threshold(Threshold::default()),
            (Cut::Pattern(SparsityPattern::Unstructured(n_drop)), None) => {
                Masker::Threshold(self.threshold(subject, piece, n_drop, stop)?)
            }
        })
    }

    /// Finds the threshold of a tensor that is in one piece. For others, the survey finds it.
    fn threshold(&mut self, subject: &Subject, piece: &mut Piece, n_drop: usize, stop: &Stop) -> Result<Threshold> {
        let Self { selector, scores, .. } = self;
        let info = subject.tensor.info;
        let is_magnitude = subject.tensor.score() == Some(Score::Magnitude) && subject.norm.is_none();
        let is_bf16 = info.dtype == DType::BF16 && is_magnitude;
        selector.threshold(info.n_elements(), n_drop, |each| {
            if is_bf16 && let Ok(halves) = bytemuck::try_cast_slice(piece.bytes) {
                return halves.chunks(SLICE).try_for_each(|halves| {
                    each(Scores::BF16(halves));
                    stop.check()
                });
            }
            piece.for_each_block(|block| {
                stop.check()?;
                each(Scores::F32(subject.scored(&block, scores)));
                Ok(())
            })
        })
    }

    /// Fits the only scale of a tensor to all of its kept weights.
    fn single_scale(
        &mut self,
        subject: &Subject,
        masker: &Masker,
        (columns, scaled): (Option<&ColumnScales>, Option<&InputView>),
        piece: &mut Piece,
        stop: &Stop,
    ) -> Result<Affine> {
        let (tensor, mut masker) = (subject.tensor, masker.clone());
        let (mut values, mut keep) = (Vec::with_capacity(piece.n_elements()), Vec::new());
        piece.for_each_block(|block| {
            check_finite(tensor, &block)?;
            stop.check()?;
            self.mask(subject, &mut masker, &block);
            values.extend_from_slice(self.decision.kept_of(block.values, tensor.rows().n_cols, &mut self.kept));
            keep.extend_from_slice(&self.decision.keep);
            Ok(())
        })?;
        let Some(quant) = tensor.quant else { return Err(Error::bug("a scale of a tensor without quantization")) };
        columns.iter().for_each(|columns| columns.divide(&mut values));
        let keep = (tensor.prune.is_some() && !keep.is_empty()).then_some(keep.as_slice());
        let inputs = subject.inputs_from(piece.first_row, scaled);
        let rows = MaskedRows { values: &values, n_cols: tensor.rows().n_cols, keep, inputs };
        let mut affines = Vec::with_capacity(1);
        self.fitter.fit(&quant.spec, rows, &|| stop.check(), &mut affines)?;
        Ok(affines[0])
    }

    /// Decides on a strip. Returns its weights, 0 where pruned, and the decision.
    ///
    /// # Errors
    /// Interrupted: a stop was requested.
    pub(super) fn strip<'a>(
        &'a mut self,
        subject: &Subject,
        rules: &mut PieceRules,
        strip: &Strip<'a>,
        stop: &Stop,
    ) -> Result<(&'a [f32], &'a RowsDecision)> {
        stop.check()?;
        self.mask(subject, &mut rules.masker, strip);
        let n_cols = subject.tensor.rows().n_cols;
        let Self { fitter, kept, divided, decision, .. } = self;
        decision.columns.clone_from(&rules.columns);
        let kept = decision.kept_of(strip.weights(), n_cols, kept);
        let RowsDecision { keep, affines, .. } = decision;
        affines.clear();
        if let Some(quant) = subject.tensor.quant {
            match &rules.scales {
                Scales::Single(affine) => affines.push(*affine),
                Scales::Given(first, given) => {
                    let per_row = quant.spec.grouping.per_row(n_cols).unwrap_or(1).max(1);
                    let start = (strip.first_row - first) * per_row;
                    affines.extend_from_slice(&given[start..start + kept.len() / n_cols * per_row]);
                }
                Scales::Fitted => {
                    // In a tensor that is not pruned, zeros are weights like others.
                    let keep = keep.as_slice();
                    let keep = (subject.tensor.prune.is_some() && !keep.is_empty()).then_some(keep);
                    let inputs = subject.inputs_from(strip.first_row, rules.scaled_inputs.as_ref());
                    let values = match &rules.columns {
                        Some(columns) => {
                            divided.clear();
                            divided.extend_from_slice(kept);
                            columns.divide(divided);
                            divided
                        }
                        None => kept,
                    };
                    let rows = MaskedRows { values, n_cols, keep, inputs };
                    fitter.fit(&quant.spec, rows, &|| stop.check(), affines)?;
                }
            }
        }
        Ok((kept, decision))
    }

    /// Computes the mask bits of a strip, if any are needed.
    fn mask(&mut self, subject: &Subject, masker: &mut Masker, strip: &Strip) {
        let Self { scores, keys, decision, .. } = self;
        let n_cols = subject.tensor.rows().n_cols;
        let n_rows = strip.values.len() / n_cols;
        let row_bytes = Mask::row_bytes(n_cols);
        decision.keep.clear();
        if matches!(masker, Masker::All) {
            return;
        }
        if let Masker::Bits(first, bits) = masker {
            let start = (strip.first_row - *first) * row_bytes;
            return decision.keep.extend_from_slice(&bits[start..start + n_rows * row_bytes]);
        }
        decision.keep.resize(n_rows * row_bytes, 0);
        let scores = subject.scored(strip, scores);
        let rows = strip.weights().chunks_exact(n_cols).zip(scores.chunks_exact(n_cols));
        for ((values, scores), bits) in rows.zip(decision.keep.chunks_exact_mut(row_bytes)) {
            match masker {
                Masker::All | Masker::Bits(..) => {}
                Masker::Nonzero => {
                    simd::nonzero_bits(values, bits);
                }
                Masker::Threshold(threshold) => {
                    simd::keep_above(scores, threshold.key, &mut threshold.n_ties, bits);
                }
                Masker::OfRow(n_drop) => select::smallest_of_each(scores, n_cols, *n_drop, keys, bits),
                Masker::NOfM(n, m) => select::n_of_m_row(scores, *n, *m, bits),
            }
        }
    }
}

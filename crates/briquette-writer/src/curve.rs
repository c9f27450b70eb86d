//! Measures the size of a tensor's codes and their error at each step size.

mod coded;
mod row_steps;

use crate::piece::{PieceReader, check_finite};
use crate::piece_sizes::PieceSizes;
use crate::{Stop, TensorPlan};
use briquette_core::decision::{Decision, fake_quantize};
use briquette_core::encoded::CodeBlocks;
use briquette_core::entropy::counts_of;
use briquette_core::{Grid, Mask, QuantParams, Result, Rows, simd};
use briquette_formats::TensorSource;
use briquette_methods::prune::SparsityPattern;
use briquette_methods::quant::{Candidate, Fitter, KernelKind, MaskedRows, QuantSpec, STEP_SIZES, range, step_name};
use coded::block_bytes;
pub use row_steps::RowSteps;
use std::convert::Infallible;

/// Most weights of a tensor that are measured: evenly spaced rows of a larger tensor.
const SAMPLED: usize = 1 << 20;
/// Measured step sizes per octave. Sizes between them are interpolated.
const PER_OCTAVE: i32 = 4;
/// Interpolated step sizes between two measured ones.
const BETWEEN: usize = 16;
/// The same for steps by row, which are powers of `2^(1/8)`.
const BETWEEN_ROWS: usize = 2;
/// The octaves of step sizes, relative to the root mean square of the weights.
const OCTAVES: std::ops::Range<i32> = -6..4;
/// The fewest bits for each weight with a trellis. Odd codes are never zero, so codes that are nearly all zero take more bits on it.
const LEAST_TRELLIS_BITS: f64 = 1.0;
/// Bytes of a scale.
const OF_SCALE: f64 = 2.0;

/// A scheme that is allowed for a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedChoice {
    /// The name of the scheme.
    pub scheme: String,
    /// The grid and its fit; `None` if the tensor stays floats.
    pub spec: Option<QuantSpec>,
    /// Whether activations are quantized too.
    pub rounds_inputs: bool,
    /// The weights pruned by magnitude before, if any.
    pub cut: Option<SparsityPattern>,
    /// Bytes of all parts of the tensor.
    pub bytes: f64,
}

impl NamedChoice {
    fn kernel(&self) -> KernelKind {
        KernelKind {
            is_narrow: self.spec.is_some_and(|spec| spec.grid.n_bits() <= 4),
            rounds_inputs: self.rounds_inputs,
        }
    }
}

/// The choices that are allowed for a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorChoices {
    /// Whether any step size is allowed.
    pub has_steps: bool,
    /// The allowed schemes.
    pub named: Vec<NamedChoice>,
    /// The factors of the step size in each row, if rows have their own.
    pub rows: Option<RowSteps>,
}

/// The sizes and errors of a tensor as functions of the step size.
pub struct Curve {
    /// The name of the tensor.
    pub name: String,
    /// Number of weights.
    pub n_weights: usize,
    /// The root mean square of the weights; 1 if all are 0. It is clamped so that every step size has a name.
    pub rms: f64,
    /// The largest magnitude.
    most: f32,
    /// The mean square of the weights of each column.
    columns: Vec<f64>,
    /// Base-2 logarithms of the measured step sizes, ascending.
    steps: Vec<f64>,
    /// Bytes of blocks and scales at each step size.
    bytes: Vec<f64>,
    /// Base-2 logarithms of the root mean square of row scales, which may be power-of-two multiples of the step
    /// size.
    ///
    /// With steps by row, those of the root mean square of the rows that matter.
    scales: Vec<f64>,
    has_steps: bool,
    has_row_steps: bool,
    /// Schemes, each with twelve times its mean squared error: the square of the step size with the same error.
    named: Vec<(NamedChoice, f64)>,
}

impl Curve {
    /// Measures a tensor.
    ///
    /// # Errors
    /// Errors of reading, and Interrupted.
    pub fn of(tensor: &TensorPlan, source: &dyn TensorSource, choices: TensorChoices, stop: &Stop) -> Result<Self> {
        let (Sample { values, every, most }, rows) = (sampled(tensor, source, stop)?, tensor.rows());
        let square: f64 = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
        let rms = nonzero_rms(square / values.len().max(1) as f64);
        let columns = column_squares(&values, rows.n_cols.max(1));
        let steps = OCTAVES.start * PER_OCTAVE..OCTAVES.end * PER_OCTAVE;
        // Steps by row are powers of 2^(1/8).
        let base = if choices.rows.is_some() { (8.0 * rms.log2()).round() / 8.0 } else { rms.log2() };
        let steps: Vec<f64> = steps.map(|quarter| base + f64::from(quarter) / f64::from(PER_OCTAVE)).collect();
        let n_blocks = CodeBlocks::new(rows.n_rows, rows.n_cols).len().max(1) as f64;
        let share = rows.n_elements() as f64 / values.len().max(1) as f64;
        let mut codes = vec![0_i8; values.len()];
        let mut at = |step: &f64| {
            if let Some(of) = &choices.rows {
                return of.measure(&values, rows, every, *step, &mut codes);
            }
            let square = round(&values, rows.n_cols.max(1), step.exp2() as f32, &mut codes);
            let coded = block_bytes(&counts_of(bytemuck::cast_slice(&codes)), share, n_blocks);
            let n_scales = if covers(most, step.exp2() as f32) { 1.0 } else { rows.n_rows as f64 };
            (coded.min(rows.n_elements() as f64 + 8.0 * n_blocks) + OF_SCALE * n_scales, square.log2() / 2.0)
        };
        let (bytes, scales) = steps.iter().map(&mut at).unzip();
        let named = choices.named.into_iter().map(|choice| {
            let square = 12.0 * square_error(&values, rows, &choice);
            (choice, square)
        });
        Ok(Self {
            name: tensor.info.name.to_string(),
            n_weights: rows.n_elements(),
            rms,
            most,
            columns,
            steps,
            bytes,
            scales,
            has_steps: choices.has_steps,
            has_row_steps: choices.rows.is_some(),
            named: named.collect(),
        })
    }

    /// Returns the sizes and losses of all choices: step sizes in ascending order, then schemes.
    ///
    /// A step size has the loss `sensitivity · step²`. A tensor of zeros has no loss. `rounds_inputs` tells
    /// whether activations are quantized too if the choice is a step size.
    pub fn choices(&self, sensitivity: f64, rounds_inputs: bool) -> Vec<Candidate> {
        let sensitivity = if self.most > 0.0 { sensitivity } else { 0.0 };
        let at = |place: usize| {
            let [_, bytes, scale] = self.at(place);
            let kernel = KernelKind { is_narrow: false, rounds_inputs };
            Candidate { bytes, loss: sensitivity * (2.0 * scale).exp2(), kernel }
        };
        let named = self.named.iter().map(|(choice, square)| Candidate {
            bytes: choice.bytes,
            loss: sensitivity * square,
            kernel: choice.kernel(),
        });
        (0..self.n_steps()).map(at).chain(named).collect()
    }

    /// Returns the number of step sizes among the choices.
    fn n_steps(&self) -> usize {
        if self.has_steps { (self.steps.len() - 1) * self.between() } else { 0 }
    }

    /// Returns the number of choices for each measured step size.
    fn between(&self) -> usize {
        if self.has_row_steps { BETWEEN_ROWS } else { BETWEEN }
    }

    /// Returns the relative squared error of the layer's outputs, divided by that of its weights.
    ///
    /// It is computed from the root mean squares of the layer inputs, assuming that they are uncorrelated.
    /// `None` if `inputs` has another length, or all outputs are 0.
    pub fn output_error(&self, inputs: &[f32]) -> Option<f64> {
        // Channel groups use the mean over groups, because the sums of weights do not tell groups apart.
        let (n_cols, n_groups) = (self.columns.len(), (inputs.len() / self.columns.len().max(1)).max(1));
        let of_column = |column: usize| {
            let groups = inputs[column..].iter().step_by(n_cols);
            groups.map(|&input| f64::from(input).powi(2)).sum::<f64>() / n_groups as f64
        };
        if inputs.len() != n_groups * n_cols {
            return None;
        }
        let squares = || (0..n_cols).map(of_column);
        let whole: f64 = squares().zip(&self.columns).map(|(input, weights)| input * weights).sum();
        let is_known = whole > 0.0;
        is_known.then(|| self.rms * self.rms * squares().sum::<f64>() / whole)
    }

    /// Returns the scheme of a choice.
    ///
    /// For a step size, it has one scale for the tensor if that covers all weights, and else one per row.
    /// With a trellis, the step size is half as large, unless that takes few bits for each weight: then plain codes are better.
    /// `suffix` is appended to the name.
    pub fn scheme(&self, place: usize, has_trellis: bool, suffix: &str) -> String {
        if let Some((choice, _)) = place.checked_sub(self.n_steps()).and_then(|place| self.named.get(place)) {
            return choice.scheme.clone();
        }
        let [step, bytes, _] = self.at(place);
        let bits = 8.0 * bytes / self.n_weights.max(1) as f64;
        let (step, suffix) = match has_trellis && bits >= LEAST_TRELLIS_BITS {
            true => ((step - 1.0).exp2(), format!("-trellis{suffix}")),
            false => (step.exp2(), suffix.to_string()),
        };
        if self.has_row_steps {
            return step_name(step, &format!("-frequency{suffix}"));
        }
        let row = step_name(step, "");
        let size = row.strip_prefix("step").and_then(|size| size.parse().ok());
        let is_per_tensor = size.is_some_and(|size| covers(self.most, size));
        if is_per_tensor { format!("{row}-tensor{suffix}") } else { row + &suffix }
    }

    /// Returns the base-2 logarithm of the step size of a choice, its bytes, and the base-2 logarithm of the
    /// row scales.
    fn at(&self, place: usize) -> [f64; 3] {
        let (of, share) = (place / self.between(), (place % self.between()) as f64 / self.between() as f64);
        let between = |values: &[f64]| values[of] + share * (values[of + 1] - values[of]);
        [&self.steps, &self.bytes, &self.scales].map(|values| between(values))
    }
}

/// Returns the root of a mean square, clamped so that every step size has a name; 1 if it is 0.
fn nonzero_rms(mean_square: f64) -> f64 {
    let [least, most] = [(STEP_SIZES.start(), OCTAVES.start), (STEP_SIZES.end(), OCTAVES.end)]
        .map(|(&size, octave)| f64::from(size) / f64::from(octave).exp2());
    if mean_square > 0.0 { mean_square.sqrt().clamp(least, most) } else { 1.0 }
}

/// Returns the mean squared error of pruning by magnitude and a scheme on sampled rows of a tensor.
fn square_error(values: &[f32], of: Rows, choice: &NamedChoice) -> f64 {
    let n_cols = of.n_cols.max(1);
    let n_rows = values.len() / n_cols;
    let mask = choice.cut.map(|pattern| {
        let of_sample = match pattern {
            // The sampled rows are pruned by the same share as all rows.
            SparsityPattern::Unstructured(n_drop) => {
                let share = n_drop as f64 / of.n_elements().max(1) as f64;
                let n_drop = (share * values.len() as f64).round() as usize;
                SparsityPattern::Unstructured(n_drop.min(values.len()))
            }
            by_row => by_row,
        };
        of_sample.mask(values, n_rows, n_cols)
    });
    let kept = fake_quantize(values, n_rows, n_cols, &Decision { mask: mask.clone(), quant: None });
    let keep = mask.as_ref().map(Mask::as_bits);
    let quant = choice.spec.map(|spec| {
        let (mut affines, rows) = (Vec::new(), MaskedRows { values: &kept, n_cols, keep, inputs: None });
        let Ok(()) = Fitter::default().fit(&spec, rows, &|| Ok::<(), Infallible>(()), &mut affines);
        QuantParams::new(spec.grid, spec.grouping, n_cols, affines)
    });
    let rounded = fake_quantize(values, n_rows, n_cols, &Decision { mask, quant });
    let square: f64 = values.iter().zip(&rounded).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    square / values.len().max(1) as f64
}

/// Returns the mean square of each column.
fn column_squares(values: &[f32], n_cols: usize) -> Vec<f64> {
    let n_rows = (values.len() / n_cols).max(1) as f64;
    let mut squares = vec![0.0; n_cols];
    for row in values.chunks(n_cols) {
        squares.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value).powi(2) / n_rows);
    }
    squares
}

/// Returns whether a grid of this step size covers all weights up to a magnitude.
fn covers(most: f32, step: f32) -> bool {
    range::step(&[most], step, Grid::INT8).scale == step
}

/// Rounds rows to grids of this step size or its power-of-two multiples. Returns the mean square of the scales.
fn round(values: &[f32], n_cols: usize, step: f32, codes: &mut [i8]) -> f64 {
    let (mut square, mut n_rows) = (0.0, 0.0);
    for (row, codes) in values.chunks(n_cols).zip(codes.chunks_mut(n_cols)) {
        let affine = range::step(row, step, Grid::INT8);
        simd::quantize(row, affine, Grid::INT8, codes);
        square += f64::from(affine.scale).powi(2);
        n_rows += 1.0;
    }
    if n_rows > 0.0 { square / n_rows } else { f64::from(step).powi(2) }
}

/// Evenly spaced rows of a tensor.
struct Sample {
    values: Vec<f32>,
    /// The distance between two rows.
    every: usize,
    /// The largest magnitude of all rows.
    most: f32,
}

/// Returns how many rows there are for each sampled row.
fn every(rows: Rows) -> usize {
    (rows.n_elements() / SAMPLED).max(1)
}

/// Returns an upper bound of the bytes that [`Curve::of`] needs.
///
/// These are the largest piece, and the sampled values as floats in a growing list, as codes, pruned, rounded, and
/// as scores.
pub(crate) fn needed_bytes(tensor: &TensorPlan, source: &dyn TensorSource) -> usize {
    let rows = tensor.rows();
    let pieces = PieceSizes::SMALL.pieces_of(tensor, source.reads_ranges(tensor.index()));
    let n_piece = pieces.iter().map(ExactSizeIterator::len).max().unwrap_or(0) * rows.n_cols;
    let n_sampled = rows.n_rows.div_ceil(every(rows)) * rows.n_cols;
    let n_copies = 1 + usize::from(rows.axis.is_turned());
    n_piece * tensor.width() * n_copies + (2 * 4 + 1 + 4 * 4) * n_sampled
}

/// Reads sampled rows of a tensor; refuses one with NaN or infinity.
fn sampled(tensor: &TensorPlan, source: &dyn TensorSource, stop: &Stop) -> Result<Sample> {
    let (rows, mut values, mut reader) = (tensor.rows(), Vec::new(), PieceReader::default());
    let pieces = PieceSizes::SMALL.pieces_of(tensor, source.reads_ranges(tensor.index()));
    let (every, mut most) = (every(rows), 0.0_f32);
    for piece in pieces {
        let mut row = piece.start;
        reader.read(source, tensor, &piece, stop)?.for_each_block(|block| {
            check_finite(tensor, &block)?;
            most = most.max(f32::from_bits(simd::max_magnitude(block.values)));
            for values_of_row in block.values.chunks(rows.n_cols.max(1)) {
                if row.is_multiple_of(every) {
                    values.extend_from_slice(values_of_row);
                }
                row += 1;
            }
            Ok(())
        })?;
    }
    Ok(Sample { values, every, most })
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::{OutputAxis, Shape};
    use briquette_methods::quant::Scheme;

    /// Rows of a tensor in which three of four weights are tiny.
    fn mostly_tiny(n_rows: usize, n_cols: usize) -> (Rows, Vec<f32>) {
        let size = |at: usize| if at.is_multiple_of(4) { 1.0 } else { 1e-5 };
        let values = (0..n_rows * n_cols).map(|at| size(at) * ((at * 37 % 101) as f32 - 50.5) / 50.0).collect();
        (Rows::of(&Shape(vec![n_rows, n_cols]), OutputAxis::First), values)
    }

    fn choice(cut: Option<SparsityPattern>) -> NamedChoice {
        NamedChoice { scheme: "int8".into(), spec: Some(Scheme::INT8.weights), rounds_inputs: false, cut, bytes: 0.0 }
    }

    #[test]
    fn pruning_tiny_weights_has_almost_no_error_and_pruning_all_has_the_mean_square() {
        for n_cols in [4, 32, 100] {
            let (rows, values) = mostly_tiny(24, n_cols);
            let n = values.len();
            let error = |cut| square_error(&values, rows, &choice(cut));
            let (dense, mean_square) =
                (error(None), values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n as f64);
            assert!(dense > 0.0 && error(Some(SparsityPattern::Unstructured(0))) == dense);
            for cut in [SparsityPattern::Unstructured(n * 3 / 4), SparsityPattern::NOfM { n: 1, m: 4 }] {
                assert!((error(Some(cut)) / dense - 1.0).abs() < 0.05, "{cut:?} of {n_cols}");
            }
            assert!(error(Some(SparsityPattern::Unstructured(n * 7 / 8))) > 20.0 * dense);
            assert!((error(Some(SparsityPattern::Unstructured(n))) / mean_square - 1.0).abs() < 1e-6);
            // The error of sampled rows is similar to that of all rows.
            let some =
                square_error(&values[..12 * n_cols], rows, &choice(Some(SparsityPattern::Unstructured(n * 3 / 4))));
            assert!((0.5..2.0).contains(&(some / dense)), "{some} of {dense}");
        }
    }

    #[test]
    fn every_step_size_has_a_name() {
        for mean_square in [0.0, 1e-300, 1e-90, 1e-24, 1.0, 1e60, 1e77] {
            let rms = nonzero_rms(mean_square);
            for octave in [OCTAVES.start, OCTAVES.end] {
                let step = (rms * f64::from(octave).exp2()) as f32;
                assert!((step / step.clamp(*STEP_SIZES.start(), *STEP_SIZES.end()) - 1.0).abs() < 1e-6, "{step}");
            }
        }
        assert_eq!((nonzero_rms(0.0), nonzero_rms(1e-28)), (1.0, 1e-14));
    }
}

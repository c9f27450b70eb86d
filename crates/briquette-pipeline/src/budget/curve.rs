//! How many bytes a tensor's codes take at each step, and what it loses there.

use super::allocate::Choice;
use briquette_core::encoded::CodeBlocks;
use briquette_core::{Affine, Grid, Result, simd};
use briquette_entropy::counts_of;
use briquette_flow::piece::PieceReader;
use briquette_flow::{Stop, TensorPlan};
use briquette_formats::TensorSource;
use briquette_quant::range;

/// Weights of a tensor that sizes are measured on, where it has more: whole rows, evenly spread.
const SAMPLED: usize = 1 << 20;
/// Steps of each octave that are measured; sizes between two of them are on a line.
const PER_OCTAVE: i32 = 4;
/// Steps between two that are measured.
const BETWEEN: usize = 16;
/// The octaves of steps, over the root mean square of the weights.
const OCTAVES: std::ops::Range<i32> = -6..4;
/// Bytes that a block has besides its codes: states and a table of some fifty frequencies.
const OF_BLOCK: f64 = 128.0 + 60.0 + 8.0;
/// The size of coded codes over their entropy.
const OVER_ENTROPY: f64 = 1.003;

/// A tensor whose step is to be found.
pub(super) struct Curve {
    /// Its name.
    pub(super) name: String,
    pub(super) n_weights: usize,
    /// The root mean square of its weights.
    pub(super) rms: f64,
    /// The largest magnitude.
    most: f32,
    /// Base 2 logarithms of steps, ascending.
    steps: Vec<f64>,
    /// Bytes of blocks at each.
    bytes: Vec<f64>,
}

impl Curve {
    /// Measures what a tensor would take.
    pub(super) fn of(tensor: &TensorPlan, source: &dyn TensorSource, stop: &Stop) -> Result<Self> {
        let ((values, most), rows) = (sampled(tensor, source, stop)?, tensor.rows);
        let square: f64 = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
        let rms = (square / values.len().max(1) as f64).sqrt().max(1e-12);
        let steps = OCTAVES.start * PER_OCTAVE..OCTAVES.end * PER_OCTAVE;
        let steps: Vec<f64> = steps.map(|quarter| rms.log2() + f64::from(quarter) / f64::from(PER_OCTAVE)).collect();
        let n_blocks = CodeBlocks::new(rows.n_rows, rows.n_cols).len() as f64;
        let share = rows.n_elements() as f64 / values.len().max(1) as f64;
        let mut codes = vec![0_i8; values.len()];
        let mut bytes = |step: &f64| {
            let affine = Affine::symmetric(step.exp2() as f32);
            simd::quantize(&values, affine, Grid::INT8, &mut codes);
            let bits = entropy(&counts_of(bytemuck::cast_slice(&codes)));
            OVER_ENTROPY * share * bits / 8.0 + OF_BLOCK * n_blocks
        };
        let bytes = steps.iter().map(&mut bytes).collect();
        Ok(Self { name: tensor.info.name.clone(), n_weights: rows.n_elements(), rms, most, steps, bytes })
    }

    /// All choices, from the smallest step on, with what is lost by each where it is `sensitivity · step²`.
    pub(super) fn choices(&self, sensitivity: f64) -> Vec<Choice> {
        let at = |place: usize| {
            let (step, bytes) = self.at(place);
            Choice { bytes, loss: sensitivity * step * step }
        };
        (0..(self.steps.len() - 1) * BETWEEN).map(at).collect()
    }

    /// The step of a choice.
    fn step(&self, place: usize) -> f64 {
        self.at(place).0
    }

    /// The scheme of a choice: one step for the whole tensor where that holds all weights, and some more for what rounding moves.
    pub(super) fn scheme(&self, place: usize) -> String {
        let size = format!("{:.3e}", self.step(place));
        let row = format!("step{size}");
        let is_held = size.parse().is_ok_and(|size| range::step(&[self.most], size, Grid::INT8).scale == size);
        if is_held { format!("{row}-tensor") } else { row }
    }

    /// Step and bytes of a choice.
    fn at(&self, place: usize) -> (f64, f64) {
        let (of, share) = (place / BETWEEN, (place % BETWEEN) as f64 / BETWEEN as f64);
        let between = |values: &[f64]| values[of] + share * (values[of + 1] - values[of]);
        (between(&self.steps).exp2(), between(&self.bytes))
    }
}

/// Bits of all symbols together: `Σ n·log2(N/n)`.
fn entropy(counts: &[u64; 256]) -> f64 {
    let n = counts.iter().sum::<u64>() as f64;
    let bits = |&count: &u64| if count == 0 { 0.0 } else { count as f64 * (n / count as f64).log2() };
    counts.iter().map(bits).sum()
}

/// Some rows of a tensor, and the largest magnitude of all.
fn sampled(tensor: &TensorPlan, source: &dyn TensorSource, stop: &Stop) -> Result<(Vec<f32>, f32)> {
    let (rows, mut values, mut reader) = (tensor.rows, Vec::new(), PieceReader::default());
    let pieces = briquette_flow::piece::pieces_of(tensor, source.reads_ranges(tensor.index()));
    let (every, mut most) = ((rows.n_elements() / SAMPLED).max(1), 0.0_f32);
    for piece in pieces {
        let mut row = piece.start;
        reader.read(source, tensor, &piece, stop)?.for_each_block(|block| {
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
    Ok((values, most))
}

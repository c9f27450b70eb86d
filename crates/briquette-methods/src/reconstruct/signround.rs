//! SignRound: learns the rounding of weights from gradients of a block's output error.

use briquette_core::encoded::ScaleType;
use briquette_core::{Affine, Grouping, Mask, QuantParams};
use rayon::prelude::*;

/// The largest shift of a weight before it is rounded, in steps of its grid.
const MAX_SHIFT: f32 = 0.5;
/// The range of a scale, relative to its first value.
const FACTORS: (f32, f32) = (0.5, 1.5);
/// The place of a weight whose first code is not the nearest, in steps from this code.
const MOVED: f32 = 0.25;

/// The weights of a layer while their rounding is learned.
///
/// `ŵ = α s · clamp(round(l / α + v))`, with `s` the first scale of the weight's group, and `l = w / s`. If another method chose a
/// code that is not the nearest, `l` is a quarter of a step from it, toward `w`. [`step`](Self::step) learns the shift `v` of each weight, from -0.5 to 0.5, and the factor
/// `α` of each group, from 0.5 to 1.5, which start at 0 and 1. Gradients pass through `round` as if it were the identity.
///
/// Source: Cheng et al., "Optimize Weight Rounding via Signed Gradient Descent for the Quantization of LLMs", 2023, equations 3 to
/// 7. There, codes start at the nearest and scales cannot grow.
pub struct SignRound {
    n_cols: usize,
    first: QuantParams,
    scale: ScaleType,
    learns_scales: bool,
    keep: Option<Mask>,
    /// `l`, `[rows, n_cols]`.
    latent: Vec<f32>,
    shifts: Vec<f32>,
    factors: Vec<f32>,
}

/// The weights of a group in a row.
struct RowGroup<'a> {
    first: Affine,
    bounds: (f32, f32),
    latent: &'a [f32],
    /// Whether each weight is kept; empty if all are.
    keep: &'a [bool],
}

impl SignRound {
    /// Starts from `rounded` weights `[rows, n_cols]`, which are on the grids of `first` or dropped by `keep`.
    ///
    /// Scales are rounded to `scale`. They are learned if `learns_scales` is set and rows do not share one.
    ///
    /// # Panics
    /// If the lengths differ, or `n_cols` is 0.
    pub fn new(
        (weights, rounded): (&[f32], &[f32]),
        n_cols: usize,
        first: QuantParams,
        keep: Option<Mask>,
        (scale, learns_scales): (ScaleType, bool),
    ) -> Self {
        assert_eq!(weights.len(), rounded.len(), "weights before and after rounding");
        assert!(n_cols > 0 && weights.len().is_multiple_of(n_cols), "whole rows of {n_cols}");
        let mut latent = vec![0.0; weights.len()];
        let size = first.group_size();
        for (row, latent) in latent.chunks_mut(n_cols).enumerate() {
            for (group, (latent, affine)) in latent.chunks_mut(size).zip(first.row(row)).enumerate() {
                let start = row * n_cols + group * size;
                let of_group = weights[start..].iter().zip(&rounded[start..]).zip(latent);
                of_group.for_each(|((&weight, &rounded), latent)| *latent = latent_of(weight, rounded, affine.scale));
            }
        }
        let learns_scales = learns_scales && first.grouping != Grouping::Tensor;
        // A scale that rows share has a factor of 1 for each of them.
        let n_factors = first.affines.len().max(weights.len() / n_cols);
        let (shifts, factors) = (vec![0.0; weights.len()], vec![1.0; n_factors]);
        Self { n_cols, first, scale, learns_scales, keep, latent, shifts, factors }
    }

    /// Returns the number of weights.
    pub fn n_weights(&self) -> usize {
        self.latent.len()
    }

    /// Returns the current grids.
    pub fn grids(&self) -> QuantParams {
        let affines = self.first.affines.iter().zip(&self.factors);
        let affines = affines.map(|(&first, &factor)| self.scaled(first, factor)).collect();
        QuantParams::new(self.first.grid, self.first.grouping, self.n_cols, affines)
    }

    /// Returns the current weights `[rows, n_cols]`, on the grids of [`grids`](Self::grids); 0 where they are dropped.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.latent.len()];
        let per_row = self.factors.len() / (self.latent.len() / self.n_cols).max(1);
        let rows = values.par_chunks_mut(self.n_cols).zip(self.shifts.par_chunks(self.n_cols));
        rows.zip(self.factors.par_chunks(per_row)).enumerate().for_each(|(row, ((values, shifts), factors))| {
            let (kept, size) = (self.kept(row), self.first.group_size());
            let groups = values.chunks_mut(size).zip(shifts.chunks(size)).zip(factors).enumerate();
            for (index, ((values, shifts), &factor)) in groups {
                let group = self.group(row, index, &kept);
                let scale = self.scaled(group.first, factor).scale;
                for (i, (value, shift)) in values.iter_mut().zip(shifts).enumerate() {
                    *value = if group.drops(i) { 0.0 } else { scale * group.code(i, *shift, factor).0 };
                }
            }
        });
        values
    }

    /// Returns to the first codes and scales.
    pub fn reset(&mut self) {
        self.shifts.fill(0.0);
        self.factors.fill(1.0);
    }

    /// Moves shifts and factors by `rate` against the sign of the loss's gradient at the weights `[rows, n_cols]`.
    ///
    /// # Panics
    /// If there is not one gradient for each weight.
    pub fn step(&mut self, gradient: &[f32], rate: f32) {
        assert_eq!(gradient.len(), self.latent.len(), "a gradient for each weight");
        let (mut shifts, mut factors) = (std::mem::take(&mut self.shifts), std::mem::take(&mut self.factors));
        let (this, per_row) = (&*self, factors.len() / (shifts.len() / self.n_cols).max(1));
        let rows = shifts.par_chunks_mut(self.n_cols).zip(factors.par_chunks_mut(per_row));
        rows.zip(gradient.par_chunks(self.n_cols)).enumerate().for_each(|(row, (learned, gradient))| {
            this.step_row(row, learned, gradient, rate);
        });
        (self.shifts, self.factors) = (shifts, factors);
    }

    fn step_row(&self, row: usize, (shifts, factors): (&mut [f32], &mut [f32]), gradient: &[f32], rate: f32) {
        let (kept, size) = (self.kept(row), self.first.group_size());
        let groups = shifts.chunks_mut(size).zip(gradient.chunks(size)).zip(factors).enumerate();
        for (index, ((shifts, gradient), factor)) in groups {
            let group = self.group(row, index, &kept);
            let mut toward_factor = 0.0_f64;
            let learned = *factor;
            for (i, (shift, &gradient)) in shifts.iter_mut().zip(gradient).enumerate() {
                if group.drops(i) {
                    continue;
                }
                let (code, is_inside) = group.code(i, *shift, learned);
                let own = if is_inside { group.latent[i] / learned } else { 0.0 };
                toward_factor += f64::from(gradient * group.first.scale * (code - own));
                if is_inside {
                    *shift = (*shift - rate * sign(gradient)).clamp(-MAX_SHIFT, MAX_SHIFT);
                }
            }
            if self.learns_scales {
                *factor = (learned - rate * sign(toward_factor as f32)).clamp(FACTORS.0, FACTORS.1);
            }
        }
    }

    fn scaled(&self, first: Affine, factor: f32) -> Affine {
        match factor == 1.0 {
            true => first,
            false => self.scale.round(Affine { scale: first.scale * factor, ..first }),
        }
    }

    /// Returns whether each weight of a row is kept; empty if all are.
    fn kept(&self, row: usize) -> Vec<bool> {
        let Some(mask) = &self.keep else { return Vec::new() };
        (0..self.n_cols).map(|col| mask.keeps(row, col)).collect()
    }

    fn group<'a>(&'a self, row: usize, index: usize, kept: &'a [bool]) -> RowGroup<'a> {
        let (first, size) = (self.first.row(row)[index], self.first.group_size());
        let columns = index * size..((index + 1) * size).min(self.n_cols);
        let latent = &self.latent[row * self.n_cols + columns.start..row * self.n_cols + columns.end];
        let keep = if kept.is_empty() { kept } else { &kept[columns] };
        RowGroup { first, bounds: first.code_bounds(self.first.grid), latent, keep }
    }
}

impl RowGroup<'_> {
    fn drops(&self, i: usize) -> bool {
        self.keep.get(i).is_some_and(|is_kept| !is_kept)
    }

    /// Returns the code of a weight relative to the zero point, and whether it is not clamped.
    fn code(&self, i: usize, shift: f32, factor: f32) -> (f32, bool) {
        let wanted = (self.latent[i] / factor + shift).round_ties_even();
        (wanted.clamp(self.bounds.0, self.bounds.1), (self.bounds.0..=self.bounds.1).contains(&wanted))
    }
}

/// Returns a weight in steps, nearest to its first code.
fn latent_of(weight: f32, rounded: f32, scale: f32) -> f32 {
    let code = (rounded / scale).round_ties_even();
    let steps = weight / scale;
    match code.is_finite() && steps.is_finite() {
        true if (steps - code).abs() <= 0.5 && steps.round_ties_even() == code => steps,
        true => code + (steps - code).clamp(-MOVED, MOVED),
        // Without a scale all weights are 0.
        false => 0.0,
    }
}

/// Returns -1, 0 or 1.
fn sign(value: f32) -> f32 {
    if value == 0.0 || value.is_nan() { 0.0 } else { value.signum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Grid;

    const N_COLS: usize = 32;
    const N_ROWS: usize = 16;

    /// Returns values from -1 to 1 that look random.
    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) as f32 * 0.618_034).sin()).collect()
    }

    /// Weights of three bits in groups of 16, and the inputs of their layer, which depend on each other.
    fn layer() -> (Vec<f32>, QuantParams, Vec<f32>) {
        let weights = values(N_ROWS * N_COLS, 1);
        let mix = values(N_COLS * 8, 2);
        let inputs = values(64 * 8, 3);
        let inputs: Vec<f32> = inputs
            .chunks(8)
            .flat_map(|own| mix.chunks(8).map(|mix| own.iter().zip(mix).map(|(a, b)| a * b).sum::<f32>()))
            .collect();
        let absmax = |group: &[f32]| group.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let affines = weights.chunks(16).map(|group| ScaleType::F16.round(Affine::symmetric(absmax(group) / 3.0)));
        let grid = Grid::new(3, briquette_core::GridKind::Symmetric).unwrap();
        let first = QuantParams::new(grid, Grouping::Group(16), N_COLS, affines.collect());
        (weights, first, inputs)
    }

    fn nearest(weights: &[f32], first: &QuantParams) -> Vec<f32> {
        let groups = weights.chunks(16).zip(&first.affines);
        groups
            .flat_map(|(group, affine)| {
                group.iter().map(|&value| affine.dequantize(affine.quantize(value, first.grid)))
            })
            .collect()
    }

    /// Returns the mean squared error of the outputs, and its gradient at the rounded weights.
    fn error(weights: &[f32], rounded: &[f32], inputs: &[f32]) -> (f32, Vec<f32>) {
        let (mut loss, mut gradient) = (0.0, vec![0.0; weights.len()]);
        for x in inputs.chunks(N_COLS) {
            for (row, (own, found)) in weights.chunks(N_COLS).zip(rounded.chunks(N_COLS)).enumerate() {
                let off: f32 = own.iter().zip(found).zip(x).map(|((own, found), x)| (found - own) * x).sum();
                loss += off * off;
                gradient[row * N_COLS..][..N_COLS].iter_mut().zip(x).for_each(|(sum, x)| *sum += 2.0 * off * x);
            }
        }
        (loss, gradient)
    }

    fn learned(keep: Option<Mask>, learns_scales: bool) -> (SignRound, [f32; 2]) {
        let (weights, first, inputs) = layer();
        let mut start = nearest(&weights, &first);
        if let Some(keep) = &keep {
            let dropped = (0..start.len()).filter(|i| !keep.keeps(i / N_COLS, i % N_COLS));
            dropped.for_each(|i| start[i] = 0.0);
        }
        let before = error(&weights, &start, &inputs).0;
        let mut found = SignRound::new((&weights, &start), N_COLS, first, keep, (ScaleType::F16, learns_scales));
        assert_eq!(found.values(), start, "no step was made");
        for step in 0..200 {
            let gradient = error(&weights, &found.values(), &inputs).1;
            found.step(&gradient, (1.0 - step as f32 / 200.0) / 200.0);
        }
        let after = error(&weights, &found.values(), &inputs).0;
        (found, [before, after])
    }

    #[test]
    fn learned_rounding_lowers_the_output_error_of_nearest_codes() {
        for learns_scales in [false, true] {
            let (found, [before, after]) = learned(None, learns_scales);
            assert!(after < 0.6 * before, "{after} after {before}");
            let (grids, values) = (found.grids(), found.values());
            assert_eq!(values, nearest(&values, &grids), "values are on the grids");
            assert_eq!(learns_scales, grids.affines != found.first.affines);
            assert!(grids.affines.iter().all(|affine| ScaleType::F16.holds(*affine)));
            let (weights, first, _) = layer();
            let mut found = found;
            found.reset();
            assert_eq!((found.values(), found.grids().affines), (nearest(&weights, &first), first.affines));
        }
    }

    #[test]
    fn codes_move_by_one_step_at_most_if_scales_stay() {
        let (weights, first, _) = layer();
        let (found, _) = learned(None, false);
        let moved = found.values().into_iter().zip(nearest(&weights, &first)).zip(0..).filter(|((value, start), i)| {
            let steps = ((*value - start) / first.affines[i / 16].scale).abs();
            assert!(steps < 1.01, "{steps}");
            steps > 0.5
        });
        assert!(moved.count() > 5);
    }

    #[test]
    fn dropped_weights_stay_zero() {
        let keep = Mask::from_fn(N_ROWS, N_COLS, |row, col| (row + col) % 3 != 0);
        let (found, [before, after]) = learned(Some(keep.clone()), true);
        assert!(after < before);
        for (i, value) in found.values().into_iter().enumerate() {
            assert!(keep.keeps(i / N_COLS, i % N_COLS) || value == 0.0);
        }
    }

    #[test]
    fn a_group_without_weights_and_a_shared_scale_are_left_as_they_are() {
        let first = QuantParams::new(Grid::INT8, Grouping::Row, 2, vec![Affine::symmetric(0.0); 2]);
        let mut found = SignRound::new((&[0.0; 4], &[0.0; 4]), 2, first, None, (ScaleType::F32, true));
        found.step(&[1.0, -1.0, f32::NAN, 0.0], 0.01);
        assert_eq!(found.values(), [0.0; 4]);
        let first = QuantParams::new(Grid::INT8, Grouping::Tensor, 2, vec![Affine::symmetric(1.0)]);
        let mut found =
            SignRound::new((&[1.4, 2.0, 3.0, 4.4], &[1.0, 2.0, 3.0, 4.0]), 2, first, None, (ScaleType::F32, true));
        (0..30).for_each(|_| found.step(&[-1.0, 0.0, 0.0, 1.0], 0.01));
        assert_eq!((found.values(), found.grids().affines), (vec![2.0, 2.0, 3.0, 4.0], vec![Affine::symmetric(1.0)]));
    }
}

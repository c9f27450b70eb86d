//! The output error of a layer, from the Gram matrix of its inputs.

use super::groups::GroupInputs;
use briquette_core::InputStats;
use briquette_methods::reconstruct::output_error;

/// The maximum number of rows to sum errors over: all rows, or evenly spaced ones.
const MAX_ROWS: usize = 256;

/// Sums of `e·G·eᵀ` over rows of errors `e`, without and with weight updates, and of `w·G·wᵀ`.
pub(super) struct OutputErrors<'a> {
    groups: Vec<GroupInputs<'a>>,
    n_cols: usize,
    step: usize,
    errors: [f64; 2],
    whole: f64,
}

impl<'a> OutputErrors<'a> {
    /// Creates empty sums for an `[n_rows, n_cols]` tensor.
    pub(super) fn new(stats: &'a InputStats, [n_rows, n_cols]: [usize; 2]) -> Self {
        let groups = GroupInputs::of(stats, [n_rows, n_cols]);
        Self { groups, n_cols, step: n_rows.div_ceil(MAX_ROWS).max(1), errors: [0.0; 2], whole: 0.0 }
    }

    /// Adds rows from `first` on: the original rows, their plainly rounded values from `rounded`, and their
    /// updated values.
    pub(super) fn add(&mut self, first: usize, own: &[f32], rounded: impl Fn(usize) -> Vec<f32>, updated: &[f32]) {
        let n_cols = self.n_cols;
        let last = first + own.len() / n_cols;
        for GroupInputs { rows, stats } in &self.groups {
            let rows = (rows.start.max(first)..rows.end.min(last)).filter(|row| row.is_multiple_of(self.step));
            let [mut before, mut stayed, mut after] = [const { Vec::<f32>::new() }; 3];
            for row in rows.map(|row| row - first) {
                let cols = row * n_cols..(row + 1) * n_cols;
                before.extend_from_slice(&own[cols.clone()]);
                stayed.extend(rounded(row));
                after.extend_from_slice(&updated[cols]);
            }
            self.errors[0] += output_error(&before, &stayed, stats);
            self.errors[1] += output_error(&before, &after, stats);
            self.whole += output_error(&before, &vec![0.0; before.len()], stats);
        }
    }

    /// Returns the relative squared output error without (0) or with (1) weight updates. `None` if it is not
    /// finite.
    pub(super) fn relative(&self, which: usize) -> Option<f64> {
        let relative = self.errors[which] / self.whole;
        (self.whole > 0.0 && relative.is_finite()).then(|| relative.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn errors_match_the_outputs_of_every_input() {
        let inputs = [[1.0_f64, 2.0, -1.0], [0.5, 0.0, 3.0]];
        let mut gram = vec![0.0; 9];
        for x in inputs {
            (0..9).for_each(|at| gram[at] += x[at / 3] * x[at % 3]);
        }
        let stats =
            InputStats { count: 2, gram: Some(Arc::new(gram)), sum_squares: vec![0.0; 3], ..InputStats::default() };
        let (own, rounded, updated) = ([1.0_f32, 2.0, 3.0], [1.0_f32, 2.0, 2.0], [1.5_f32, 2.0, 3.0]);
        let square = |weights: [f32; 3]| -> f64 {
            inputs.iter().map(|x| x.iter().zip(weights).map(|(x, w)| x * f64::from(w)).sum::<f64>().powi(2)).sum()
        };
        let mut errors = OutputErrors::new(&stats, [1, 3]);
        errors.add(0, &own, |_| rounded.to_vec(), &updated);
        assert!((errors.relative(0).unwrap() - square([0.0, 0.0, 1.0]) / square(own)).abs() < 1e-12);
        assert!((errors.relative(1).unwrap() - square([-0.5, 0.0, 0.0]) / square(own)).abs() < 1e-12);
    }
}

//! Statistics of a layer's inputs, summed over many input vectors.

use std::sync::Arc;

/// Sums over the inputs of one layer. A row of the weight is an output, a column an input.
///
/// The channel groups of a convolution have different inputs, so each group has statistics of its own, one group after
/// another. Vectors have `groups · columns` numbers, and the Gram matrices are `[groups, columns, columns]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InputStats {
    /// Number of input vectors: tokens, or positions of a convolution.
    pub count: u64,
    /// `Σ x[i]` for each input.
    pub sum: Vec<f64>,
    /// `Σ x[i]²` for each input.
    pub sum_squares: Vec<f64>,
    /// `Σ |x[i]|` for each input; empty if it was not gathered.
    pub sum_magnitudes: Vec<f64>,
    /// `max |x[i]|` for each input.
    pub max: Vec<f32>,
    /// `Σ_b (Σ_o w[o,i]·∂ℓ_b/∂w[o,i])²` for each input, over batches `b` with a random loss each; empty if it was not gathered.
    ///
    /// To first order, the inner sum is the change of the loss if the input is removed. Source: Molchanov et al., "Importance estimation
    /// for neural network pruning", 2019.
    pub importance: Vec<f64>,
    /// `Σ x[i]·x[j]` (the Gram matrix), row by row, if requested. Layers with the same inputs share it.
    pub gram: Option<Arc<Vec<f64>>>,
}

impl InputStats {
    /// Returns statistics of `n` inputs without any input vector, and without magnitudes; `has_gram` allocates the Gram matrix.
    pub fn empty(n: usize, has_gram: bool) -> Self {
        let gram = has_gram.then(|| Arc::new(vec![0.0; n * n]));
        Self { count: 0, sum: vec![0.0; n], sum_squares: vec![0.0; n], max: vec![0.0; n], gram, ..Self::default() }
    }

    /// Returns the number of inputs of the layer: the columns of its weight, times the channel groups.
    pub fn n_inputs(&self) -> usize {
        self.sum_squares.len()
    }

    /// Returns the number of channel groups of a weight with this number of columns.
    pub fn n_groups(&self, n_cols: usize) -> usize {
        n_groups(self.n_inputs(), n_cols)
    }

    /// Returns the statistics of one channel group of a weight with this number of columns.
    ///
    /// # Panics
    /// If there is no such group.
    #[must_use]
    pub fn of_group(&self, group: usize, n_cols: usize) -> Self {
        if self.n_groups(n_cols) == 1 {
            return self.clone();
        }
        let columns = group * n_cols..(group + 1) * n_cols;
        let matrix = columns.start * n_cols..columns.end * n_cols;
        Self {
            count: self.count,
            sum: self.sum[columns.clone()].to_vec(),
            sum_squares: self.sum_squares[columns.clone()].to_vec(),
            sum_magnitudes: self.sum_magnitudes.get(columns.clone()).unwrap_or_default().to_vec(),
            importance: self.importance.get(columns.clone()).unwrap_or_default().to_vec(),
            max: self.max[columns].to_vec(),
            gram: self.gram.as_ref().map(|gram| Arc::new(gram[matrix].to_vec())),
        }
    }

    /// Returns the variance of each input: `mean(x²) - mean(x)²`, at least 0.
    pub fn variances(&self) -> Vec<f32> {
        let count = self.count.max(1) as f64;
        let of = |(square, sum): (&f64, &f64)| {
            (square / count - (sum / count).powi(2)).clamp(0.0, f64::from(f32::MAX)) as f32
        };
        self.sum_squares.iter().zip(&self.sum).map(of).collect()
    }

    /// Returns the statistics per column for scores and ranges. Values beyond f32 become its largest.
    pub fn view(&self) -> InputView {
        let count = self.count.max(1) as f64;
        let mean_square: Vec<f64> = self.sum_squares.iter().map(|sum| sum / count).collect();
        let to_f32 = |value: f64| if value.is_finite() { value.min(f64::from(f32::MAX)) as f32 } else { value as f32 };
        InputView {
            rms: mean_square.iter().map(|square| to_f32(square.sqrt())).collect(),
            mean_square: mean_square.into_iter().map(to_f32).collect(),
        }
    }
}

/// Returns the number of channel groups with `n_inputs` inputs in all, `n_cols` each.
fn n_groups(n_inputs: usize, n_cols: usize) -> usize {
    n_inputs.checked_div(n_cols).unwrap_or(1).max(1)
}

/// Input statistics per column for scores and ranges. Channel groups follow one another, as in [`InputStats`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InputView {
    /// `sqrt(mean x[i]²)`; 0 for an input without statistics.
    pub rms: Vec<f32>,
    /// `mean x[i]²`.
    pub mean_square: Vec<f32>,
}

impl InputView {
    /// Returns the place of the first statistic of a row of an `[n_rows, n_cols]` weight.
    ///
    /// Rows of one channel group share their statistics.
    pub fn start_of(&self, row: usize, [n_rows, n_cols]: [usize; 2]) -> usize {
        match n_groups(self.mean_square.len(), n_cols) {
            1 => 0,
            n_groups => row / (n_rows / n_groups).max(1) * n_cols,
        }
    }

    /// Returns the statistics of inputs that are multiplied by these scales, one for each column.
    ///
    /// # Panics
    /// If there are no scales.
    #[must_use]
    pub fn scaled(&self, scales: &[f32]) -> Self {
        let times = |values: &[f32], by: fn(f32) -> f32| -> Vec<f32> {
            values.iter().enumerate().map(|(at, value)| value * by(scales[at % scales.len()])).collect()
        };
        Self { rms: times(&self.rms, |scale| scale), mean_square: times(&self.mean_square, |scale| scale * scale) }
    }

    /// Returns whether these are statistics of the columns of an `[n_rows, n_cols]` weight, or of its channel groups.
    pub fn fits(&self, [n_rows, n_cols]: [usize; 2]) -> bool {
        let n_groups = n_groups(self.rms.len(), n_cols);
        self.rms.len() == n_groups * n_cols && n_rows.is_multiple_of(n_groups)
    }

    /// Returns the statistics of one row of an `[n_rows, n_cols]` weight.
    ///
    /// # Panics
    /// If there are fewer statistics than columns.
    #[must_use]
    pub fn of_row(&self, row: usize, [n_rows, n_cols]: [usize; 2]) -> Self {
        let start = self.start_of(row, [n_rows, n_cols]);
        let of = |values: &[f32]| values[start..start + n_cols].to_vec();
        Self { rms: of(&self.rms), mean_square: of(&self.mean_square) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_groups_have_statistics_of_their_own() {
        // Two groups of two columns, for a weight of six rows.
        let stats = InputStats {
            count: 1,
            sum: vec![1.0, 2.0, 3.0, 4.0],
            sum_squares: vec![1.0, 4.0, 9.0, 16.0],
            sum_magnitudes: vec![1.0, 2.0, 3.0, 4.0],
            max: vec![1.0, 2.0, 3.0, 4.0],
            importance: vec![4.0, 3.0, 2.0, 1.0],
            gram: Some(Arc::new(vec![1.0, 2.0, 2.0, 4.0, 9.0, 12.0, 12.0, 16.0])),
        };
        assert_eq!((stats.n_groups(2), stats.n_groups(4), InputStats::default().n_groups(0)), (2, 1, 1));
        let second = stats.of_group(1, 2);
        assert_eq!((second.sum, second.max, second.sum_magnitudes), (vec![3.0, 4.0], vec![3.0, 4.0], vec![3.0, 4.0]));
        assert_eq!(second.importance, [2.0, 1.0]);
        assert_eq!(second.gram.unwrap().as_slice(), [9.0, 12.0, 12.0, 16.0]);
        assert_eq!(stats.of_group(0, 4), stats);
        let view = stats.view();
        let starts: Vec<usize> = (0..6).map(|row| view.start_of(row, [6, 2])).collect();
        assert_eq!(starts, [0, 0, 0, 2, 2, 2]);
        assert_eq!(view.of_row(4, [6, 2]).rms, [3.0, 4.0]);
        assert_eq!(view.of_row(4, [6, 4]), view);
        assert!(view.fits([6, 2]) && view.fits([5, 4]) && !view.fits([5, 2]) && !view.fits([6, 3]));
    }

    #[test]
    fn means_are_over_all_seen_vectors() {
        let stats = InputStats { count: 4, sum_squares: vec![16.0, 1.0, 0.0], ..InputStats::empty(3, false) };
        let view = stats.view();
        assert_eq!((view.rms, view.mean_square), (vec![2.0, 0.5, 0.0], vec![4.0, 0.25, 0.0]));
        assert_eq!(InputStats::empty(2, false).view().rms, [0.0; 2]);
        let huge = InputStats { count: 1, sum_squares: vec![1e60, 1e300], ..InputStats::empty(2, false) };
        assert_eq!((huge.view().rms, huge.view().mean_square), (vec![1e30, f32::MAX], vec![f32::MAX; 2]));
    }
}

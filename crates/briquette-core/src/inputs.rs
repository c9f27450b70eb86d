//! Statistics of a layer's inputs, summed over many input vectors.

use std::sync::Arc;

/// Sums over the inputs of one layer. A row of the weight is an output, a column an input.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InputStats {
    /// Number of input vectors: tokens, or positions of a convolution.
    pub count: u64,
    /// `Σ x[i]` for each input.
    pub sum: Vec<f64>,
    /// `Σ x[i]²` for each input.
    pub sum_squares: Vec<f64>,
    /// `max |x[i]|` for each input.
    pub max: Vec<f32>,
    /// `Σ x[i]·x[j]` (the Gram matrix), row by row, if requested. Layers with the same inputs share it.
    pub gram: Option<Arc<Vec<f64>>>,
}

impl InputStats {
    /// Returns statistics of `n` inputs without any input vector; `has_gram` allocates the Gram matrix.
    pub fn empty(n: usize, has_gram: bool) -> Self {
        let gram = has_gram.then(|| Arc::new(vec![0.0; n * n]));
        Self { count: 0, sum: vec![0.0; n], sum_squares: vec![0.0; n], max: vec![0.0; n], gram }
    }

    /// Returns the number of inputs of the layer: the columns of its weight.
    pub fn n_inputs(&self) -> usize {
        self.sum_squares.len()
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

/// Input statistics per column for scores and ranges.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InputView {
    /// `sqrt(mean x[i]²)`; 0 for an input without statistics.
    pub rms: Vec<f32>,
    /// `mean x[i]²`.
    pub mean_square: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Histograms of activations: counts of values in bins of equal width.

/// Counts of values between two bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct ActivationHistogram {
    low: f32,
    high: f32,
    counts: Vec<u64>,
}

impl ActivationHistogram {
    /// Returns an empty histogram from `low` to `high`.
    ///
    /// # Panics
    /// If a bound is not finite, `high < low`, or `n_bins` is 0.
    pub fn new(low: f32, high: f32, n_bins: usize) -> Self {
        assert!(low.is_finite() && high.is_finite() && low <= high, "a histogram has finite bounds in order");
        assert!(n_bins > 0, "a histogram has bins");
        Self { low, high, counts: vec![0; n_bins] }
    }

    /// Counts values. A value outside of the bounds counts in the first or last bin.
    pub fn add(&mut self, values: &[f32]) {
        let last = self.counts.len() - 1;
        let per_unit = match self.width() > 0.0 {
            true => (1.0 / self.width()) as f32,
            false => 0.0,
        };
        for value in values {
            // A float below 0 becomes bin 0.
            let bin = ((value - self.low) * per_unit) as usize;
            self.counts[bin.min(last)] += 1;
        }
    }

    /// Returns the lower bound.
    pub fn low(&self) -> f32 {
        self.low
    }

    /// Returns the upper bound.
    pub fn high(&self) -> f32 {
        self.high
    }

    /// Returns the count of each bin.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the number of values.
    pub fn n_values(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the width of a bin.
    pub fn width(&self) -> f64 {
        (f64::from(self.high) - f64::from(self.low)) / self.counts.len() as f64
    }

    /// Returns the middle of a bin.
    pub fn middle(&self, bin: usize) -> f64 {
        f64::from(self.low) + (bin as f64 + 0.5) * self.width()
    }

    /// Returns the lower edge of a bin; of the number of bins, the upper bound.
    pub fn edge(&self, bin: usize) -> f32 {
        (f64::from(self.low) + bin as f64 * self.width()) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_counts_in_its_bin_and_outliers_in_the_outer_bins() {
        let mut histogram = ActivationHistogram::new(-1.0, 3.0, 4);
        histogram.add(&[-5.0, -1.0, -0.1, 0.0, 0.9, 2.5, 3.0, 9.0]);
        assert_eq!(histogram.counts(), [3, 2, 0, 3]);
        assert_eq!((histogram.n_values(), histogram.width(), histogram.middle(1)), (8, 1.0, 0.5));
        assert_eq!((histogram.edge(0), histogram.edge(4)), (-1.0, 3.0));
    }

    #[test]
    fn equal_values_are_a_histogram_too() {
        let mut histogram = ActivationHistogram::new(2.0, 2.0, 3);
        histogram.add(&[2.0; 5]);
        assert_eq!(histogram.n_values(), 5);
    }
}

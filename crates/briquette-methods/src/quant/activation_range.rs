//! The range of activations that an 8-bit grid covers, chosen from a histogram.

mod entropy;
mod mse;
mod percentile;

use super::histogram::ActivationHistogram;
use std::fmt;
use std::str::FromStr;

/// The share of activations that [`ActivationRange::Percentile`] covers: onnxruntime's default.
pub const SHARE: f64 = 0.99999;

/// How the range of activations is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActivationRange {
    /// From the smallest value to the largest.
    MinMax,
    /// The range that leaves out the same share of values at each end.
    Percentile,
    /// The range with the least squared error of rounding and clipping.
    #[default]
    Mse,
    /// The range with the least relative entropy between the histogram and its quantized form, as in TensorRT.
    Entropy,
}

impl ActivationRange {
    /// All ranges with their names.
    pub const NAMED: [(&'static str, Self); 4] =
        [("minmax", Self::MinMax), ("percentile", Self::Percentile), ("mse", Self::Mse), ("entropy", Self::Entropy)];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, range)| *range == self).map_or("", |(name, _)| name)
    }

    /// Returns the bounds for a histogram of activations, widened to include 0.
    pub fn bounds(self, histogram: &ActivationHistogram) -> [f32; 2] {
        let [low, high] = match self {
            Self::MinMax => [histogram.low(), histogram.high()],
            Self::Percentile => percentile::percentile(histogram, SHARE),
            Self::Mse => mse::mse(histogram),
            Self::Entropy => entropy::entropy(histogram),
        };
        [low.min(0.0), high.max(0.0)]
    }
}

impl fmt::Display for ActivationRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no range of activations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownRange(String);

impl fmt::Display for UnknownRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ActivationRange::NAMED.map(|(name, _)| name).join(", ");
        write!(f, "found {:?}, expected one of {names}", self.0)
    }
}

impl FromStr for ActivationRange {
    type Err = UnknownRange;

    fn from_str(name: &str) -> Result<Self, UnknownRange> {
        let found = Self::NAMED.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, range)| range).ok_or_else(|| UnknownRange(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a histogram of millions of small values and one large outlier.
    fn with_outliers() -> ActivationHistogram {
        let mut histogram = ActivationHistogram::new(0.0, 100.0, 2048);
        let normal = |at: usize| (-2.0 * ((at as f32 + 0.5) / 40_000.0).ln()).sqrt();
        let values: Vec<f32> = (0..40_000).map(normal).collect();
        (0..100).for_each(|_| histogram.add(&values));
        histogram.add(&[100.0]);
        histogram
    }

    #[test]
    fn the_whole_range_has_the_outliers_and_searched_ranges_cut_them() {
        let bounds = |range: ActivationRange| range.bounds(&with_outliers());
        assert_eq!(bounds(ActivationRange::MinMax), [0.0, 100.0]);
        for range in [ActivationRange::Mse, ActivationRange::Entropy] {
            let [low, high] = bounds(range);
            assert!(low == 0.0 && (3.0..60.0).contains(&high), "{range}: {low} {high}");
        }
    }

    #[test]
    fn a_range_includes_zero_and_constant_values_have_one() {
        let mut histogram = ActivationHistogram::new(2.0, 5.0, 2048);
        histogram.add(&[2.0, 3.0, 4.5, 5.0]);
        let mut constant = ActivationHistogram::new(2.0, 2.0, 2048);
        constant.add(&[2.0; 7]);
        for (name, range) in ActivationRange::NAMED {
            let [low, high] = range.bounds(&histogram);
            assert!(low == 0.0 && high > 4.0 && high <= 5.0, "{name}: {low} {high}");
            assert_eq!(range.bounds(&constant), [0.0, 2.0], "{name}");
            assert_eq!(range.bounds(&ActivationHistogram::new(0.0, 0.0, 2048)), [0.0, 0.0], "{name}");
            assert_eq!(name.parse(), Ok(range));
        }
        let error = "max".parse::<ActivationRange>().unwrap_err().to_string();
        assert_eq!(error, "found \"max\", expected one of minmax, percentile, mse, entropy");
    }
}

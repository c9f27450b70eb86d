//! The number of weights to drop.

mod cubic;
mod owl;

pub use cubic::cubic;
pub use owl::{outlier_ratio, owl};

/// A fraction from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// Creates a fraction; `None` if `value` is not from 0 to 1.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// Returns the fraction.
    pub fn get(self) -> f64 {
        self.0
    }

    /// Returns `round(ratio * n)`, with halves rounded to even.
    ///
    /// This is the number of weights that `torch.nn.utils.prune` drops for this `amount`. For layerwise
    /// pruning, `n` is the size of one layer; for global pruning, the size of all chosen layers.
    pub fn of(self, n: usize) -> usize {
        (self.0 * n as f64).round_ties_even() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_round_half_to_even() {
        let half = Ratio::new(0.5).unwrap();
        assert_eq!([half.of(1), half.of(3), half.of(5), half.of(0)], [0, 2, 2, 0]);
        assert_eq!(Ratio::new(0.4).unwrap().of(589_824), 235_930);
        assert_eq!(Ratio::new(1.0).unwrap().of(7), 7);
        for bad in [-0.1, 1.1, f64::NAN] {
            assert_eq!(Ratio::new(bad), None);
        }
    }
}

//! The range with the least squared error.

use crate::quant::ActivationHistogram;

/// Codes of the grid, without the first.
const N_STEPS: f64 = 255.0;
/// Candidates for each bound.
const N_CANDIDATES: usize = 64;

/// Returns the range with the least expected squared error of 8 bits.
///
/// A value inside costs `step² / 12`, as rounding errors are uniform. A value outside costs the square of its distance. Bounds are
/// shrunk in turn until neither changes, from the whole range.
pub(super) fn mse(histogram: &ActivationHistogram) -> [f32; 2] {
    let (low, high) = (histogram.low().min(0.0), histogram.high().max(0.0));
    let candidate = |bound: f32, at: usize| bound * (at as f32 / N_CANDIDATES as f32);
    let cost_of = |[low, high]: [usize; 2]| {
        cost(histogram, [candidate(histogram.low().min(0.0), low), candidate(histogram.high().max(0.0), high)])
    };
    let mut best = [N_CANDIDATES; 2];
    let mut least = cost_of(best);
    loop {
        let before = best;
        for side in [0, 1] {
            for at in 1..=N_CANDIDATES {
                let mut tried = best;
                tried[side] = at;
                let found = cost_of(tried);
                if found < least {
                    (least, best) = (found, tried);
                }
            }
        }
        if best == before {
            return [candidate(low, best[0]), candidate(high, best[1])];
        }
    }
}

/// Returns the squared error of a range, summed over all values.
fn cost(histogram: &ActivationHistogram, [low, high]: [f32; 2]) -> f64 {
    let (low, high) = (f64::from(low), f64::from(high));
    let rounding = ((high - low) / N_STEPS).powi(2) / 12.0;
    let of_bin = |(bin, count): (usize, &u64)| {
        let value = histogram.middle(bin);
        let distance = value - value.clamp(low, high);
        // Zeros are exact; their bin is far above the others after ReLU.
        *count as f64 * if distance == 0.0 { rounding } else { distance * distance }
    };
    let used = histogram.counts().iter().enumerate().filter(|(_, count)| **count > 0);
    used.map(of_bin).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_range_is_not_shrunk_by_more_than_a_step() {
        let mut histogram = ActivationHistogram::new(-1.0, 3.0, 2048);
        histogram.add(&(0..100_000).map(|at| at as f32 / 25_000.0 - 1.0).collect::<Vec<f32>>());
        let [low, high] = mse(&histogram);
        assert!(low <= -0.96 && high >= 2.93, "{low} {high}");
    }

    #[test]
    fn the_least_cost_is_that_of_the_best_candidate() {
        let mut histogram = ActivationHistogram::new(0.0, 64.0, 2048);
        histogram.add(&[1.0; 100_000]);
        histogram.add(&[64.0]);
        let [low, high] = mse(&histogram);
        let best = (1..=N_CANDIDATES).map(|at| cost(&histogram, [0.0, at as f32])).fold(f64::INFINITY, f64::min);
        assert_eq!((low, cost(&histogram, [low, high])), (0.0, best));
    }
}

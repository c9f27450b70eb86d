//! The range with the least relative entropy, as TensorRT calibrates.

use crate::quant::ActivationHistogram;

/// Levels of the quantized distribution.
const N_LEVELS: usize = 128;
/// Candidates for the range.
const N_CANDIDATES: usize = 100;

/// Returns the range whose quantized histogram has the least relative entropy `Σ p ln(p / q)`.
///
/// `p` is the histogram with the values outside of the range in its outer bins. `q` spreads the count of each of 128 levels over the
/// bins of the level that are not empty. The bin of 0 is left out: 0 is exact in every range, and most values of a ReLU are 0.
/// Both ends shrink by the same factor.
/// Source: Migacz, "8-bit Inference with TensorRT", GTC 2017.
pub(super) fn entropy(histogram: &ActivationHistogram) -> [f32; 2] {
    let (low, high) = (histogram.low().min(0.0), histogram.high().max(0.0));
    let counts = without_zeros(histogram);
    let range = |at: usize| {
        let factor = at as f32 / N_CANDIDATES as f32;
        [low * factor, high * factor]
    };
    let divergence = |at: usize| divergence(histogram, &counts, range(at)).unwrap_or(f64::INFINITY);
    // Among ranges with equal divergence, take the widest.
    let best = (1..=N_CANDIDATES)
        .rev()
        .map(|at| (divergence(at), at))
        .reduce(|best, next| if next.0 < best.0 { next } else { best });
    range(best.map_or(N_CANDIDATES, |(_, at)| at))
}

/// Returns the counts, with 0 for the bin of the value 0.
fn without_zeros(histogram: &ActivationHistogram) -> Vec<u64> {
    let has_zero = |bin: &usize| histogram.edge(*bin) <= 0.0 && 0.0 < histogram.edge(bin + 1);
    let mut counts = histogram.counts().to_vec();
    (0..counts.len()).filter(has_zero).for_each(|bin| counts[bin] = 0);
    counts
}

/// Returns the relative entropy of a range of a histogram with these counts; none if it has fewer bins than levels.
fn divergence(histogram: &ActivationHistogram, counts: &[u64], [low, high]: [f32; 2]) -> Option<f64> {
    let is_inside = |bin: &usize| (f64::from(low)..=f64::from(high)).contains(&histogram.middle(*bin));
    let first = (0..counts.len()).find(is_inside)?;
    let end = (first..counts.len()).rfind(is_inside)? + 1;
    let inside = &counts[first..end];
    let n_total = counts.iter().sum::<u64>() as f64;
    if inside.len() < N_LEVELS || n_total == 0.0 {
        return None;
    }
    let mut p: Vec<f64> = inside.iter().map(|count| *count as f64).collect();
    let sum = |counts: &[u64]| counts.iter().sum::<u64>() as f64;
    p[0] += sum(&counts[..first]);
    p[inside.len() - 1] += sum(&counts[end..]);
    let q = spread(inside);
    let n_inside: f64 = q.iter().sum();
    let term = |(p, q): (&f64, &f64)| match (*p > 0.0, *q > 0.0) {
        (false, _) => 0.0,
        (true, true) => p / n_total * (p / n_total * n_inside / q).ln(),
        // An outer bin that was empty: a share that `q` cannot have.
        (true, false) => p / n_total * (p * n_inside).ln().max(1.0),
    };
    Some(p.iter().zip(&q).map(term).sum())
}

/// Merges bins to levels, and spreads the count of a level over its bins that are not empty.
fn spread(counts: &[u64]) -> Vec<f64> {
    let mut found = vec![0.0; counts.len()];
    for level in 0..N_LEVELS {
        let bins = level * counts.len() / N_LEVELS..(level + 1) * counts.len() / N_LEVELS;
        let sum: u64 = counts[bins.clone()].iter().sum();
        let n_used = counts[bins.clone()].iter().filter(|count| **count > 0).count().max(1);
        for bin in bins.filter(|bin| counts[*bin] > 0) {
            found[bin] = sum as f64 / n_used as f64;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_spreads_its_count_over_used_bins() {
        let mut counts = vec![0_u64; 256];
        (counts[0], counts[1], counts[3]) = (4, 2, 5);
        assert_eq!(spread(&counts)[..4], [3.0, 3.0, 0.0, 5.0]);
    }

    #[test]
    fn a_uniform_histogram_keeps_its_range() {
        let mut histogram = ActivationHistogram::new(0.0, 1.0, 2048);
        histogram.add(&(0..204_800).map(|at| at as f32 / 204_800.0).collect::<Vec<f32>>());
        assert_eq!(entropy(&histogram), [0.0, 1.0]);
    }

    #[test]
    fn zeros_of_a_relu_do_not_narrow_the_range() {
        let normal = |at: usize| (-2.0 * ((at as f32 + 0.5) / 100_000.0).ln()).sqrt();
        let values: Vec<f32> = (0..100_000).map(normal).collect();
        let largest = values.iter().copied().fold(0.0, f32::max);
        let mut histogram = ActivationHistogram::new(0.0, largest, 2048);
        histogram.add(&values);
        histogram.add(&[0.0; 400_000]);
        let [low, high] = entropy(&histogram);
        assert!(low == 0.0 && high > 3.0, "{high} of {largest}");
    }
}

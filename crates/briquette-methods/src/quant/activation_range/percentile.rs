//! Leaves out the same share of values at each end.

use crate::quant::ActivationHistogram;

/// Returns the bounds between which a share of the values lies, at edges of bins.
pub(super) fn percentile(histogram: &ActivationHistogram, share: f64) -> [f32; 2] {
    let allowed = (histogram.n_values() as f64 * (1.0 - share) / 2.0) as u64;
    let counts = histogram.counts();
    let low = n_left_out(counts.iter(), allowed);
    let high = counts.len() - n_left_out(counts.iter().rev(), allowed);
    match low < high {
        true => [histogram.edge(low), histogram.edge(high)],
        false => [histogram.low(), histogram.high()],
    }
}

/// Returns the number of bins at one end that together have at most `allowed` values.
fn n_left_out<'a>(counts: impl Iterator<Item = &'a u64>, allowed: u64) -> usize {
    let sums = counts.scan(0_u64, |sum, count| {
        *sum += count;
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= allowed).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_share_is_left_out_at_each_end() {
        let mut histogram = ActivationHistogram::new(0.0, 10.0, 10);
        histogram.add(&(0..1000).map(|at| at as f32 / 100.0).collect::<Vec<f32>>());
        assert_eq!(percentile(&histogram, 0.75), [1.0, 9.0]);
        assert_eq!(percentile(&histogram, 1.0), [0.0, 10.0]);
    }
}

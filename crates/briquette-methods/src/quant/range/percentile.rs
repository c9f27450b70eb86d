//! A range that leaves out the most extreme weights.

use briquette_core::{Affine, Grid};

/// Returns the grid over a range that contains a `share` of the weights. The others are clamped.
///
/// Symmetric: the `share` quantile of `|w|`. Asymmetric: from the `(1 - share) / 2` to the `(1 + share) / 2`
/// quantile of `w`. A quantile is the element of rank `ceil(q * n)`, so a share of 1 is the whole range.
/// Source: Wu et al., "Integer Quantization for Deep Learning Inference", 2020, section 3.3.
///
/// # Panics
/// If a weight is not finite.
pub fn percentile(group: &[f32], share: f64, grid: Grid) -> Affine {
    if group.is_empty() {
        return Affine::over(0.0, 0.0, grid);
    }
    if grid.is_asymmetric() {
        let mut sorted = group.to_vec();
        let (low, high) = ((1.0 - share) / 2.0, f64::midpoint(1.0, share));
        Affine::over(quantile(&mut sorted, low), quantile(&mut sorted, high), grid)
    } else {
        let mut sizes: Vec<f32> = group.iter().map(|value| value.abs()).collect();
        let max = quantile(&mut sizes, share);
        Affine::over(-max, max, grid)
    }
}

fn quantile(values: &mut [f32], q: f64) -> f32 {
    let rank = ((q * values.len() as f64).ceil() as usize).clamp(1, values.len());
    *values.select_nth_unstable_by(rank - 1, f32::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::range::{absmax, minmax};
    use briquette_core::GridKind;

    #[test]
    fn the_whole_share_is_the_whole_range() {
        let group = [0.3, -0.7, 0.1, 0.9, -0.2];
        let asymmetric = Grid::new(4, GridKind::Asymmetric).unwrap();
        assert_eq!(percentile(&group, 1.0, Grid::INT8), absmax(&group, Grid::INT8));
        assert_eq!(percentile(&group, 1.0, asymmetric), minmax(&group, asymmetric));
    }
}

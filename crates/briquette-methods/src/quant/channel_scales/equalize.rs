//! Scales that give both layers equal ranges.

/// Returns the scales that give each channel equal ranges in both layers: `sqrt(r₁ r₂) / r₂`.
///
/// `before` has the largest weight of each channel in the layer before, `after` in the layer after. A channel without range in
/// one of the layers keeps the scale 1.
/// Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, eq. 11.
///
/// # Panics
/// If the layers have different numbers of channels.
pub fn equalize(before: &[f64], after: &[f64]) -> Vec<f64> {
    assert_eq!(before.len(), after.len(), "one range for each channel");
    let scale = |(&before, &after): (&f64, &f64)| {
        let scale = (before * after).sqrt() / after;
        // Layer before is divided by the scale: r₁ / s = r₂ · s.
        if scale.is_finite() && scale > 0.0 { scale } else { 1.0 }
    };
    before.iter().zip(after).map(scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layers_have_equal_ranges() {
        let (before, after) = ([4.0, 1.0, 0.5, 0.0, 3.0], [1.0, 9.0, 0.5, 2.0, 0.0]);
        let scales = equalize(&before, &after);
        assert_eq!(scales[..3], [2.0, 1.0 / 3.0, 1.0]);
        assert_eq!(scales[3..], [1.0, 1.0]);
        for unit in 0..3 {
            assert!((before[unit] / scales[unit] - after[unit] * scales[unit]).abs() < 1e-12);
        }
    }
}

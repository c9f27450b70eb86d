//! AWQ: scales weights whose inputs are large, so that they lose less when rounded.

use super::columns::ScaledColumns;
use crate::quant::{QuantSpec, fit};
use crate::reconstruct::output_error;
use briquette_core::{Decision, fake_quantize};

/// The number of exponents of a search: 0, 1/20, .. 19/20.
pub const N_EXPONENTS: usize = 20;
/// Powers of sizes below this count as this.
const LEAST: f64 = 1e-4;

/// Scales that AWQ found.
#[derive(Debug, Clone, PartialEq)]
pub struct AwqScales {
    /// The scale of each unit.
    pub scales: Vec<f64>,
    /// The exponent of input sizes.
    pub exponent: f64,
    /// The mean square error of outputs without and with the scales.
    pub errors: [f64; 2],
}

/// Returns `size^exponent`, at least 1e-4, divided by the root of the product of its largest and its smallest value.
///
/// Source: `auto_scale.py` of mit-han-lab's llm-awq.
pub fn awq_scales(sizes: &[f64], exponent: f64) -> Vec<f64> {
    let powers: Vec<f64> = sizes.iter().map(|size| size.powf(exponent).max(LEAST)).collect();
    let most = powers.iter().copied().fold(0.0, f64::max);
    let least = powers.iter().copied().fold(f64::INFINITY, f64::min);
    let middle = (most * least).sqrt();
    powers.into_iter().map(|power| power / middle).collect()
}

/// Returns the scales of the exponent with the smallest error of outputs after rounding.
///
/// The error is that of `Q(w s) / s` with the Gram matrix of the inputs, or with their mean squares. The exponent 0 leaves weights
/// unchanged.
/// Source: Lin et al., "AWQ", 2024. Unlike there, an input that was 0 throughout has the mean size of the others.
///
/// # Errors
/// The first error of `check_stop`, which is called for each exponent.
pub fn awq<E>(
    columns: &ScaledColumns,
    spec: QuantSpec,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<AwqScales, E> {
    let sizes = columns.input_sizes();
    let mut best: Option<AwqScales> = None;
    let mut unscaled = 0.0;
    for step in 0..N_EXPONENTS {
        check_stop()?;
        let exponent = step as f64 / N_EXPONENTS as f64;
        let scales = awq_scales(&sizes, exponent);
        let error = error(columns, spec, &scales);
        if step == 0 {
            unscaled = error;
        }
        if best.as_ref().is_none_or(|best| error < best.errors[1]) {
            best = Some(AwqScales { scales, exponent, errors: [unscaled, error] });
        }
    }
    let none = || AwqScales { scales: vec![1.0; columns.n_units], exponent: 0.0, errors: [0.0; 2] };
    Ok(best.unwrap_or_else(none))
}

/// Returns the error of the outputs of all layers after scaling and rounding.
pub(super) fn error(columns: &ScaledColumns, spec: QuantSpec, scales: &[f64]) -> f64 {
    let (n, scales) = (columns.n_columns(), columns.expanded(scales));
    let spec = spec.for_columns(n);
    let of_layer = |layer: &Vec<f32>| {
        let times = |(at, weight): (usize, &f32)| (f64::from(*weight) * scales[at % n]) as f32;
        let scaled: Vec<f32> = layer.iter().enumerate().map(times).collect();
        let params = fit(&scaled, n, None, &spec);
        let rounded = fake_quantize(&scaled, layer.len() / n.max(1), n, &Decision { mask: None, quant: Some(params) });
        let back = |(at, weight): (usize, &f32)| (f64::from(*weight) / scales[at % n]) as f32;
        output_error(layer, &rounded.iter().enumerate().map(back).collect::<Vec<f32>>(), columns.stats)
    };
    columns.layers.iter().map(of_layer).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Scheme;
    use briquette_core::InputStats;
    use std::convert::Infallible;

    #[test]
    fn scales_equal_the_reference() {
        // llm-awq: x.pow(r).clamp(min=1e-4), divided by (max · min).sqrt().
        let scales = awq_scales(&[4.0, 1.0, 16.0], 0.5);
        assert_eq!(scales, [1.0, 0.5, 2.0]);
        assert_eq!(awq_scales(&[3.0, 7.0], 0.0), [1.0, 1.0]);
        let clamped = awq_scales(&[0.0, 1.0], 0.5);
        assert!((clamped[0] - 1e-2).abs() < 1e-12 && (clamped[1] - 1e2).abs() < 1e-9);
    }

    #[test]
    fn weights_with_large_inputs_lose_less() {
        let (n, n_rows) = (64, 24);
        let number = |at: usize| ((at * 7919) % 1009) as f32 / 500.0 - 1.0;
        let layers = [(0..n_rows * n).map(number).collect::<Vec<f32>>()];
        let units: Vec<usize> = (0..n).collect();
        let mut stats = InputStats::empty(n, false);
        (stats.count, stats.sum_squares) = (4, vec![4.0; n]);
        stats.sum_squares[5] = 4.0 * 400.0;
        let columns = ScaledColumns { layers: &layers, stats: &stats, units: &units, n_units: n };
        let spec = "int4-g32-asym".parse::<Scheme>().unwrap().weights;
        let found = awq(&columns, spec, &|| Ok::<(), Infallible>(())).unwrap();
        assert!(found.exponent > 0.0 && found.errors[1] < 0.8 * found.errors[0], "{found:?}");
        assert!(found.scales[5] > found.scales[6]);
        let errors =
            (0..N_EXPONENTS).map(|step| error(&columns, spec, &awq_scales(&columns.input_sizes(), step as f64 / 20.0)));
        assert_eq!(errors.fold(f64::INFINITY, f64::min), found.errors[1]);
    }
}

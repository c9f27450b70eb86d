//! Chooses scales by one prediction of the error of outputs.

use super::awq::{self, awq_scales};
use super::balanced::{BALANCED_EXPONENT, balanced};
use super::columns::ScaledColumns;
use super::smooth::smooth;
use crate::quant::{Activations, ScaleSearch, Scheme, input_scale};
use briquette_core::Grouping;

/// The number of exponents of each method: 1/20, .. 1 of SmoothQuant, and 1/20, .. 19/20 of AWQ.
const N_STEPS: usize = 20;
/// The range of an input in a token, as a multiple of its root mean square, if its largest value is not smaller.
const USUAL_RANGE: f64 = 3.0;
/// The steps of 8-bit inputs over twice their range.
const INPUT_STEPS: f64 = 255.0;

/// Scales that lower the predicted error.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenScales {
    /// `smooth`, `awq` or `balanced`.
    pub method: &'static str,
    /// The exponent of its input sizes.
    pub exponent: f64,
    /// The scale of each unit.
    pub scales: Vec<f64>,
    /// The predicted errors of outputs without and with the scales.
    pub errors: [f64; 2],
}

/// Returns the scales with the smallest predicted error of outputs; `None` if none is smaller than that of no scales.
///
/// The error is `Σ ‖(Q(w s) / s − w) x‖²` as in [`awq`](super::awq()), for rounded weights. With 8-bit inputs,
/// `Δ² / 12 · Σ (w s)²` is added, for inputs that are rounded with the step `Δ = 2 max(X / s) / 255`. `X` is three times the root
/// mean square of an input, at most its largest value: the range that a token usually needs.
///
/// # Errors
/// The first error of `check_stop`, which is called for each candidate.
pub fn auto<E>(
    columns: &ScaledColumns,
    scheme: Scheme,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<Option<ChosenScales>, E> {
    best_of(columns, scheme, smooth_or_awq(columns), check_stop)
}

/// Returns the method and the scales of a layer's columns, which need no place in another layer.
///
/// The geometric mean of the scales is 1, so that step sizes keep their meaning.
///
/// Codes with a step size get the square roots of [`balanced`] scales if inputs are int8, and none otherwise. Whole balanced scales, and
/// any scales for float inputs, gave MiniLM a lower cosine on fiction, which no calibration saw.
///
/// Other int8 weights with one scale for each row, and int8 inputs, get [`balanced`] scales. The prediction of [`auto`] overestimates the
/// range of tokens whose largest inputs are rare. Inputs on one fixed grid get the scales of [`input_scale`], whose prediction is that
/// of a fixed grid. Other schemes get the scales of [`auto`] or balanced ones, whichever have the smallest predicted error; `None` if
/// it is not below that of no scales.
///
/// # Errors
/// The first error of `check_stop`, which is called for each candidate.
pub fn column_scales<E>(
    columns: &ScaledColumns,
    scheme: Scheme,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<Option<(&'static str, Vec<f64>)>, E> {
    if matches!(scheme.weights.range, ScaleSearch::Step(_)) {
        let roots = || centred(balanced(columns, BALANCED_EXPONENT)).into_iter().map(f64::sqrt).collect();
        return Ok((scheme.activations != Activations::Float).then(|| ("balanced", roots())));
    }
    let is_by_row = scheme.weights.for_columns(columns.n_columns()).grouping == Grouping::Row;
    let is_int8 = scheme.weights.grid.n_bits() == 8 && is_by_row;
    if is_int8 && scheme.activations == Activations::Static {
        let matrices: Vec<&[f32]> = columns.layers.iter().map(Vec::as_slice).collect();
        let factors = input_scale(&matrices, columns.stats);
        return Ok(Some(("searched", centred(factors.iter().map(|factor| f64::from(*factor).recip()).collect()))));
    }
    if is_int8 && scheme.activations != Activations::Float {
        return Ok(Some(("balanced", centred(balanced(columns, BALANCED_EXPONENT)))));
    }
    let alphas = exponents().take(N_STEPS - 1);
    let candidates = smooth_or_awq(columns).chain(alphas.map(|alpha| ("balanced", alpha, balanced(columns, alpha))));
    let candidates = candidates.map(|(method, exponent, scales)| (method, exponent, centred(scales)));
    Ok(best_of(columns, scheme, candidates, check_stop)?.map(|best| (best.method, best.scales)))
}

/// Divides scales by their geometric mean.
fn centred(scales: Vec<f64>) -> Vec<f64> {
    let logs: f64 = scales.iter().map(|scale| scale.ln()).sum();
    let mean = (logs / scales.len().max(1) as f64).exp();
    scales.into_iter().map(|scale| scale / mean).collect()
}

fn exponents() -> impl Iterator<Item = f64> + Clone {
    (1..=N_STEPS).map(|step| step as f64 / N_STEPS as f64)
}

/// A method, its exponent and its scales.
type TriedScales = (&'static str, f64, Vec<f64>);

fn smooth_or_awq(columns: &ScaledColumns) -> impl Iterator<Item = TriedScales> {
    let [ranges, weights, sizes] = [columns.input_ranges(), columns.weight_ranges(), columns.input_sizes()];
    let smoothed = exponents().map(move |alpha| ("smooth", alpha, smooth(&ranges, &weights, alpha)));
    let scaled = exponents().take(N_STEPS - 1).map(move |exponent| ("awq", exponent, awq_scales(&sizes, exponent)));
    smoothed.chain(scaled)
}

/// Returns the candidate with the smallest predicted error; `None` if none is smaller than that of no scales.
fn best_of<E>(
    columns: &ScaledColumns,
    scheme: Scheme,
    candidates: impl Iterator<Item = TriedScales>,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<Option<ChosenScales>, E> {
    let unscaled = error(columns, scheme, &vec![1.0; columns.n_units]);
    let mut best: Option<ChosenScales> = None;
    for (method, exponent, scales) in candidates {
        check_stop()?;
        let found = error(columns, scheme, &scales);
        if found < best.as_ref().map_or(unscaled, |best| best.errors[1]) {
            best = Some(ChosenScales { method, exponent, scales, errors: [unscaled, found] });
        }
    }
    Ok(best)
}

/// Returns the predicted error of the outputs of all layers.
fn error(columns: &ScaledColumns, scheme: Scheme, scales: &[f64]) -> f64 {
    let of_weights = awq::error(columns, scheme.weights, scales);
    if scheme.activations == Activations::Float {
        return of_weights;
    }
    let (scales, count) = (columns.expanded(scales), columns.stats.count.max(1) as f64);
    let range = |column: usize| {
        let usual = USUAL_RANGE * (columns.stats.sum_squares[column] / count).sqrt();
        usual.min(f64::from(columns.stats.max[column])) / scales[column]
    };
    let step = 2.0 * (0..scales.len()).map(range).fold(0.0, f64::max) / INPUT_STEPS;
    let rows = columns.layers.iter().flat_map(|layer| layer.chunks_exact(scales.len().max(1)));
    let of_row = |row: &[f32]| row.iter().zip(&scales).map(|(w, s)| (f64::from(*w) * s).powi(2)).sum::<f64>();
    of_weights + step * step / 12.0 * rows.map(of_row).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::InputStats;
    use std::convert::Infallible;

    /// Chooses for a layer of 64 inputs whose sixth is this many times as large as the others.
    fn chosen(scheme: &str, outlier: f64) -> Option<ChosenScales> {
        let n = 64;
        let layers = [(0..24 * n).map(|at| ((at * 7919) % 1009) as f32 / 500.0 - 1.0).collect::<Vec<f32>>()];
        let units: Vec<usize> = (0..n).collect();
        let mut stats = InputStats::empty(n, false);
        (stats.count, stats.sum_squares, stats.max) = (4, vec![4.0; n], vec![2.5; n]);
        (stats.sum_squares[5], stats.max[5]) = (4.0 * outlier * outlier, 2.5 * outlier as f32);
        let columns = ScaledColumns { layers: &layers, stats: &stats, units: &units, n_units: n };
        auto(&columns, scheme.parse().unwrap(), &|| Ok::<(), Infallible>(())).unwrap()
    }

    #[test]
    fn outliers_of_rounded_inputs_are_moved_into_weights_and_large_inputs_keep_their_weights() {
        let smoothed = chosen("int8-dynamic", 60.0).unwrap();
        assert!(smoothed.scales[5] > 3.0 * smoothed.scales[6], "{smoothed:?}");
        assert!(smoothed.errors[1] < 0.3 * smoothed.errors[0], "{smoothed:?}");
        let kept = chosen("int4-g32-asym", 20.0).unwrap();
        assert!(kept.scales[5] > kept.scales[6] && kept.errors[1] < 0.8 * kept.errors[0], "{kept:?}");
        for scheme in ["int8-dynamic", "int4-g32-asym"] {
            let even = chosen(scheme, 1.0);
            assert!(even.as_ref().is_none_or(|found| found.errors[1] < found.errors[0]), "{scheme}: {even:?}");
        }
    }

    #[test]
    fn scales_of_columns_are_balanced_for_int8_and_predicted_for_others() {
        let (n, units) = (64, (0..64).collect::<Vec<usize>>());
        let layers = [(0..24 * n).map(|at| ((at * 7919) % 1009) as f32 / 500.0 - 1.0).collect::<Vec<f32>>()];
        let mut stats = InputStats::empty(n, false);
        (stats.count, stats.sum_squares, stats.max) = (4, vec![4.0; n], vec![2.5; n]);
        (stats.sum_squares[5], stats.max[5]) = (4.0 * 900.0, 75.0);
        let columns = ScaledColumns { layers: &layers, stats: &stats, units: &units, n_units: n };
        let found = |scheme: &str| column_scales(&columns, scheme.parse().unwrap(), &|| Ok::<(), Infallible>(()));
        let mut methods = Vec::new();
        for scheme in ["int8-dynamic", "int8-dynamic-sym", "int8-static", "int4-g32-dynamic", "int4-g32"] {
            let (method, scales) = found(scheme).unwrap().unwrap();
            let mean: f64 = scales.iter().map(|scale| scale.ln()).sum::<f64>() / n as f64;
            assert!(mean.abs() < 1e-9 && scales[5] > 1.5 * scales[6], "{scheme}: {method} {scales:?}");
            methods.push(method);
        }
        assert_eq!(methods[..3], ["balanced", "balanced", "searched"]);
        let [whole, roots] =
            ["int8-dynamic", "step0.02-tensor-dynamic"].map(|scheme| found(scheme).unwrap().unwrap().1);
        assert!(whole.iter().zip(&roots).all(|(whole, root)| (whole.sqrt() - root).abs() < 1e-9));
        assert_eq!(found("step0.02-tensor").unwrap(), None, "inputs are not rounded");
    }
}

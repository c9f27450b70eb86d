//! Codes, scales and bias of one layer.

use super::norm::gains;
use briquette_core::Result;
use briquette_graph::to_onnx::static_int8::LayerCodes;
use briquette_methods::reconstruct::mean_error;

/// A bias takes at most this many steps, so that its correction fits into 32 bits too.
const MAX_BIAS: f64 = (1_u32 << 30) as f64;

/// Means of the channels of a layer's input.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct InputChannels {
    /// In floats.
    pub(super) means: Vec<f64>,
    /// After rounding to codes.
    pub(super) rounded_means: Vec<f64>,
}

/// A layer in floats.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FoldedLayer {
    /// `[out, ..]`.
    pub(super) weight: Vec<f32>,
    bias: Vec<f64>,
}

impl FoldedLayer {
    /// Takes a layer with `n_out` outputs.
    pub(super) fn new(weight: Vec<f32>, bias: Option<Vec<f32>>, n_out: usize) -> Self {
        let bias = bias.map(|bias| bias.iter().map(|value| f64::from(*value)).collect());
        Self { weight, bias: bias.unwrap_or_else(|| vec![0.0; n_out]) }
    }

    /// Folds a batch norm `(y - mean) · g + bias` with `g = weight / sqrt(variance + eps)` into the layer.
    ///
    /// # Errors
    /// Refused: a variance is negative.
    pub(super) fn with_norm(mut self, [weight, bias, mean, variance]: [&[f32]; 4], eps: f64) -> Result<Self> {
        let n_each = self.weight.len() / self.bias.len().max(1);
        let gains = gains(weight, variance, eps)?;
        for (out, (row, gain)) in self.weight.chunks_mut(n_each.max(1)).zip(gains).enumerate() {
            row.iter_mut().for_each(|value| *value = (f64::from(*value) * gain) as f32);
            self.bias[out] = (self.bias[out] - f64::from(mean[out])) * gain + f64::from(bias[out]);
        }
        Ok(self)
    }
}

/// Computes the scales and the bias of a layer with a weight of this shape.
///
/// `scale` is that of the input. The bias makes up for the mean error of rounded weights and inputs: see [`correction`].
/// `known` are the scales of another layer with the same weight.
pub(super) fn codes_of(
    layer: &FoldedLayer,
    shape: &[usize],
    scale: f32,
    input: Option<&InputChannels>,
    (max_code, known): (i8, Option<&[f32]>),
) -> LayerCodes {
    let n_each = (layer.weight.len() / layer.bias.len().max(1)).max(1);
    let rows = layer.weight.chunks(n_each);
    let scales = match known {
        Some(known) => known.to_vec(),
        None => rows.zip(&layer.bias).map(|(row, bias)| weight_scale(row, *bias, scale, max_code)).collect(),
    };
    let codes = quantized(&layer.weight, &scales, max_code);
    let bias = |(out, scale_out): (usize, &f32)| {
        let own = out * n_each..(out + 1) * n_each;
        let rounded = codes[own.clone()].iter().map(|code| f64::from(*code) * f64::from(*scale_out));
        let of_inputs = input.map_or(0.0, |input| correction(&layer.weight[own], rounded, input, shape, out));
        let step = f64::from(scale) * f64::from(*scale_out);
        ((layer.bias[out] + of_inputs) / step).round_ties_even() as i32
    };
    let bias = scales.iter().enumerate().map(bias).collect();
    LayerCodes { scales, bias }
}

/// Returns the scale of a row, so that its largest weight has the largest code.
///
/// It is larger if the bias needs more than 2³⁰ steps, as of a channel whose weights are almost 0.
fn weight_scale(row: &[f32], bias: f64, input_scale: f32, max_code: i8) -> f32 {
    let largest = row.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let of_bias = (bias.abs() / (f64::from(input_scale) * MAX_BIAS)) as f32;
    let scale = (largest / f32::from(max_code)).max(of_bias);
    if scale.is_normal() { scale } else { 1.0 }
}

/// Rounds each row to codes.
pub(super) fn quantized(weight: &[f32], scales: &[f32], max_code: i8) -> Vec<i8> {
    let (n_each, limit) = ((weight.len() / scales.len().max(1)).max(1), f32::from(max_code));
    let code = |value: &f32, scale: f32| (value / scale).clamp(-limit, limit).round_ties_even() as i8;
    let rows = weight.chunks(n_each).zip(scales);
    rows.flat_map(|(row, scale)| row.iter().map(move |value| code(value, *scale))).collect()
}

/// Returns what a bias takes up: the negative [`mean_error`] of an output, whose inputs are those of its channel group.
///
/// Zeros around the image are taken for values of their channel.
fn correction(
    row: &[f32],
    rounded: impl ExactSizeIterator<Item = f64>,
    input: &InputChannels,
    shape: &[usize],
    out: usize,
) -> f64 {
    let n_in = shape.get(1).copied().unwrap_or(1).max(1);
    let n_groups = (input.means.len() / n_in).max(1);
    let first = out / (shape[0] / n_groups).max(1) * n_in;
    let means = [&input.means, &input.rounded_means].map(|means| means.get(first..first + n_in));
    match means {
        [Some(before), Some(after)] => -mean_error(row, rounded, [before, after]),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(weight: &[f32], bias: &[f32]) -> FoldedLayer {
        FoldedLayer::new(weight.to_vec(), Some(bias.to_vec()), bias.len())
    }

    #[test]
    fn a_folded_norm_computes_the_same() {
        let plain = layer(&[1.0, -2.0, 3.0, 0.5], &[0.25, -1.0]);
        let norm: [&[f32]; 4] = [&[2.0, 0.5], &[0.1, -0.2], &[0.3, 0.4], &[3.0, 0.0]];
        let folded = plain.clone().with_norm(norm, 1.0).unwrap();
        let x = [0.7, -1.1];
        let output = |layer: &FoldedLayer, out: usize| {
            let row = &layer.weight[out * 2..out * 2 + 2];
            row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() + layer.bias[out]
        };
        for out in 0..2 {
            let [weight, bias, mean, variance] = norm.map(|list| f64::from(list[out]));
            let expected = (output(&plain, out) - mean) / (variance + 1.0).sqrt() * weight + bias;
            assert!((output(&folded, out) - expected).abs() < 1e-6, "{out}");
        }
        let error = plain.with_norm([&[1.0; 2], &[0.0; 2], &[0.0; 2], &[1.0, -2.0]], 1.0).unwrap_err();
        assert!(error.to_string().contains("variance 1 is -2"), "{error}");
    }

    #[test]
    fn the_largest_weight_of_each_row_has_the_largest_code() {
        let layer = layer(&[0.5, -1.0, 4.0, 0.1], &[0.0, 1.0]);
        for max_code in [127, 64] {
            let found = codes_of(&layer, &[2, 2], 0.5, None, (max_code, None));
            let codes = quantized(&layer.weight, &found.scales, max_code);
            assert_eq!((codes[1], codes[2]), (-max_code, max_code));
            let step = f64::from(found.scales[1]) * 0.5;
            assert!((f64::from(found.bias[1]) * step - 1.0).abs() <= step / 2.0);
        }
    }

    #[test]
    fn a_row_of_zeros_keeps_its_bias() {
        let layer = layer(&[0.0, 0.0, 1e-30, 0.0], &[3.7, -2.5e4]);
        let found = codes_of(&layer, &[2, 2], 0.02, None, (127, None));
        for out in 0..2 {
            let value = f64::from(found.bias[out]) * f64::from(found.scales[out]) * f64::from(0.02_f32);
            assert!((value - layer.bias[out]).abs() < 1e-6 * layer.bias[out].abs(), "{out}: {value}");
        }
        assert_eq!(codes_of(&FoldedLayer::new(vec![0.0; 2], None, 1), &[1, 2], 0.02, None, (127, None)).bias, [0]);
    }

    #[test]
    fn the_bias_makes_up_for_the_mean_error_of_each_group() {
        // Two groups of one input channel with 2 kernel elements, two outputs each.
        let weight = [0.301, -1.0, 0.77, 1.0, 2.0, 0.013, -0.5, 0.252];
        let layer = layer(&weight, &[0.0; 4]);
        let input = InputChannels { means: vec![3.0, -2.0], rounded_means: vec![2.5, -2.25] };
        let found = codes_of(&layer, &[4, 1, 2], 1e-6, Some(&input), (127, None));
        let codes = quantized(&weight, &found.scales, 127);
        for out in 0..4 {
            let (mean, rounded) = (input.means[out / 2], input.rounded_means[out / 2]);
            let exact: f64 = (0..2).map(|at| f64::from(weight[out * 2 + at]) * mean).sum();
            let scale = f64::from(found.scales[out]);
            let product: f64 = (0..2).map(|at| f64::from(codes[out * 2 + at]) * scale * rounded).sum();
            let bias = f64::from(found.bias[out]) * scale * f64::from(1e-6_f32);
            assert!((product + bias - exact).abs() < 1e-6, "{out}");
        }
    }
}

//! Layers whose codes and grids are those of the checkpoint.

use super::norm::gains;
use crate::onnx::bytes::for_each_code_rows;
use crate::onnx::forms::has_row_codes;
use crate::onnx::pack::ByteSink;
use crate::onnx::weight_values::{CodeSource, WeightValues};
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, StoredDir, TensorSource};
use briquette_graph::to_onnx::static_int8::{LayerCodes, PairedPlan, StaticKind, StaticLayer, paired};
use briquette_graph::to_onnx::{OnnxNetwork, WeightBytes};
use briquette_graph::{Graph, WeightId};
use briquette_writer::RunOptions;
use std::collections::{BTreeMap, BTreeSet};

/// A bias takes at most this many steps, so that sums fit into 32 bits.
const MAX_BIAS: f64 = (1_u32 << 30) as f64;

/// How the codes of an output differ from those of the checkpoint: `code · factor`, rounded.
///
/// 1 keeps codes, and -1 turns their sign, for a batch norm that does. Numbers between are for weights that are almost 0 beside the bias.
type CodeFactors = Vec<f32>;

/// Codes of a checkpoint, for layers that absorbed batch norms.
struct StoredLayers<'a> {
    checkpoint: &'a Checkpoint,
    /// The index of each tensor, by name.
    places: BTreeMap<&'a str, usize>,
    /// The factors of weights that have others than 1, by name.
    factors: BTreeMap<String, CodeFactors>,
}

/// Gives the layers of a network the codes of the checkpoint. Layers without codes by row keep dequantized floats.
///
/// # Errors
/// - Input: the file is damaged.
/// - Refused: a variance of a batch norm is negative, or a bias is not finite.
/// - Io and Interrupted.
pub(in crate::onnx) fn with_stored_codes<'a>(
    checkpoint: &'a Checkpoint,
    network: OnnxNetwork,
    options: &RunOptions,
) -> Result<(OnnxNetwork, Box<dyn CodeSource + 'a>)> {
    let names: BTreeSet<&str> = checkpoint.static_weights().collect();
    let dir = checkpoint.stored().ok_or_else(|| Error::bug("the checkpoint has no codes"))?;
    let tensors = dir.tensors.iter().filter(|tensor| has_row_codes(tensor) && names.contains(&*tensor.info.name));
    let coded: BTreeSet<&str> = tensors.map(|tensor| tensor.info.name.as_str()).collect();
    let plan = paired(network, &|weight| coded.contains(weight.name.as_str()))?;
    let places = checkpoint.tensors().iter().enumerate().map(|(place, info)| (info.name.as_str(), place)).collect();
    let mut found = StoredLayers { checkpoint, places, factors: BTreeMap::new() };
    let codes = found.codes_of(&plan, dir, options)?;
    Ok((plan.finish(&codes), Box::new(found)))
}

/// The numbers of a layer before scales are chosen.
struct LayerValues {
    /// The name of the weight.
    name: String,
    /// The scales of codes, times the gains of the batch norm.
    scales: Vec<f64>,
    /// The bias, after the batch norm.
    bias: Vec<f64>,
    /// The scale of the input.
    input: f64,
    has_bias_codes: bool,
}

impl StoredLayers<'_> {
    /// Returns the scales and biases of all layers.
    fn codes_of(&mut self, plan: &PairedPlan, dir: &StoredDir, options: &RunOptions) -> Result<Vec<LayerCodes>> {
        let graph = &plan.network().graph;
        let weights = WeightValues::of(self.checkpoint);
        let mut layers = Vec::with_capacity(plan.layers.len());
        for layer in &plan.layers {
            options.stop.check()?;
            let name = &graph.weights[layer.weight.0].name;
            let stored = dir.scales(self.places[name.as_str()]).map_err(|error| error.at(name))?;
            layers.push(layer_values(graph, &weights, layer, (&stored, plan.scales[layer.input]))?);
        }
        // Layers that share a weight share its scales.
        let mut scales: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
        for layer in &layers {
            let own = layer.scales.iter().zip(&layer.bias).map(|(scale, bias)| row_scale(*scale, *bias, layer.input));
            let own: Vec<f32> = own.collect();
            let known = scales.entry(&layer.name).or_insert_with(|| own.clone());
            known.iter_mut().zip(own).for_each(|(known, own)| *known = known.max(own));
        }
        for layer in &layers {
            let factors = layer.scales.iter().zip(&scales[layer.name.as_str()]).map(|(own, row)| factor(*own, *row));
            let factors: CodeFactors = factors.collect();
            if factors.iter().any(|factor| *factor != 1.0) {
                self.factors.insert(layer.name.clone(), factors);
            }
        }
        let finished = layers.iter().map(|layer| layer.codes(&scales[layer.name.as_str()]));
        Ok(finished.collect())
    }
}

impl LayerValues {
    fn codes(&self, scales: &[f32]) -> LayerCodes {
        let step = |scale: &f32| f64::from(*scale) * self.input;
        let bias = self.bias.iter().zip(scales).map(|(bias, scale)| (bias / step(scale)).round_ties_even() as i32);
        let bias = if self.has_bias_codes { bias.collect() } else { Vec::new() };
        LayerCodes { scales: scales.to_vec(), bias }
    }
}

/// Reads the bias and the batch norm of a layer, whose weight has these scales.
fn layer_values(
    graph: &Graph,
    weights: &WeightValues,
    layer: &StaticLayer,
    (stored, input): (&[f32], f32),
) -> Result<LayerValues> {
    let read = |id: WeightId| weights.read(&graph.weights[id.0].name);
    let has_bias_codes = layer.kind != StaticKind::MatMul;
    let mut bias = vec![0.0; stored.len()];
    if let Some(id) = layer.bias.filter(|_| has_bias_codes) {
        bias = read(id)?.into_iter().map(f64::from).collect();
    }
    let mut scales: Vec<f64> = stored.iter().map(|scale| f64::from(*scale)).collect();
    if let Some(norm) = &layer.norm {
        let [weight, shift, mean, variance] = norm.norm.map(read);
        let gains = gains(&weight?, &variance?, norm.eps).map_err(|error| error.at(&norm.name))?;
        let (shift, mean) = (shift?, mean?);
        for (out, gain) in gains.into_iter().enumerate() {
            scales[out] *= gain;
            bias[out] = (bias[out] - f64::from(mean[out])) * gain + f64::from(shift[out]);
        }
    }
    let name = graph.weights[layer.weight.0].name.clone();
    Ok(LayerValues { name, scales, bias, input: f64::from(input), has_bias_codes })
}

/// Returns the scale of an output: its own without a sign, or a larger one if the bias needs more than 2³⁰ steps.
///
/// A channel whose weights are almost 0 has such a bias.
fn row_scale(own: f64, bias: f64, input: f64) -> f32 {
    let scale = own.abs().max(bias.abs() / (input * MAX_BIAS)) as f32;
    if scale.is_normal() { scale } else { 1.0 }
}

/// Returns the factor of an output's codes: `own / row`, exactly 1 or -1 if the scale was only rounded to f32.
fn factor(own: f64, row: f32) -> f32 {
    if own.abs() as f32 == row { 1.0_f32.copysign(own as f32) } else { (own / f64::from(row)) as f32 }
}

impl CodeSource for StoredLayers<'_> {
    fn stream(&self, name: &str, bytes: WeightBytes, to: &mut ByteSink) -> Result<bool> {
        let Some(factors) = self.factors.get(name).filter(|_| bytes == WeightBytes::Codes) else { return Ok(false) };
        let mut done = 0;
        for_each_code_rows(self.checkpoint, self.places[name], &mut |rows, codes| {
            let n_each = (codes.len() / rows.max(1)).max(1);
            let factors = &factors[done..done + rows];
            let code = |code: &i8, factor: f32| (f32::from(*code) * factor).round_ties_even() as i8;
            let changed = codes.chunks(n_each).zip(factors);
            let changed: Vec<i8> =
                changed.flat_map(|(row, factor)| row.iter().map(move |value| code(value, *factor))).collect();
            done += rows;
            to(bytemuck::cast_slice(&changed))
        })?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_kept_but_for_signs_and_weights_that_are_almost_zero() {
        let scale = row_scale(0.02, 3.0, 0.1);
        assert_eq!((scale, factor(0.02, scale)), (0.02, 1.0));
        let scale = row_scale(-0.02, 3.0, 0.1);
        assert_eq!((scale, factor(-0.02, scale)), (0.02, -1.0));
        assert_eq!((row_scale(0.0, 0.0, 0.1), factor(0.0, 1.0)), (1.0, 0.0));
        // 1e-22 · 0.1 is a step of which a bias of 3 needs more than 2³⁰.
        let scale = row_scale(1e-22, 3.0, 0.1);
        let step = f64::from(scale) * 0.1;
        assert!((3.0 / step - MAX_BIAS).abs() < 200.0, "{}", 3.0 / step);
        assert!(factor(1e-22, scale) < 1e-10);
    }

    #[test]
    fn a_bias_is_counted_in_steps_of_its_own_output() {
        let scales = vec![0.5, -0.25];
        let values = LayerValues { name: "w".into(), scales, bias: vec![1.0, -3.0], input: 0.5, has_bias_codes: true };
        assert_eq!(values.codes(&[0.5, 0.25]), LayerCodes { scales: vec![0.5, 0.25], bias: vec![4, -24] });
    }
}

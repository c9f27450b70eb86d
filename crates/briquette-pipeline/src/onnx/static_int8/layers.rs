//! Codes of all layers of a network.

use super::layer::{FoldedLayer, InputChannels, codes_of, quantized};
use super::observe::{ObservedRanges, observed};
use super::{StaticFigures, StaticInt8};
use crate::onnx::pack::{ByteSink, transposed, transposed_values};
use crate::onnx::weight_values::{CodeSource, WeightValues};
use briquette_core::{OutputAxis, Result};
use briquette_formats::Checkpoint;
use briquette_graph::to_onnx::static_int8::{LayerCodes, StaticLayer, StaticPlan, finish, outputs_first};
use briquette_graph::to_onnx::{OnnxNetwork, WeightBytes};
use briquette_graph::{Graph, WeightId};
use briquette_writer::RunOptions;
use std::collections::BTreeMap;

/// Codes of static layers, computed again when they are written.
struct StaticLayers<'a> {
    weights: WeightValues<'a>,
    graph: Graph,
    /// Layers by the name of their weight, with the scales of their outputs.
    layers: BTreeMap<String, (StaticLayer, Vec<f32>)>,
    max_code: i8,
}

/// Quantizes a planned network. Returns its model, its codes and figures.
///
/// # Errors
/// - Config: the data is of another kind.
/// - Input: the data or the model is damaged.
/// - Refused: a weight or an activation is not finite.
pub(in crate::onnx) fn quantize<'a>(
    checkpoint: &'a Checkpoint,
    plan: StaticPlan,
    how: &StaticInt8,
    options: &RunOptions,
) -> Result<(OnnxNetwork, Box<dyn CodeSource + 'a>, StaticFigures)> {
    let ranges: ObservedRanges = observed(checkpoint, &plan, how, options)?;
    let scales = plan.scales(&|id| ranges.scale(id));
    let graph = plan.network().graph.clone();
    let max_code = if how.reduce_range { 64 } else { 127 };
    let mut found = StaticLayers { weights: WeightValues::of(checkpoint), graph, layers: BTreeMap::new(), max_code };
    let mut codes = Vec::with_capacity(plan.layers.len());
    for layer in &plan.layers {
        options.stop.check()?;
        let (scale, input) = (scales[layer.input].scale, plan.values[layer.input].id);
        codes.push(found.add(layer, scale, input.and_then(|id| ranges.channels(id)))?);
    }
    let figures = StaticFigures { n_ranges: plan.observed().len(), ..ranges.figures };
    Ok((finish(plan, &scales, &codes)?, Box::new(found), figures))
}

impl StaticLayers<'_> {
    /// Computes the codes of a layer. Layers that share a weight share its scales.
    fn add(&mut self, layer: &StaticLayer, scale: f32, input: Option<&InputChannels>) -> Result<LayerCodes> {
        let weight = &self.graph.weights[layer.weight.0];
        let folded = self.folded(layer)?;
        let known = self.layers.get(&weight.name).map(|(_, scales)| scales.clone());
        let codes = codes_of(&folded, &outputs_first(weight), scale, input, (self.max_code, known.as_deref()));
        self.layers.entry(weight.name.clone()).or_insert_with(|| (layer.clone(), codes.scales.clone()));
        Ok(codes)
    }

    /// Reads a layer, with its batch norm folded into weight and bias.
    fn folded(&self, layer: &StaticLayer) -> Result<FoldedLayer> {
        let read = |id: WeightId| self.weights.read(&self.graph.weights[id.0].name);
        let bias = layer.bias.map(read).transpose()?;
        let own = &self.graph.weights[layer.weight.0];
        let weight = match own.layout {
            OutputAxis::Last => transposed_values(&read(layer.weight)?, &own.shape.0),
            _ => read(layer.weight)?,
        };
        let plain = FoldedLayer::new(weight, bias, outputs_first(own).first().copied().unwrap_or(0));
        let Some(norm) = &layer.norm else { return Ok(plain) };
        let [weight, bias, mean, variance] = norm.norm.map(read);
        let found = plain.with_norm([&weight?, &bias?, &mean?, &variance?], norm.eps);
        found.map_err(|error| error.at(&norm.name))
    }
}

impl CodeSource for StaticLayers<'_> {
    fn stream(&self, name: &str, bytes: WeightBytes, to: &mut ByteSink) -> Result<bool> {
        let is_codes = matches!(bytes, WeightBytes::Codes | WeightBytes::TransposedCodes);
        let Some((layer, scales)) = self.layers.get(name).filter(|_| is_codes) else { return Ok(false) };
        let codes = quantized(&self.folded(layer)?.weight, scales, self.max_code);
        let codes: &[u8] = bytemuck::cast_slice(&codes);
        match bytes {
            WeightBytes::TransposedCodes => {
                to(&transposed(codes, &[scales.len(), codes.len() / scales.len().max(1)], 1))?;
            }
            _ => to(codes)?,
        }
        Ok(true)
    }
}

//! Runs a model on calibration data, and chooses the grids of its activations.

use super::{has_grid_parts, no_grid_of_layer};
use crate::arch::arch_of;
use crate::frequency::ScaledSource;
use crate::memory::run_model;
use crate::training::spec_of;
use briquette_core::{ColumnScales, Error, Result};
use briquette_eval::{ObservedValue, Samples, ValueStatistics, value_ranges};
use briquette_formats::{ActivationGrids, Checkpoint, TensorSource, ValueGrid};
use briquette_graph::fixed_values::{AttentionOperands, attention_operands, fixed_values};
use briquette_graph::op::{Composite, Op};
use briquette_graph::to_onnx::static_int8::check_convolutional;
use briquette_graph::{Graph, Operand, ValueId, WeightId};
use briquette_methods::quant::Activations;
use briquette_models::{Arch, GraphNet};
use briquette_recipe::CalibrationRun;
use briquette_writer::treatment::SharedTreatments;
use briquette_writer::{Plan, RunOptions, TensorPlan};
use burn::tensor::Device;
use std::collections::{BTreeMap, BTreeSet};

/// Chooses the grids of all layers of the plan with static activations.
///
/// The grids of a quantization-aware training are kept.
pub(super) fn new_grids(
    calibration: &CalibrationRun,
    plan: &mut Plan,
    (checkpoint, scaled): (&Checkpoint, &ScaledSource),
    options: &RunOptions,
) -> Result<ActivationGrids> {
    let network = StaticNetwork::open(calibration, checkpoint, options)?;
    if !network.has_attention && has_grid_parts(plan.profile) {
        return Err(no_grid_of_layer(plan.profile));
    }
    float_unused(plan, &network.used_weights());
    let weights: BTreeSet<String> = plan
        .tensors
        .iter()
        .filter(|tensor| tensor.static_quant().is_some())
        .map(|tensor| tensor.info.name.to_string())
        .collect();
    // A format with a grid beside each layer's codes has no place for others.
    let operands = if has_grid_parts(plan.profile) { Vec::new() } else { network.operands_of(&weights) };
    let mut wanted = network.values_of(&weights, &operands)?;
    let columns = network.columns_of(plan, scaled, &weights)?;
    wanted.iter_mut().for_each(|value| value.columns = columns.get(&value.id).cloned().flatten());
    if let Some(known) = network.trained(&wanted, &weights, &operands)? {
        let n = known.values.len() + known.layers.len();
        plan.remarks.push(format!("Static int8: the grids of {n} activations are those of the training."));
        if network.has_attention {
            round_others_dynamically(plan, &known.layers);
        }
        return Ok(known);
    }
    let (values, n_items) = network.observed(&wanted, &operands)?;
    let range = calibration.activation_range;
    plan.remarks
        .push(format!("Static int8: grids of {} activations, ranges by {range} over {n_items} items.", values.len()));
    let grids = network.grids(values, &weights, &columns, &operands);
    if network.has_attention {
        round_others_dynamically(plan, &grids.layers);
    }
    Ok(grids)
}

/// Chooses the grids of the layers with these weights, for a training.
///
/// # Errors
/// See [`choose`](super::choose).
pub(crate) fn grids_of(
    weights: &BTreeSet<String>,
    calibration: &CalibrationRun,
    checkpoint: &Checkpoint,
    options: &RunOptions,
) -> Result<ActivationGrids> {
    let network = StaticNetwork::open(calibration, checkpoint, options)?;
    let operands = network.operands_of(weights);
    let wanted = network.values_of(weights, &operands)?;
    let (values, _) = network.observed(&wanted, &operands)?;
    let without_columns = wanted.iter().map(|value| (value.id, None)).collect();
    Ok(network.grids(values, weights, &without_columns, &operands))
}

/// The scales of columns that multiply each value before it is rounded.
type ColumnsOfValues = BTreeMap<ValueId, Option<ColumnScales>>;

/// A network whose activations get grids.
struct StaticNetwork<'a> {
    calibration: &'a CalibrationRun,
    checkpoint: &'a Checkpoint,
    options: &'a RunOptions,
    arch: Arch,
    device: Device,
    /// The network without weights.
    blank: GraphNet,
    has_attention: bool,
}

impl<'a> StaticNetwork<'a> {
    fn open(calibration: &'a CalibrationRun, checkpoint: &'a Checkpoint, options: &'a RunOptions) -> Result<Self> {
        let device = briquette_models::device(&options.device)?;
        let arch = arch_of(calibration.arch.as_deref(), checkpoint)?;
        if checkpoint.network_file().is_some() {
            let message = "int8-static: found an ONNX model; use `briquette export --to onnx --quantize int8-static`";
            return Err(Error::config(message));
        }
        let (blank, _) = GraphNet::blank(arch, checkpoint, &device)?;
        let has_attention = has_attention(blank.graph());
        if !has_attention {
            check_convolutional(blank.graph())?;
        }
        Ok(Self { calibration, checkpoint, options, arch, device, blank, has_attention })
    }

    fn name(&self, value: ValueId) -> &str {
        &self.blank.graph().values[value.0]
    }

    fn weight(&self, weight: WeightId) -> &str {
        &self.blank.graph().weights[weight.0].name
    }

    fn names_of<'n>(&'n self, operands: impl Iterator<Item = &'n AttentionOperands>) -> BTreeSet<&'n str> {
        operands.flat_map(|of| of.values).map(|value| self.name(value)).collect()
    }

    /// Returns the names of the weights that the network uses.
    fn used_weights(&self) -> BTreeSet<String> {
        let graph = self.blank.graph();
        let is_computed = |output: &ValueId| self.blank.computes(*output);
        let nodes = graph.nodes.iter().filter(|node| node.outputs.iter().all(is_computed));
        nodes.flat_map(|node| node.weights()).map(|(_, weight)| graph.weights[weight.0].name.clone()).collect()
    }

    /// Returns each linear layer with one of these weights: its weight, and the value that it multiplies. A layer of low rank has none: its
    /// weight multiplies the output of the other factor.
    fn linear_layers<'n>(&'n self, weights: &'n BTreeSet<String>) -> impl Iterator<Item = (&'n str, ValueId)> {
        let graph = self.blank.graph();
        let linear = graph.nodes.iter().filter(|node| node.op == Op::Composite(Composite::Linear));
        let layers = linear.filter_map(|node| match node.inputs.as_slice() {
            [Operand::Value(input), Operand::Weight(weight), ..] => {
                Some((graph.weights[weight.0].name.as_str(), *input))
            }
            _ => None,
        });
        let factors = self.checkpoint.tensors().iter().filter_map(|info| info.name.strip_suffix(".down.weight"));
        let factors: BTreeSet<&str> = factors.collect();
        let is_whole = move |weight: &str| weight.strip_suffix(".weight").is_none_or(|path| !factors.contains(path));
        layers.filter(move |(weight, _)| weights.contains(*weight) && is_whole(weight))
    }

    /// Returns the scales of columns for the inputs of layers in a network with attention. A value is left out if its layers have different
    /// ones.
    fn columns_of(&self, plan: &Plan, scaled: &ScaledSource, weights: &BTreeSet<String>) -> Result<ColumnsOfValues> {
        let (mut found, mut differ) = (ColumnsOfValues::new(), BTreeSet::new());
        for (weight, input) in self.linear_layers(weights).filter(|_| self.has_attention) {
            let tensor = plan.tensors.iter().find(|tensor| tensor.info.name == weight);
            let has_columns = |tensor: &&TensorPlan| tensor.quant.is_some_and(|quant| quant.spec.has_columns);
            let columns = match tensor.filter(has_columns) {
                Some(tensor) => scaled.columns(tensor.index())?,
                None => None,
            };
            if found.insert(input, columns.clone()).is_some_and(|other| other != columns) {
                differ.insert(input);
            }
        }
        found.retain(|input, _| !differ.contains(input));
        Ok(found)
    }

    /// Returns the grid of each layer's input. A weight of several layers has a grid if these have the same.
    fn of_layers(
        &self,
        values: &BTreeMap<String, ValueGrid>,
        weights: &BTreeSet<String>,
        columns: &ColumnsOfValues,
    ) -> BTreeMap<String, ValueGrid> {
        let (mut found, mut differ) = (BTreeMap::new(), BTreeSet::new());
        for (weight, input) in self.linear_layers(weights).filter(|(_, input)| columns.contains_key(input)) {
            let Some(grid) = values.get(self.name(input)) else { continue };
            if found.insert(weight.to_string(), *grid).is_some_and(|other| other != *grid) {
                differ.insert(weight.to_string());
            }
        }
        found.retain(|weight, _| !differ.contains(weight));
        found
    }

    /// Returns the grids of a network: of its values, or in a network with attention of layers and of the operands of attention whose
    /// layers all have grids.
    fn grids(
        &self,
        mut values: BTreeMap<String, ValueGrid>,
        weights: &BTreeSet<String>,
        columns: &ColumnsOfValues,
        operands: &[AttentionOperands],
    ) -> ActivationGrids {
        if !self.has_attention {
            return ActivationGrids::new(values, BTreeMap::new());
        }
        let layers = self.of_layers(&values, weights, columns);
        let has_grids =
            |of: &&AttentionOperands| of.weights.iter().all(|weight| layers.contains_key(self.weight(*weight)));
        let kept = self.names_of(operands.iter().filter(has_grids));
        values.retain(|name, _| kept.contains(name.as_str()));
        ActivationGrids::new(values, layers)
    }

    /// Returns the grids of a training for these values, or for the layers with these weights; `None` if it has not given all of them.
    fn trained(
        &self,
        wanted: &[ObservedValue],
        weights: &BTreeSet<String>,
        operands: &[AttentionOperands],
    ) -> Result<Option<ActivationGrids>> {
        let ActivationGrids { mut values, mut layers, .. } = ActivationGrids::of_training(self.checkpoint)?;
        if self.has_attention {
            let kept = self.names_of(operands.iter());
            values.retain(|name, _| kept.contains(name.as_str()));
            layers.retain(|weight, _| weights.contains(weight));
            // Its layers read values that were not multiplied.
            let has_all = !layers.is_empty() && wanted.iter().all(|value| value.columns.is_none());
            return Ok(has_all.then(|| ActivationGrids::new(values, layers)));
        }
        values.retain(|name, _| wanted.iter().any(|value| self.name(value.id) == name));
        let has_all = !values.is_empty() && values.len() == wanted.len();
        Ok(has_all.then(|| ActivationGrids::new(values, BTreeMap::new())))
    }

    /// Returns the operands of each attention on the outputs of layers with these weights.
    fn operands_of(&self, weights: &BTreeSet<String>) -> Vec<AttentionOperands> {
        let mut found = attention_operands(self.blank.graph());
        found.retain(|operands| {
            operands.weights.iter().all(|weight| weights.contains(self.weight(*weight)))
                && operands.values.iter().all(|value| self.blank.computes(*value))
        });
        found
    }

    /// Returns the values that need a grid if the layers with these weights have static activations.
    fn values_of(&self, weights: &BTreeSet<String>, operands: &[AttentionOperands]) -> Result<Vec<ObservedValue>> {
        if self.has_attention {
            let inputs = self.linear_layers(weights).map(|(_, input)| input);
            let values: BTreeSet<ValueId> = inputs.chain(operands.iter().flat_map(|of| of.values)).collect();
            let computed = values.into_iter().filter(|value| self.blank.computes(*value));
            return Ok(computed.map(|id| ObservedValue::new(id, id)).collect());
        }
        let found = fixed_values(self.blank.graph(), &|name| weights.contains(name))?;
        let computed = found.into_iter().filter(|fixed| self.blank.computes(fixed.value));
        Ok(computed.map(|fixed| ObservedValue::new(fixed.value, fixed.range_of)).collect())
    }

    /// Runs the network on the calibration data. Returns the grid of each value by name, and the number of items.
    fn observed(
        &self,
        values: &[ObservedValue],
        operands: &[AttentionOperands],
    ) -> Result<(BTreeMap<String, ValueGrid>, usize)> {
        let Self { calibration, checkpoint, options, arch, device, .. } = self;
        let spec = spec_of(&calibration.data);
        let data = spec.open(arch.task())?;
        let samples = Samples { n: calibration.n_samples, seed: calibration.seed };
        options.progress.begin("calibrate", 0);
        let mut after_batch = |done, total| {
            options.progress.items(done, total);
            options.stop.check()
        };
        let (over, how) = ((&data, &spec), (samples, calibration.activation_range));
        let found = run_model(options, calibration.limit, device, || {
            value_ranges(checkpoint, *arch, device, over, how, values, &mut after_batch)
        })?;
        let are_symmetric: BTreeSet<ValueId> = operands.iter().flat_map(|of| of.values).collect();
        let grid = |(id, statistics): (ValueId, ValueStatistics)| {
            let (name, grid) = (self.name(id).to_string(), grid_of(&statistics, are_symmetric.contains(&id)));
            if !(grid.scale as f32).is_normal() {
                let message = "an activation is zero for all items; use other data, or exclude its layer";
                return Err(Error::refused(message).at(name));
            }
            Ok((name, grid))
        };
        let grids = found.values.into_iter().map(grid).collect::<Result<_>>()?;
        Ok((grids, found.n_items))
    }
}

/// Returns the grid over a range: of all codes, or with the code 128 in the middle of a symmetric range.
fn grid_of(statistics: &ValueStatistics, is_symmetric: bool) -> ValueGrid {
    if is_symmetric {
        let [low, high] = statistics.bounds;
        return ValueGrid { scale: (high.max(-low) / 127.0).into(), zero: 128 };
    }
    let affine = statistics.affine();
    // The zero point of codes from 0 is 128 above that of codes from -128.
    ValueGrid { scale: affine.scale.into(), zero: (i16::from(affine.zero) + 128) as u8 }
}

fn has_attention(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.op, Op::Composite(Composite::Attention(_))))
}

/// Plans ranges of single rows and images for layers without a grid: convolutions, whose outputs are no codes in a network with
/// attention, and weights that several layers share.
fn round_others_dynamically(plan: &mut Plan, layers: &BTreeMap<String, ValueGrid>) {
    let mut shared = SharedTreatments::default();
    let has_none =
        |tensor: &&mut TensorPlan| tensor.static_quant().is_some() && !layers.contains_key(tensor.info.name.as_str());
    for tensor in plan.tensors.iter_mut().filter(has_none) {
        tensor.quant.iter_mut().for_each(|quant| quant.activations = Activations::DynamicAsymmetric);
        tensor.share(&mut shared);
    }
}

/// Plans float activations for layers that the network does not use.
fn float_unused(plan: &mut Plan, used: &BTreeSet<String>) {
    let mut shared = SharedTreatments::default();
    let unused =
        |tensor: &&mut TensorPlan| tensor.static_quant().is_some() && !used.contains(tensor.info.name.as_str());
    for tensor in plan.tensors.iter_mut().filter(unused) {
        tensor.quant.iter_mut().for_each(|quant| quant.activations = Activations::Float);
        tensor.share(&mut shared);
    }
}

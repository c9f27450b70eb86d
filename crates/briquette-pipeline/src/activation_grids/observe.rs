//! Runs the original model on calibration data, and chooses the grids of its activations.

use crate::arch::arch_of;
use crate::training::spec_of;
use briquette_core::{Error, Result};
use briquette_eval::{ObservedValue, Samples, value_ranges};
use briquette_formats::{ActivationGrid, Checkpoint};
use briquette_graph::fixed_values::fixed_values;
use briquette_graph::to_onnx::static_int8::check_convolutional;
use briquette_graph::{Graph, ValueId};
use briquette_methods::quant::Activations;
use briquette_models::GraphNet;
use briquette_recipe::CalibrationRun;
use briquette_writer::treatment::SharedTreatments;
use briquette_writer::{Plan, RunOptions, TensorPlan};
use std::collections::{BTreeMap, BTreeSet};

/// Chooses the grids of all layers of the plan with static activations.
pub(super) fn new_grids(
    calibration: &CalibrationRun,
    plan: &mut Plan,
    checkpoint: &Checkpoint,
    options: &RunOptions,
) -> Result<BTreeMap<String, ActivationGrid>> {
    let device = briquette_models::device(&options.device)?;
    let arch = arch_of(calibration.arch.as_deref(), checkpoint)?;
    let (network, _) = GraphNet::blank(arch, checkpoint, &device)?;
    if checkpoint.network_file().is_some() {
        let message = "found an ONNX model; use `briquette export --to onnx --quantize int8-static`";
        return Err(Error::config(message).at("int8-static"));
    }
    let graph = network.graph();
    check_convolutional(graph)?;
    float_unused(plan, &layers_of(&network));
    let is_static: BTreeSet<&str> =
        plan.tensors.iter().filter(|tensor| is_static(tensor)).map(|tensor| tensor.info.name.as_str()).collect();
    let mut observed: Vec<ObservedValue> = fixed_values(graph, &|name| is_static.contains(name))?
        .into_iter()
        .map(|fixed| ObservedValue { id: fixed.value, range_of: fixed.range_of })
        .collect();
    observed.retain(|value| network.computes(value.id));
    let spec = spec_of(&calibration.data);
    let data = spec.open(arch.task())?;
    let samples = Samples { n: calibration.n_samples, seed: calibration.seed };
    options.progress.begin("calibrate", 0);
    let mut after_batch = |done, total| {
        options.progress.items(done, total);
        options.stop.check()
    };
    let (over, range) = ((&data, &spec), calibration.activation_range);
    let found = briquette_models::guarded(&device, || {
        value_ranges(checkpoint, arch, &device, over, (samples, range), &observed, &mut after_batch)
    })?;
    let n_ranges = found.values.len();
    plan.remarks.push(format!(
        "Static int8: grids of {n_ranges} activations, ranges by {range} over {} images.",
        found.n_items
    ));
    let grid = |(id, statistics): (ValueId, briquette_eval::ValueStatistics)| {
        let (name, affine) = (graph.values[id.0].clone(), statistics.affine());
        if !affine.scale.is_normal() {
            let message = "an activation is zero for all images; use other images, or exclude its layer";
            return Err(Error::refused(message).at(name));
        }
        // The zero point of codes from 0 is 128 above that of codes from -128.
        let zero = (i16::from(affine.zero) + 128) as u8;
        Ok((name, ActivationGrid { scale: affine.scale.into(), zero }))
    };
    found.values.into_iter().map(grid).collect()
}

fn is_static(tensor: &TensorPlan) -> bool {
    tensor.quant.is_some_and(|quant| quant.activations == Activations::Static)
}

/// Returns the names of the weights that a network uses.
fn layers_of(network: &GraphNet) -> BTreeSet<String> {
    let graph: &Graph = network.graph();
    let nodes = graph.nodes.iter().filter(|node| node.outputs.iter().all(|output| network.computes(*output)));
    nodes.flat_map(|node| node.weights()).map(|(_, weight)| graph.weights[weight.0].name.clone()).collect()
}

/// Plans float activations for layers that the network does not use.
fn float_unused(plan: &mut Plan, used: &BTreeSet<String>) {
    let mut shared = SharedTreatments::default();
    for tensor in
        plan.tensors.iter_mut().filter(|tensor| is_static(tensor) && !used.contains(tensor.info.name.as_str()))
    {
        tensor.quant.iter_mut().for_each(|quant| quant.activations = Activations::Float);
        tensor.share(&mut shared);
    }
}

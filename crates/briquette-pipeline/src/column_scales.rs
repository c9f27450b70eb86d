//! Scales of the columns of linear layers, chosen from the statistics of their inputs.
//!
//! A fold moves the same scales into the layer before, which needs a place for them. Scales of columns are stored beside the codes
//! instead, so every linear layer can have them: the layer multiplies its inputs by them before they are rounded. Convolutions have
//! none: EfficientNet-Lite0 lost more with them.

use crate::frequency::ScaledSource;
use crate::solve::{layer_of, layers_of_original, rows_of};
use briquette_core::{ColumnScales, InputStats, Result};
use briquette_formats::Checkpoint;
use briquette_methods::quant::channel_scales::{ScaledColumns, column_scales};
use briquette_methods::quant::{QuantSpec, Scheme};
use briquette_recipe::Recipe;
use briquette_recipe::plan::{siblings, topology_of};
use briquette_writer::{Plan, TensorPlan, Workers};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Chooses the scales of all columns that the plan wants, and adds them to the source.
///
/// Layers with the same input get the same scales. A layer keeps none if they would not lower the predicted error.
///
/// # Errors
/// - Input: the statistics of a layer are missing or do not fit.
/// - Io and Interrupted.
pub(crate) fn choose(
    recipe: &Recipe,
    plan: &mut Plan,
    checkpoint: &Checkpoint,
    scratch: Option<&Path>,
    source: &mut ScaledSource,
    workers: &Workers,
) -> Result<()> {
    let wanted: Vec<usize> = plan.tensors.iter().filter(|tensor| is_wanted(tensor)).map(TensorPlan::index).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let layers = layers_of_original(recipe, checkpoint, scratch)?;
    let groups = groups(recipe, plan, checkpoint, &wanted)?;
    workers.begin("scale columns", groups.len());
    let (own, rows) = (&*plan, |tensor: &TensorPlan| rows_of(tensor, checkpoint, workers.stop()));
    let found = workers.map(
        &groups,
        || (),
        |(), group| {
            let found = scales_of(own, group, &layers, &rows, workers)?;
            workers.advance(1);
            Ok(found)
        },
    )?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (group, chosen) in groups.iter().zip(found) {
        if let Some((method, _)) = &chosen {
            *counts.entry(method).or_default() += 1;
        }
        for &index in group {
            match &chosen {
                Some((_, scales)) => source.add_columns(index, scales.clone()),
                None => plan.tensors[index].quant.iter_mut().for_each(|quant| quant.spec.has_columns = false),
            }
        }
    }
    plan.remarks.push(remark(&counts, groups.len()));
    Ok(())
}

fn is_wanted(tensor: &TensorPlan) -> bool {
    tensor.tied_to().is_none() && tensor.quant.is_some_and(|quant| quant.spec.has_columns && !quant.is_given)
}

/// Returns the wanted tensors, those with the same input together.
fn groups(recipe: &Recipe, plan: &Plan, checkpoint: &Checkpoint, wanted: &[usize]) -> Result<Vec<Vec<usize>>> {
    let topology = topology_of(recipe, checkpoint)?;
    let names = wanted.iter().map(|&index| plan.tensors[index].info.name.as_str());
    let mut groups: Vec<Vec<usize>> = siblings::groups(names, &topology)
        .into_iter()
        .map(|group| group.into_iter().map(|place| wanted[place]).collect())
        .collect();
    let in_groups: BTreeSet<usize> = groups.iter().flatten().copied().collect();
    groups.extend(wanted.iter().filter(|index| !in_groups.contains(index)).map(|&index| vec![index]));
    Ok(groups)
}

/// Chooses the method and the scales of layers with the same input; `None` if no scales are better.
fn scales_of(
    plan: &Plan,
    group: &[usize],
    layers: &BTreeMap<String, InputStats>,
    rows: &impl Fn(&TensorPlan) -> Result<Vec<f32>>,
    workers: &Workers,
) -> Result<Option<(&'static str, ColumnScales)>> {
    let tensors: Vec<&TensorPlan> = group.iter().map(|&index| &plan.tensors[index]).collect();
    let Some(quant) = tensors[0].quant else { return Ok(None) };
    let n_cols = tensors[0].rows().n_cols;
    // Layers that no data reached were planned without scales.
    let stats = tensors.iter().find_map(|tensor| layers.get(layer_of(&tensor.info.name)));
    let Some(stats) = stats.filter(|stats| stats.count > 0 && stats.n_inputs() == n_cols) else { return Ok(None) };
    let weights = tensors.iter().map(|tensor| rows(tensor)).collect::<Result<Vec<_>>>()?;
    let units: Vec<usize> = (0..n_cols).collect();
    let columns = ScaledColumns { layers: &weights, stats, units: &units, n_units: n_cols };
    let scheme = Scheme { weights: QuantSpec { has_columns: false, ..quant.spec }, activations: quant.activations };
    let found = column_scales(&columns, scheme, &|| workers.check_stop())?;
    let nearest = |scales: Vec<f64>| ColumnScales::nearest(scales.into_iter().map(f64::recip));
    Ok(found.map(|(method, scales)| (method, nearest(scales))))
}

fn remark(counts: &BTreeMap<&str, usize>, n_inputs: usize) -> String {
    let names = [("balanced", "balanced"), ("searched", "searched"), ("smooth", "SmoothQuant's"), ("awq", "AWQ's")];
    let counted = names.iter().filter_map(|(method, name)| Some(format!("{name} for {}", counts.get(method)?)));
    let counted: Vec<String> = counted.collect();
    match counted.is_empty() {
        true => format!("No scales of columns: none are known to lower the error of any of {n_inputs} layer inputs."),
        false => {
            let n: usize = counts.values().sum();
            format!("Scales of columns for {n} of {n_inputs} layer inputs: {}.", counted.join(", "))
        }
    }
}

//! The inputs of error compensation.

use crate::frequency::ScaledSource;
use briquette_core::{Error, InputStats, Result};
use briquette_formats::Checkpoint;
use briquette_recipe::Recipe;
use briquette_writer::context::{RunOptions, Workers};
use briquette_writer::{Plan, Stop, TensorPlan};
use std::collections::BTreeMap;
use std::path::Path;

/// The inputs of error compensation.
#[derive(Clone, Copy)]
pub(crate) struct SolveJob<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) checkpoint: &'a Checkpoint,
    /// The checkpoint with the scales that do not follow from weights alone.
    pub(crate) scaled: &'a ScaledSource<'a>,
    /// The directory of finished blocks.
    pub(crate) scratch: &'a Path,
    pub(crate) workers: &'a Workers,
    pub(crate) options: &'a RunOptions,
}

/// The name of the file with the curvature in the rows of embeddings. It does not depend on step sizes.
pub(crate) const CURVATURE: &str = "curvature.safetensors";

/// Returns the tensors whose weights are updated.
pub(super) fn moving<'p, 'a>(plan: &'p Plan<'a>) -> impl Iterator<Item = &'p TensorPlan<'a>> {
    plan.tensors.iter().filter(|tensor| tensor.solve.moves() && tensor.tied_to().is_none())
}

/// Returns the name of the layer of a weight tensor.
pub(crate) fn layer_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Returns the statistics of a tensor's inputs.
///
/// # Errors
/// Input: the layer has no statistics, or they have another number of inputs or no Gram matrix although
/// `needs_gram` is set.
pub(super) fn stats_of<'s>(
    tensor: &TensorPlan,
    layers: &'s BTreeMap<String, InputStats>,
    needs_gram: bool,
) -> Result<&'s InputStats> {
    let layer = layer_of(&tensor.info.name);
    let Some(stats) = layers.get(layer) else {
        let message = format!("the calibration saw no inputs of {layer:?}; exclude the tensor from the stage");
        return Err(Error::input(message).at(tensor.culprit()));
    };
    let (found, expected) = (stats.n_inputs(), tensor.rows().n_cols);
    if !tensor.takes(stats) {
        let message = format!("has statistics of {found} inputs, expected {expected}");
        return Err(Error::input(message).at(tensor.culprit()));
    }
    if needs_gram && stats.gram.is_none() {
        let message = "its statistics have no Gram matrix, which weight updates need; gather them with `--gram`";
        return Err(Error::input(message).at(tensor.culprit()));
    }
    Ok(stats)
}

/// Returns a function that checks for a stop, for methods of `briquette-methods`.
pub(super) fn check_stop(stop: &Stop) -> impl Fn() -> Result<()> + Sync {
    let stop = stop.clone();
    move || stop.check()
}

//! Compares a folded network with the original network on random inputs.

use crate::transform::random_inputs::random_inputs;
use briquette_core::{DType, Error, Result};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::{Graph, InputSource, ValueId};
use briquette_models::graph_net::GraphNet;
use briquette_models::{device, guarded};
use burn::tensor::Device;
use std::collections::BTreeSet;
use std::path::Path;

/// The most tokens of a text.
const MAX_TOKENS: usize = 12;

/// Returns the largest difference of the outputs, as a share of the largest output.
///
/// `None` if the build has no device, the network cannot be run, or its weights exceed the memory limit.
///
/// # Errors
/// - Refused: the difference is too large.
/// - Input and Io: a network cannot be read.
pub(super) fn difference(original: &Checkpoint, folded: &Path, limit: Option<u64>) -> Result<Option<f64>> {
    let n_weights: usize = original.tensors().iter().map(|info| info.n_elements()).sum();
    if limit.is_some_and(|limit| 4 * n_weights as u64 > limit) {
        return Ok(None);
    }
    let Ok(device) = device("cpu") else { return Ok(None) };
    let Some(expected) = outputs(original, &device)? else { return Ok(None) };
    let Some(found) = outputs(&Checkpoint::open(folded)?, &device)? else { return Ok(None) };
    let most = expected.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
    let differences = expected.iter().zip(&found).map(|(a, b)| (a - b).abs() / most);
    let found = differences.fold(0.0_f32, |most, one| if one.is_nan() { f32::INFINITY } else { most.max(one) });
    let limit = tolerance(original);
    match found <= limit {
        true => Ok(Some(f64::from(found))),
        false => {
            let message =
                format!("found folded outputs {found:.1e} of the largest output away, expected {limit:.0e} or less");
            Err(Error::refused(format!("{message}; exclude tensors, or use a model in f32")).at("fold"))
        }
    }
}

/// Returns the difference that rounding to the type of the weights may cause.
fn tolerance(original: &Checkpoint) -> f32 {
    let types = original.tensors().iter().map(|info| match info.dtype {
        DType::BF16 => 0.2,
        DType::F16 => 0.03,
        _ => 1e-4,
    });
    types.fold(1e-4, f32::max)
}

/// Returns the outputs of a network on random inputs; `None` if the network cannot be run.
///
/// A network of texts and images runs on each of them.
fn outputs(checkpoint: &Checkpoint, device: &Device) -> Result<Option<Vec<f32>>> {
    guarded(device, || {
        let network = GraphNet::of_checkpoint(checkpoint, device)?;
        let (graph, mut found) = (network.graph(), Vec::new());
        for given in [InputSource::TokenIds, InputSource::Images, InputSource::SoundFeatures] {
            let Some(inputs) = random_inputs(graph, given, MAX_TOKENS, device) else { continue };
            for output in computed(graph, given) {
                // A network without a head does not compute every output of its graph.
                if let Ok(values) = network.tap(&inputs, &[&graph.values[output.0]]) {
                    found.extend(values[0].to_f32("an output")?);
                }
            }
        }
        Ok(Some(found).filter(|found| !found.is_empty()))
    })
}

/// Returns the outputs that need no other input than texts, images or sounds.
fn computed(graph: &Graph, given: InputSource) -> Vec<ValueId> {
    let others = [InputSource::TokenIds, InputSource::Images, InputSource::SoundFeatures];
    let is_other = |source: InputSource| source != given && others.contains(&source);
    let is_position = |source: InputSource| matches!(source, InputSource::PositionIds { .. });
    let lacks = |source| is_other(source) || is_position(source) && given == InputSource::Images;
    let mut known: BTreeSet<ValueId> =
        graph.inputs.iter().filter(|input| !lacks(input.source)).map(|input| input.value).collect();
    for node in &graph.nodes {
        if node.values().all(|(_, value)| known.contains(&value)) {
            known.extend(&node.outputs);
        }
    }
    graph.outputs.iter().copied().filter(|output| known.contains(output)).collect()
}

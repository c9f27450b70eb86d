//! Removes batch norms that the convolution before them absorbs.

use super::names::{Readers, weight_of, weights_by_name};
use crate::absorb::{NormPlace, batch_norms};
use crate::graph::{Weight, WeightId};
use crate::to_onnx::OnnxNetwork;
use std::collections::BTreeMap;

/// Removes batch norms after convolutions whose weights are folded. Returns each with the weight of its convolution.
pub(super) fn fold_norms(
    network: &mut OnnxNetwork,
    is_folded: &dyn Fn(&Weight) -> bool,
) -> BTreeMap<WeightId, NormPlace> {
    let (places, _) = batch_norms(&network.graph);
    let places = places.into_iter().filter(|place| is_folded(&network.graph.weights[place.weight.0]));
    let by_scale: BTreeMap<WeightId, NormPlace> = places.map(|place| (place.norm[0], place)).collect();
    let (weights, readers) = (weights_by_name(network), Readers::of(&network.model));
    let (mut makers, mut found) = (BTreeMap::<String, usize>::new(), BTreeMap::new());
    let mut nodes = Vec::with_capacity(network.model.nodes.len());
    for node in std::mem::take(&mut network.model.nodes) {
        let place = weight_of(&weights, node.inputs.get(1)).and_then(|scale| by_scale.get(&scale));
        let conv = place.filter(|_| node.op == "BatchNormalization").and_then(|place| {
            let at = *makers.get(&node.inputs[0])?;
            let conv: &briquette_formats::onnx_write::OnnxNode = &nodes[at];
            let is_own = weight_of(&weights, conv.inputs.get(1)) == Some(place.weight);
            let is_alone = readers.has_one(&network.model, &node.inputs[0]);
            (conv.op == "Conv" && is_own && is_alone).then_some((at, place))
        });
        let at = match conv {
            Some((at, place)) => {
                found.insert(place.weight, place.clone());
                nodes[at].outputs.clone_from(&node.outputs);
                at
            }
            None => {
                nodes.push(node.clone());
                nodes.len() - 1
            }
        };
        makers.extend(node.outputs.into_iter().map(|name| (name, at)));
    }
    network.model.nodes = nodes;
    found
}

//! The places of a network that a fold changes.

use crate::transform::headed::HeadedModel;
use briquette_core::{Error, Result};
use briquette_graph::absorb::{
    NormPlace, RotationPlaces, ScalePlace, SkippedLayer, batch_norms, reasons, rotations, scales,
};
use briquette_graph::{Graph, WeightId};
use briquette_recipe::{FoldMethod, FoldStage};

/// The places that a fold changes, and the layers that stay unchanged.
pub(super) enum FoldPlaces {
    /// Batch norms.
    Norms(Vec<NormPlace>, Vec<SkippedLayer>),
    /// Inputs of layers.
    Scales(Vec<ScalePlace>, Vec<SkippedLayer>),
    /// The residual stream and the values of attention.
    Rotations(RotationPlaces),
}

impl FoldPlaces {
    /// Finds the places of a fold from headers.
    ///
    /// # Errors
    /// Config: the network has no place for the fold, or a pattern matches no tensor.
    pub(super) fn of(stage: &FoldStage, model: &HeadedModel) -> Result<Self> {
        let graph = &model.graph;
        let names = || graph.weights.iter().map(|weight| weight.name.as_str());
        stage.include.iter().chain([&stage.exclude]).try_for_each(|patterns| patterns.check_used("tensor", names()))?;
        let is_chosen = |weights: &[WeightId]| is_chosen(stage, graph, weights);
        let found = match stage.method {
            FoldMethod::BatchNorm => {
                let (mut places, skipped) = batch_norms(graph);
                places.retain(|place| is_chosen(&[place.norm[0], place.weight]));
                Self::Norms(places, skipped)
            }
            FoldMethod::Equalize => {
                let (places, mut skipped) = scales(graph, &graph.lower()?);
                let (mut places, norms): (Vec<_>, Vec<_>) =
                    places.into_iter().partition(|place| is_matrix(graph, place.producers[0].weight));
                let skip = |place: ScalePlace| SkippedLayer { name: place.name, reason: "a norm is before it".into() };
                skipped.extend(norms.into_iter().map(skip));
                places.retain(|place| is_chosen(&weights_of(place)));
                Self::Scales(places, skipped)
            }
            FoldMethod::Smooth { .. } | FoldMethod::Awq { .. } | FoldMethod::Auto { .. } => {
                let (places, mut skipped) = scales(graph, &graph.lower()?);
                let (mut places, convs): (Vec<_>, Vec<_>) =
                    places.into_iter().partition(|place| place.readers.iter().all(|reader| !reader.is_conv));
                let skip = |place: ScalePlace| SkippedLayer { name: place.name, reason: "it is a convolution".into() };
                skipped.extend(convs.into_iter().map(skip));
                places.retain(|place| is_chosen(&weights_of(place)));
                Self::Scales(places, skipped)
            }
            FoldMethod::Rotate { .. } => {
                let found = rotations(graph, &graph.lower()?).map_err(|reason| {
                    let message =
                        format!("method rotate: the network has no residual stream that can be rotated ({reason})");
                    Error::config(format!("{message}; remove the stage")).at("fold")
                })?;
                Self::Rotations(found)
            }
        };
        found.check(stage)
    }

    /// Refuses a network without places.
    fn check(self, stage: &FoldStage) -> Result<Self> {
        let (is_empty, skipped, what) = match &self {
            Self::Norms(places, skipped) => {
                (places.is_empty(), skipped, "batch norm that a layer before it can absorb")
            }
            Self::Scales(places, skipped) => {
                (places.is_empty(), skipped, "layer whose inputs a layer before it can scale")
            }
            Self::Rotations(_) => return Ok(self),
        };
        if !is_empty {
            return Ok(self);
        }
        let reason = reasons(skipped).into_iter().next().map_or_else(String::new, |reason| format!(" ({reason})"));
        let message = format!("method {}: the network has no {what}{reason}; remove the stage", stage.method.name());
        Err(Error::config(message).at("fold"))
    }
}

/// Returns whether a weight is a matrix or the kernel of a convolution.
pub(super) fn is_matrix(graph: &Graph, weight: WeightId) -> bool {
    graph.weights[weight.0].shape.rank() >= 2
}

fn weights_of(place: &ScalePlace) -> Vec<WeightId> {
    let readers = place.readers.iter().map(|reader| reader.inputs.weight);
    readers.chain(place.producers.iter().map(|producer| producer.weight)).collect()
}

fn is_chosen(stage: &FoldStage, graph: &Graph, weights: &[WeightId]) -> bool {
    let mut names = weights.iter().map(|weight| graph.weights[weight.0].name.as_str());
    let is_excluded = names.clone().any(|name| stage.exclude.matches(name));
    let is_included = stage.include.as_ref().is_none_or(|patterns| names.any(|name| patterns.matches(name)));
    is_included && !is_excluded
}

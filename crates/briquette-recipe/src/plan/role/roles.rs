//! Finds the role of each tensor of a model.

use super::conv1d;
use super::experts;
use super::filters;
use super::graph;
use super::matrices;
use super::names;
use super::neighbours::{Name, Neighbours};
use super::weight_norm;
use crate::plan::topology::Topology;
use briquette_core::{OutputAxis, Result};
use briquette_core::{Role, RoleRule};
use briquette_formats::model_config::ModelFamily;
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, WeightLayout};
use briquette_graph::Graph;
use briquette_writer::known::{Known, Reason};
use std::collections::HashMap;

/// The properties of a model that determine the roles of its tensors.
#[derive(Debug)]
pub struct RoleContext<'a> {
    rules: &'a [RoleRule],
    family: ModelFamily,
    layout: Option<WeightLayout>,
    near: Neighbours<'a>,
    conv1d: Option<Reason>,
    by_graph: HashMap<String, Known>,
}

impl<'a> RoleContext<'a> {
    /// Gathers the names and shapes of all tensors of a model.
    ///
    /// `layout` is the layout of its Linear weights, if the model or the recipe sets it. Otherwise, weights are
    /// `[out, in]` unless a bias shows the opposite.
    pub fn new(
        tensors: &'a [TensorInfo],
        family: ModelFamily,
        layout: Option<WeightLayout>,
        rules: &'a [RoleRule],
    ) -> Self {
        let near = Neighbours::of(tensors);
        let conv1d = conv1d::found(tensors, &near, &family.model_types);
        Self { rules, family, layout, near, conv1d, by_graph: HashMap::new() }
    }

    /// Gathers the evidence of a checkpoint's tensors and of its directory, with the graph of its network.
    ///
    /// # Errors
    /// Io: the checkpoint cannot be read.
    pub fn of_model(
        checkpoint: &'a Checkpoint,
        topology: &Topology,
        layout: Option<WeightLayout>,
        rules: &'a [RoleRule],
    ) -> Result<Self> {
        let by_names = Self::new(checkpoint.tensors(), ModelFamily::of(checkpoint)?, layout, rules);
        let by_graph = topology.graph().map(|graph| graph::known(graph, layout)).unwrap_or_default();
        Ok(Self { by_graph, ..by_names })
    }

    /// Adds the roles that a graph of these tensors shows.
    #[must_use]
    pub fn with_graph(self, graph: &Graph) -> Self {
        Self { by_graph: graph::known(graph, self.layout), ..self }
    }

    /// Returns whether the graph of the network shows the role of a tensor.
    pub fn is_by_graph(&self, info: &TensorInfo) -> bool {
        self.by_graph.contains_key(info.name.as_str())
    }

    /// Returns the role of a tensor. A matching rule overrides graph and name, and the last matching rule applies.
    pub fn of(&self, info: &TensorInfo) -> Known {
        if !info.dtype.is_weight() {
            return Known::new(Role::Other, Reason::NoWeight);
        }
        let known = self.by_graph.get(info.name.as_str()).copied().unwrap_or_else(|| self.read(info));
        let known = match self.rules.iter().rfind(|rule| rule.patterns.matches(&info.name)) {
            None => known,
            Some(RoleRule { role, axis: Some(axis), .. }) => {
                return Known { role: *role, axis: *axis, why: Reason::Told };
            }
            Some(RoleRule { role, axis: None, .. }) if *role == known.role => Known { why: Reason::Told, ..known },
            Some(RoleRule { role, axis: None, .. }) => Known::new(*role, Reason::Told),
        };
        let is_matrix = known.role == Role::Linear && info.shape.rank() == 2;
        match self.layout {
            Some(WeightLayout::Burn) if is_matrix => Known { axis: OutputAxis::Last, ..known },
            _ => known,
        }
    }

    fn read(&self, info: &TensorInfo) -> Known {
        // Only ASCII letters change, so byte offsets are the same in both strings.
        let lower = info.name.to_ascii_lowercase();
        let name = Name::of(&info.name, &lower);
        let shape = info.shape.0.as_slice();
        let by_leaf = || (name.leaf != "weight").then(|| names::of(name, shape.len())).flatten();
        match *shape {
            [] | [_] => self.vector(name),
            _ if let Some(known) = weight_norm::of(info, &self.near) => self.with_axis(info, known),
            [first, last] => by_leaf().unwrap_or_else(|| self.matrix(name, [first, last])),
            [n, middle, last] => by_leaf()
                .or_else(|| experts::of(name, [n, middle, last], &self.near, &self.family.hidden_sizes))
                .unwrap_or_else(|| self.filters(name, shape)),
            _ if shape.len() <= 5 => by_leaf().unwrap_or_else(|| self.filters(name, shape)),
            _ => Known::new(Role::Other, Reason::ManyExtents),
        }
    }

    fn matrix(&self, name: Name, shape: [usize; 2]) -> Known {
        if name.leaf != "weight" {
            let is_vector = shape.contains(&1);
            let (role, why) =
                if is_vector { (Role::Parameter, Reason::OneExtent) } else { (Role::Unknown, Reason::NoRule) };
            return Known::new(role, why);
        }
        if experts::is_router(name, &self.near) {
            return Known::new(Role::Parameter, Reason::Router);
        }
        matrices::of(name, shape, &self.near, self.conv1d, self.layout.is_some())
    }

    fn filters(&self, name: Name, shape: &[usize]) -> Known {
        let is_transposed = self.family.transposed_layers.contains(name.owner);
        filters::of(name, shape, &self.near, is_transposed)
    }

    /// Adds the output axis of the layer to the directions of a weight norm.
    fn with_axis(&self, info: &TensorInfo, known: Known) -> Known {
        if known.role != Role::Conv {
            return known;
        }
        let weight = format!("{}.weight", weight_norm::layer_of(&info.name));
        let lower = weight.to_ascii_lowercase();
        let filters = self.filters(Name::of(&weight, &lower), &info.shape.0);
        Known { axis: filters.axis, ..known }
    }

    fn vector(&self, name: Name) -> Known {
        let is_bias_of_product = name.leaf == "bias" && matrices::is_product(name.layer());
        if !is_bias_of_product && (name.owners().any(matrices::is_norm) || matrices::is_norm(name.leaf)) {
            return Known::new(Role::Norm, Reason::NormName);
        }
        if self.near.shape(name.owner, "running_mean").is_some() {
            return Known::new(Role::Norm, Reason::RunningStatistics);
        }
        match name.leaf == "bias" || name.leaf.ends_with("_bias") {
            true => Known::new(Role::Bias, Reason::BiasName),
            false => Known::new(Role::Bias, Reason::Vector),
        }
    }
}

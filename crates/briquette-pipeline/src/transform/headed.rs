//! The headers of a model, with its graph and its `config.json`.

mod experts;

use super::changed::cut;
use super::network_edit;
use crate::onnx_network;
use briquette_core::{Error, Result, rows, shown_path};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, WeightLayout};
use briquette_graph::coupling::{Couplings, UnitId};
use briquette_graph::families::shrunk_config::{ConfigChange, with_blocks, without_units};
use briquette_graph::families::{build, family_of};
use briquette_graph::multiply_adds::multiply_adds;
use briquette_graph::onnx::InputDims;
use briquette_graph::shrink::{KeptIndices, Shrunk};
use briquette_graph::ties::heads;
use briquette_graph::{Config, Extents, Graph, Headers, Node, Operand, Weight, WeightId, known_graph_of};
use briquette_recipe::{Recipe, StageKind};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The headers of a model, with its graph and its `config.json`.
#[derive(Debug, Clone)]
pub(super) struct HeadedModel {
    pub(super) infos: Vec<TensorInfo>,
    /// The index in the checkpoint of each tensor.
    pub(super) places: Vec<usize>,
    pub(super) graph: Graph,
    config: Config,
    /// The network of an ONNX model, without weights.
    pub(super) network: Option<Arc<Vec<u8>>>,
    /// The rows that remain of routers, by the tensor's index in the checkpoint.
    kept_rows: BTreeMap<usize, Vec<usize>>,
    /// Keys of `config.json` that changed.
    pub(super) changes: Vec<(String, Value)>,
    /// Why other programs cannot load the model.
    lost: Vec<String>,
}

/// A model without some units.
#[derive(Debug)]
pub(super) struct SmallerModel {
    pub(super) model: HeadedModel,
    /// The indices that remain of each weight of the graph.
    pub(super) kept: Vec<Vec<KeptIndices>>,
    /// Why other programs cannot load the model.
    pub(super) lost: Vec<String>,
}

impl HeadedModel {
    /// Reads the headers of a checkpoint for a stage of this kind.
    ///
    /// # Errors
    /// - Config: weights are stored `[in, out]`.
    /// - Input: no family knows the model.
    pub(super) fn of(checkpoint: &Checkpoint, recipe: &Recipe, config: Config, stage: StageKind) -> Result<Self> {
        let layout = recipe.layout.map(briquette_recipe::raw::RawLayout::said).or_else(|| checkpoint.layout());
        if layout == Some(WeightLayout::Burn) {
            let message =
                "found weights [in, out] in burn's layout, expected [out, in]; export the model to another format";
            return Err(Error::config(message).at(stage));
        }
        let (infos, changes, lost) = (checkpoint.tensors().to_vec(), Vec::new(), Vec::new());
        let (places, kept_rows) = ((0..infos.len()).collect(), BTreeMap::new());
        if checkpoint.network_file().is_some() {
            let network = onnx_network::of(checkpoint)?.filter(|_| stage == StageKind::Shrink).ok_or_else(|| {
                let message =
                    "found an ONNX model, expected a checkpoint of a family; shrink is the only such stage for ONNX";
                Error::config(message).at(stage)
            })?;
            let graph = network_edit::graph_of(&network).map_err(|error| error.at(shown_path(checkpoint.path())))?;
            return Ok(Self {
                infos,
                places,
                graph,
                config,
                network: Some(Arc::new(network)),
                kept_rows,
                changes,
                lost,
            });
        }
        let headers = Headers::new(&infos, None);
        if family_of(&headers, &config).is_none() {
            known_graph_of(checkpoint, &InputDims::default())?;
        }
        let graph = graph_of(&infos, &config).map_err(|error| error.at(shown_path(checkpoint.path())))?;
        Ok(Self { infos, places, graph, config, network: None, kept_rows, changes, lost })
    }

    /// Returns the model with a head that is a tensor of its own, where the head is the table of embeddings.
    ///
    /// # Errors
    /// Config: the family has no other head.
    pub(super) fn with_own_head(self) -> Result<Self> {
        let Some(tied) = heads(&self.graph).first().copied() else { return Ok(self) };
        let weight = &self.graph.weights[tied.0];
        let wrong = || {
            let message = format!("method rotate: the network has no head but its table of embeddings {}", weight.name);
            Error::config(format!("{message}; remove the stage")).at("fold")
        };
        let place = self.infos.iter().position(|info| is_name_of(weight, &info.name)).ok_or_else(wrong)?;
        let is_missing = |name: &&String| !self.infos.iter().any(|info| info.name == name.as_str());
        let (mut infos, mut places) = (self.infos.clone(), self.places.clone());
        if let Some(name) = weight.aliases.iter().find(is_missing) {
            infos.push(TensorInfo::checked(name.clone(), infos[place].dtype, infos[place].shape.0.clone())?);
            places.push(places[place]);
        }
        let values = vec![("tie_word_embeddings".to_string(), Value::Bool(false))];
        let found = self.clone().changed(infos, places, values).ok();
        found.filter(|found| heads(&found.graph).is_empty()).ok_or_else(wrong)
    }

    /// Returns the model without these blocks; later blocks take their names.
    ///
    /// # Errors
    /// Config: a block does not exist, none would be left, or the network needs it.
    pub(super) fn without_blocks(self, dropped: &[usize]) -> Result<Self> {
        let wrong = |message: String| Err(Error::config(message).at("drop_blocks"));
        let (n, dropped) = (self.graph.blocks.len(), dropped.iter().copied().collect::<BTreeSet<usize>>());
        if let Some(block) = dropped.iter().find(|block| **block >= n) {
            return wrong(format!("found block {block}, expected one of the {n} blocks, counted from 0"));
        }
        let chosen: Vec<usize> = (0..n).filter(|block| !dropped.contains(block)).collect();
        if chosen.is_empty() {
            return wrong(format!(
                "found all {n} blocks, expected at most {}; keep at least one block",
                n.saturating_sub(1)
            ));
        }
        let expected = self.graph.with_blocks(&chosen).map_err(|error| error.at("drop_blocks"))?;
        let name_of = |block: usize| format!("{}.", self.graph.blocks[block].name);
        let (mut infos, mut places) = (Vec::new(), Vec::new());
        for (info, &place) in self.infos.iter().zip(&self.places) {
            let own = (0..n).find(|&block| info.name.starts_with(&name_of(block)));
            let renamed = match own {
                None => Some(info.name.to_string()),
                Some(block) => chosen
                    .iter()
                    .position(|other| *other == block)
                    .map(|new| info.name.replacen(&name_of(block), &name_of(new), 1)),
            };
            if let Some(name) = renamed {
                infos.push(TensorInfo::checked(name, info.dtype, info.shape.0.clone())?);
                places.push(place);
            }
        }
        let ConfigChange { values, lost } = with_blocks(&self.config, &chosen, n);
        let mut found = self.changed(infos, places, values)?;
        found.lost.extend(lost);
        match is_equal(&found.graph, &expected) {
            true => Ok(found),
            false => wrong("the network needs one of these blocks as it is; choose others".into()),
        }
    }

    /// Returns the model without these units.
    ///
    /// # Errors
    /// - Config: nothing is left of an axis, or the family would read another network from the smaller tensors.
    pub(super) fn without_units(&self, couplings: &Couplings, removed: &BTreeSet<UnitId>) -> Result<SmallerModel> {
        let Shrunk { graph, kept } = self.graph.without_units(couplings, removed)?;
        let mut infos = self.infos.clone();
        for info in &mut infos {
            let Some(weight) = self.graph.weight(&info.name) else { continue };
            if *info.shape != self.graph.weights[weight.0].shape {
                let message = format!("has shape {}, expected {}", info.shape, self.graph.weights[weight.0].shape);
                return Err(Error::input(message).at(format_args!("tensor {:?}", info.name)));
            }
            *info = TensorInfo::checked(info.name.to_string(), info.dtype, graph.weights[weight.0].shape.0.clone())?;
        }
        let wrong = |reason: &str| {
            let message = format!("the smaller tensors are no valid {} network{reason}", graph.family);
            Err(Error::config(format!("{message}; choose other parts, or another ratio")).at("shrink"))
        };
        let (changed, lost) = match &self.network {
            Some(network) => (self.in_file(network, &graph, infos), Vec::new()),
            None => {
                let ConfigChange { values, lost } = without_units(&self.config, &graph, couplings, removed)?;
                (self.clone().changed(infos, self.places.clone(), values), lost)
            }
        };
        let lost = self.lost.iter().cloned().chain(lost).collect();
        match changed {
            Ok(model) => match first_difference(&model.graph, &graph) {
                None => Ok(SmallerModel { model, kept, lost }),
                Some(node) => wrong(&format!(": node {node:?} differs")),
            },
            // The remedy of the family is for a damaged config.json.
            Err(error) => wrong(&format!(" ({})", error.message.split(';').next().unwrap_or_default())),
        }
    }

    /// Returns the model of an ONNX network with smaller tensors.
    fn in_file(&self, network: &[u8], smaller: &Graph, infos: Vec<TensorInfo>) -> Result<Self> {
        let edited = |other| network_edit::with_tensors(network, [&self.graph, smaller], [&self.infos, &infos], other);
        let other = network_edit::other_graph_of(network)?;
        let mut found = edited(None)?;
        let mut graph = network_edit::graph_of(&found)?;
        if !is_equal(&graph, smaller) {
            found = edited(Some(&other))?;
            graph = network_edit::graph_of(&found)?;
        }
        // An extent that follows from the inputs must do so for other inputs too.
        let new = network_edit::other_graph_of(&found)?;
        if let Some(name) = network_edit::first_unknown(&new, &other) {
            let message =
                format!("node {name:?} mixes removed units with a free extent; export the model with fixed extents");
            return Err(Error::config(message));
        }
        Ok(Self { infos, graph, network: Some(Arc::new(found)), ..self.clone() })
    }

    /// Returns the bytes of all tensors if weights have the shapes of a smaller graph.
    pub(super) fn n_bytes_as(&self, smaller: &Graph) -> u64 {
        let of = |info: &TensorInfo| match self.graph.weight(&info.name) {
            Some(weight) => {
                smaller.weights[weight.0].shape.0.iter().product::<usize>() as u64 * info.dtype.n_bits() as u64 / 8
            }
            None => info.n_bytes() as u64,
        };
        self.infos.iter().map(of).sum()
    }

    /// Returns the indices of a tensor of the checkpoint that remain along each axis, from those that remain in this model.
    pub(super) fn kept_of(&self, place: usize, kept: &[KeptIndices]) -> Vec<KeptIndices> {
        let Some(rows) = self.kept_rows.get(&place) else { return kept.to_vec() };
        let mut all = kept.to_vec();
        if let Some(first) = all.first_mut() {
            *first =
                Some(first.as_ref().map_or_else(|| rows.clone(), |kept| kept.iter().map(|&row| rows[row]).collect()));
        }
        all
    }

    /// Returns the values of a weight in their own order.
    ///
    /// # Errors
    /// - Input: no tensor has the name of the weight.
    /// - Refused: a value is not finite.
    pub(super) fn values(&self, checkpoint: &Checkpoint, id: WeightId) -> Result<Vec<f32>> {
        let weight = &self.graph.weights[id.0];
        let index = self.infos.iter().position(|info| is_name_of(weight, &info.name));
        let Some(index) = index else {
            return Err(Error::input("the checkpoint lacks this tensor").at(&weight.name));
        };
        let (info, place) = (&self.infos[index], self.places[index]);
        let stored = &checkpoint.tensors()[place];
        let mut bytes = vec![0; stored.n_bytes()];
        checkpoint.read(place, 0, &mut bytes)?;
        if self.kept_rows.contains_key(&place) {
            let kept = self.kept_of(place, &vec![None; stored.shape.rank()]);
            bytes = cut(&bytes, &stored.shape.0, &kept, stored.dtype.n_bits() / 8);
        }
        let mut values = vec![0.0; info.n_elements()];
        rows::to_f32(&bytes, info.dtype, &mut values);
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => {
                let message = format!("element {at} is {}, expected a finite number; exclude the tensor", values[at]);
                Err(Error::refused(message).at(format_args!("tensor {:?}", info.name)))
            }
        }
    }

    /// Returns a model with other headers and changed keys.
    fn changed(self, infos: Vec<TensorInfo>, places: Vec<usize>, values: Vec<(String, Value)>) -> Result<Self> {
        let config = self.config.with_values(&values);
        let graph = graph_of(&infos, &config)?;
        let mut changes = self.changes.clone();
        changes.retain(|(key, _)| !values.iter().any(|(new, _)| new == key));
        changes.extend(values);
        Ok(Self { infos, places, graph, config, changes, ..self })
    }
}

/// Returns whether a weight has this name.
pub(super) fn is_name_of(weight: &Weight, name: &str) -> bool {
    weight.name == name || weight.aliases.iter().any(|alias| alias == name)
}

/// Returns the multiply-adds of one example; 0 if the graph is not sound.
pub(super) fn n_multiply_adds(graph: &Graph) -> u64 {
    graph.lower().map_or(0, |lowered| multiply_adds(graph, &lowered).into_iter().fold(0, u64::saturating_add))
}

fn graph_of(infos: &[TensorInfo], config: &Config) -> Result<Graph> {
    let graph = build(&Headers::new(infos, None), config, Extents::default())?;
    graph.ok_or_else(|| Error::input("no family knows the model"))
}

/// Returns whether two graphs have the same operations on the same weights, whatever the names of values.
fn is_equal(a: &Graph, b: &Graph) -> bool {
    first_difference(a, b).is_none()
}

/// Returns the first node with another operation, or other weights, than the node of the second graph.
fn first_difference(a: &Graph, b: &Graph) -> Option<String> {
    let is_same = |left: &Operand, right: &Operand| match (left, right) {
        (Operand::Weight(left), Operand::Weight(right)) => {
            let (left, right) = (&a.weights[left.0], &b.weights[right.0]);
            left.name == right.name && left.shape == right.shape
        }
        (left, right) => matches!((left, right), (Operand::Value(_), Operand::Value(_))),
    };
    let is_same_node = |left: &Node, right: &Node| {
        let are_inputs = left.inputs.iter().zip(&right.inputs).all(|(left, right)| is_same(left, right));
        left.op == right.op && left.inputs.len() == right.inputs.len() && are_inputs
    };
    let pairs = a.nodes.iter().zip(&b.nodes);
    let other = pairs.clone().find(|(left, right)| !is_same_node(left, right)).map(|(_, node)| node.name.clone());
    other.or_else(|| (a.nodes.len() != b.nodes.len()).then(|| "the last".to_string()))
}

//! Layers that read removed units: their weights as rows, and the statistics of their inputs.

use super::groups::ChosenGroup;
use crate::transform::headed::{HeadedModel, is_name_of};
use briquette_core::{Error, InputStats, OutputAxis, Result};
use briquette_formats::input_stats::StatisticsFile;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::coupling::Couplings;
use briquette_graph::pairs::{PairSide, sides};
use briquette_graph::{Composite, Graph, Op, Primitive, Weight, WeightId};

/// Reads weights and statistics of a model.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) model: &'a HeadedModel,
    pub(super) statistics: Option<&'a StatisticsFile>,
}

/// Statistics that a stage needs of a layer's inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needed {
    Sums,
    Gram,
    Importance,
}

/// A weight that reads units, as rows `[out, in]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InputAxis {
    pub(super) weight: WeightId,
    /// The place of the weight in its group.
    pub(super) place: usize,
    /// The axis of its inputs.
    pub(super) axis: usize,
    /// Columns of a row for each index of the axis: positions of a kernel.
    pub(super) inner: usize,
}

impl Reader<'_> {
    fn weight(&self, id: WeightId) -> &Weight {
        &self.model.graph.weights[id.0]
    }

    /// Returns the values of a weight in their own order.
    ///
    /// # Errors
    /// - Input: no tensor has the name of the weight.
    /// - Refused: a value is not finite.
    pub(super) fn values(&self, id: WeightId) -> Result<Vec<f32>> {
        self.model.values(self.checkpoint, id)
    }

    /// Returns the weights of a group whose inputs are its units.
    ///
    /// # Errors
    /// Config: a weight has no rows with statistics, such as experts in one tensor.
    pub(super) fn input_axes(&self, couplings: &Couplings, group: usize) -> Result<Vec<InputAxis>> {
        let (graph, group) = (&self.model.graph, &couplings.groups[group]);
        let mut found: Vec<InputAxis> = Vec::new();
        let inputs = sides(graph, group).into_iter().zip(&group.places).enumerate();
        for (index, (_, place)) in inputs.filter(|(_, (side, _))| *side == PairSide::Inputs) {
            if !sums_inputs(graph, place.weight) {
                continue;
            }
            let weight = self.weight(place.weight);
            let inner = match (weight.layout, place.axis, weight.shape.rank()) {
                (OutputAxis::First, 1, _) => weight.shape.0[2..].iter().product(),
                (OutputAxis::Last, 0, 2) => 1,
                _ => {
                    let message = "its layers have no input statistics of their own; exclude it, or set method = \"l2\" and refit = false";
                    return Err(Error::config(message).at(format_args!("tensor {:?}", weight.name)));
                }
            };
            found.push(InputAxis { weight: place.weight, place: index, axis: place.axis, inner });
        }
        Ok(found)
    }

    /// Returns the number of columns of a weight's rows.
    pub(super) fn n_columns(&self, axis: &InputAxis) -> usize {
        self.weight(axis.weight).shape.0[axis.axis] * axis.inner
    }

    /// Returns the rows `[out, in]` of a weight.
    pub(super) fn rows(&self, axis: &InputAxis) -> Result<Vec<f32>> {
        let values = self.values(axis.weight)?;
        match axis.axis {
            1 => Ok(values),
            _ => Ok(transposed(&values, self.n_columns(axis))),
        }
    }

    /// Returns whether the file has statistics of the inputs of a weight.
    pub(super) fn has_stats(&self, axis: &InputAxis) -> bool {
        self.known_stats(axis).is_some()
    }

    fn known_stats(&self, axis: &InputAxis) -> Option<&InputStats> {
        // Statistics have the names of the checkpoint; a dropped block or expert gives later ones other names.
        let weight = self.weight(axis.weight);
        let indices = (0..self.model.infos.len()).filter(|&index| is_name_of(weight, &self.model.infos[index].name));
        let names = indices.map(|index| self.checkpoint.tensors()[self.model.places[index]].name.as_str());
        let mut layers = names.map(|name| name.strip_suffix(".weight").unwrap_or(name));
        self.statistics.and_then(|file| layers.find_map(|layer| file.layers.get(layer)))
    }

    /// Returns the statistics of the inputs of a weight.
    ///
    /// # Errors
    /// Input: they are missing, have another number of inputs, or lack what is needed.
    pub(super) fn stats(&self, axis: &InputAxis, needed: Needed) -> Result<&InputStats> {
        let weight = self.weight(axis.weight);
        let message = match self.known_stats(axis) {
            None => "the statistics have no inputs of this layer; exclude the tensor, or gather them with `briquette calibrate --gram`".into(),
            Some(stats) if stats.n_inputs() != self.n_columns(axis) => {
                format!("the statistics have {} inputs, expected {}", stats.n_inputs(), self.n_columns(axis))
            }
            Some(stats) if needed == Needed::Gram && stats.gram.is_none() => {
                "the statistics have no Gram matrix, which a refit needs; gather them with `briquette calibrate --gram`".into()
            }
            Some(stats) if needed == Needed::Importance && stats.importance.is_empty() => {
                "the statistics have no importance, which taylor needs; gather them with `briquette calibrate --gradients`".into()
            }
            Some(stats) => return Ok(stats),
        };
        Err(Error::input(message).at(format_args!("tensor {:?}", weight.name)))
    }
}

/// Returns whether a weight multiplies sums of its inputs. Tables and convolutions with groups do not.
fn sums_inputs(graph: &Graph, weight: WeightId) -> bool {
    let mut uses = graph.nodes.iter().filter(|node| node.weights().any(|(_, own)| own == weight));
    uses.any(|node| match &node.op {
        Op::Primitive(Primitive::Conv(settings)) => settings.groups == 1,
        Op::Composite(Composite::Linear | Composite::Experts { .. } | Composite::SeparateExperts { .. }) => true,
        Op::Primitive(Primitive::MatMul { .. }) => true,
        _ => false,
    })
}

/// Returns the transpose of a matrix with `n_rows` rows.
pub(super) fn transposed(values: &[f32], n_rows: usize) -> Vec<f32> {
    let n_columns = values.len() / n_rows.max(1);
    (0..values.len()).map(|at| values[at % n_rows * n_columns + at / n_rows]).collect()
}

/// Checks the statistics of every layer that reads units of the chosen groups.
pub(super) fn check(reader: &Reader, couplings: &Couplings, chosen: &[ChosenGroup], needed: &[Needed]) -> Result<()> {
    for chosen in chosen.iter().filter(|chosen| chosen.n_removed > 0) {
        for axis in reader.input_axes(couplings, chosen.group)? {
            needed.iter().try_for_each(|needed| reader.stats(&axis, *needed).map(drop))?;
        }
    }
    Ok(())
}

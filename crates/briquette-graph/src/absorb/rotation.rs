//! Networks whose residual stream can be rotated, and attention whose values can.
//!
//! An RMS norm commutes with a rotation once the layers that read it have absorbed its weight. So every layer that writes into the
//! stream can rotate its outputs, and every layer that reads a norm of the stream can rotate its inputs back.

use super::SkippedLayer;
use super::scale::{readers_of, units_of};
use super::trace::{Channels, ScaledAxis, Tracer, own_value, own_weight};
use super::uses::ValueUses;
use crate::graph::{Graph, Node, ValueId, WeightId};
use crate::lower::Lowered;
use crate::op::{Composite, ElementFunction, Op, Primitive};
use briquette_core::OutputAxis;
use std::collections::BTreeSet;

/// The weights that a rotation of the residual stream changes.
#[derive(Debug, Clone, PartialEq)]
pub struct RotationPlaces {
    /// The channels of the stream.
    pub width: usize,
    /// Each weight that writes into the stream or reads it, with the axis of the stream's channels.
    pub stream: Vec<(WeightId, usize)>,
    /// The norms of the stream.
    pub norms: Vec<StreamNorm>,
    /// The values of attention, which have rotations of their own.
    pub values: Vec<ValueRotation>,
    /// Attention whose values cannot be rotated.
    pub skipped: Vec<SkippedLayer>,
}

/// A norm of the residual stream, whose weight moves into the layers that read it.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamNorm {
    /// The weight.
    pub weight: WeightId,
    /// Added to the weight when the network runs: 1 for norms of Gemma, else 0.
    pub offset: f64,
    /// The weights that read the norm, with the axis of inputs.
    pub readers: Vec<(WeightId, usize)>,
}

/// The values of an attention.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueRotation {
    /// The channels of a head.
    pub width: usize,
    /// The weights of the layers before and after the attention.
    pub axes: Vec<RotatedAxis>,
}

/// An axis of a weight whose elements are rotated in groups.
#[derive(Debug, Clone, PartialEq)]
pub struct RotatedAxis {
    /// The weight.
    pub weight: WeightId,
    /// The axis.
    pub axis: usize,
    /// The elements of each group, in the order of the channels of a head.
    pub groups: Vec<Vec<usize>>,
}

/// Returns the weights that a rotation of the residual stream changes; else the reason why the stream cannot be rotated.
///
/// # Errors
/// The text names the operation that does not commute with a rotation.
pub fn rotations(graph: &Graph, lowered: &Lowered) -> Result<RotationPlaces, String> {
    let uses = ValueUses::of(graph);
    let tracer = Tracer { graph, lowered, uses: &uses };
    let first = graph.nodes.iter().find(|node| matches!(node.op, Op::Composite(Composite::Embedding)));
    let start = first.and_then(|node| node.outputs.first()).ok_or("it has no table of embeddings")?;
    let mut stream = ResidualStream::new(&tracer, *start);
    stream.follow()?;
    let ResidualStream { width, weights, norms, .. } = stream;
    if norms.is_empty() {
        return Err("no RMS norm reads its residual stream".into());
    }
    let (mut values, mut skipped) = (Vec::new(), Vec::new());
    for node in &graph.nodes {
        let Op::Composite(Composite::Attention(attention)) = &node.op else { continue };
        match values_of(&tracer, node, attention.kv_heads.max(1)) {
            Ok(found) => values.push(found),
            Err(reason) => skipped.push(SkippedLayer { name: node.name.clone(), reason }),
        }
    }
    Ok(RotationPlaces { width, stream: weights, norms, values, skipped })
}

/// The residual stream: values that are sums of the outputs of layers.
struct ResidualStream<'a> {
    tracer: &'a Tracer<'a>,
    width: usize,
    seen: BTreeSet<ValueId>,
    waiting: Vec<ValueId>,
    weights: Vec<(WeightId, usize)>,
    norms: Vec<StreamNorm>,
}

impl<'a> ResidualStream<'a> {
    fn new(tracer: &'a Tracer<'a>, start: ValueId) -> Self {
        let width = tracer.lowered.shapes[start.0].last().copied().unwrap_or(0);
        Self { tracer, width, seen: BTreeSet::new(), waiting: vec![start], weights: Vec::new(), norms: Vec::new() }
    }

    fn follow(&mut self) -> Result<(), String> {
        while let Some(value) = self.waiting.pop() {
            if !self.seen.insert(value) {
                continue;
            }
            let Tracer { graph, lowered, uses } = *self.tracer;
            if uses.is_output(value) {
                return Err("its residual stream is an output of the network".into());
            }
            if lowered.shapes[value.0].last() != Some(&self.width) {
                return Err("its residual stream changes its width".into());
            }
            let maker = uses.maker(graph, value).ok_or("its residual stream is an input of the network")?;
            self.writer(maker)?;
            for &(reader, position) in uses.readers(value) {
                self.reader(&graph.nodes[reader.0], position)?;
            }
        }
        Ok(())
    }

    /// Adds the weights of a node whose output is a part of the stream.
    fn writer(&mut self, node: &Node) -> Result<(), String> {
        match &node.op {
            op if passes(op) => {
                let inputs: Option<Vec<ValueId>> = (0..node.inputs.len()).map(|at| own_value(node, at)).collect();
                self.waiting
                    .extend(inputs.ok_or_else(|| format!("{} adds a weight to its residual stream", node.name))?);
                Ok(())
            }
            Op::Composite(Composite::Embedding) => self.change(node, 0, 1),
            Op::Composite(Composite::Linear) => {
                self.change(node, 1, output_axis_of(self.tracer.graph, node, 1))?;
                if own_weight(node, 2).is_some() { self.change(node, 2, 0) } else { Ok(()) }
            }
            Op::Composite(Composite::Experts { .. }) => self.change(node, 4, 1),
            Op::Composite(Composite::SeparateExperts { .. }) => {
                (4..node.inputs.len()).step_by(3).try_for_each(|position| self.change(node, position, 0))
            }
            op => Err(format!("the output of a {} ({}) joins its residual stream", op.name(), node.name)),
        }
    }

    /// Continues with a node that reads the stream.
    fn reader(&mut self, node: &Node, position: usize) -> Result<(), String> {
        match &node.op {
            op if passes(op) => {
                self.waiting.extend(&node.outputs);
                Ok(())
            }
            Op::Composite(Composite::RmsNorm { offset, .. }) if position == 0 => self.norm(node, *offset),
            op => Err(format!("a {} ({}) reads its residual stream", op.name(), node.name)),
        }
    }

    /// Adds a norm and the weights that read it.
    fn norm(&mut self, node: &Node, offset: f64) -> Result<(), String> {
        let Tracer { graph, uses, .. } = *self.tracer;
        let weight = own_weight(node, 1).ok_or_else(|| format!("{} has no weight", node.name))?;
        let output = node.outputs[0];
        if uses.is_output(output) {
            return Err(format!("the output of {} is an output of the network, which has no head", node.name));
        }
        if uses.is_shared(weight) {
            return Err(format!("several norms share {}", graph.weights[weight.0].name));
        }
        let mut readers = Vec::new();
        for &(reader, position) in uses.readers(output) {
            let reader = &graph.nodes[reader.0];
            let axes = match &reader.op {
                Op::Composite(Composite::Linear) if position == 0 => {
                    vec![(1, 1 - output_axis_of(graph, reader, 1))]
                }
                Op::Composite(Composite::Experts { .. }) if position == 0 => vec![(2, 2), (3, 2)],
                Op::Composite(Composite::SeparateExperts { .. }) if position == 0 => (2..reader.inputs.len())
                    .filter(|position| position % 3 != 1)
                    .map(|position| (position, 1))
                    .collect(),
                op => return Err(format!("a {} ({}) reads the norm {}", op.name(), reader.name, node.name)),
            };
            for (position, axis) in axes {
                self.change(reader, position, axis)?;
                readers.extend(own_weight(reader, position).map(|weight| (weight, axis)));
            }
        }
        self.norms.push(StreamNorm { weight, offset, readers });
        Ok(())
    }

    /// Adds a weight of a node.
    fn change(&mut self, node: &Node, position: usize, axis: usize) -> Result<(), String> {
        let Tracer { graph, uses, .. } = *self.tracer;
        let weight = own_weight(node, position).ok_or_else(|| format!("{} has no weight of its own", node.name))?;
        if uses.is_shared(weight) {
            return Err(format!("several layers share {}", graph.weights[weight.0].name));
        }
        self.weights.push((weight, axis));
        Ok(())
    }
}

/// Returns whether an operation gives the rotated output for rotated inputs.
fn passes(op: &Op) -> bool {
    matches!(op, Op::Primitive(Primitive::Elementwise(ElementFunction::Add) | Primitive::Scale(_)))
}

fn output_axis_of(graph: &Graph, node: &Node, position: usize) -> usize {
    let layout = own_weight(node, position).map(|weight| graph.weights[weight.0].layout);
    usize::from(layout == Some(OutputAxis::Last))
}

/// Returns the weights before and after an attention whose values are rotated.
fn values_of(tracer: &Tracer, node: &Node, kv_heads: usize) -> Result<ValueRotation, String> {
    let output = node.outputs[0];
    let n = tracer.lowered.shapes[output.0].last().copied().unwrap_or(0);
    let (units, n_units) = units_of(tracer, output, n);
    let width = n_units / kv_heads;
    let mut axes = Vec::new();
    for &(reader, position) in tracer.uses.readers(output) {
        let found = readers_of(tracer, reader, position, &units)?;
        axes.extend(found.into_iter().map(|reader| reader.inputs));
    }
    let axis = tracer.lowered.shapes[output.0].len().saturating_sub(1);
    axes.extend(tracer.producers(output, Channels { axis, units: units.into_iter().map(Some).collect() })?);
    if let Some(shared) = axes.iter().find(|axis| tracer.uses.is_shared(axis.weight)) {
        return Err(format!("another layer shares {}", tracer.graph.weights[shared.weight.0].name));
    }
    if axes.iter().any(|axis| axis.norm.is_some() || axis.offset != 0.0) {
        return Err("a norm makes its values".into());
    }
    let rotated = |axis: ScaledAxis| {
        let groups = groups_of(&axis.units, width)?;
        Some(RotatedAxis { weight: axis.weight, axis: axis.axis, groups })
    };
    let axes: Option<Vec<RotatedAxis>> = axes.into_iter().map(rotated).collect();
    Ok(ValueRotation { width, axes: axes.ok_or("its heads have different widths")? })
}

/// Returns the elements of each head in the order of its channels. Heads that share units follow each other.
fn groups_of(units: &[Option<u32>], width: usize) -> Option<Vec<Vec<usize>>> {
    let mut groups: Vec<(u32, Vec<Option<usize>>)> = Vec::new();
    for (element, unit) in units.iter().enumerate() {
        let Some(unit) = unit else { continue };
        let (head, channel) = (unit / width as u32, *unit as usize % width);
        let open = groups.iter_mut().find(|(own, elements)| *own == head && elements[channel].is_none());
        match open {
            Some((_, elements)) => elements[channel] = Some(element),
            None => {
                let mut elements = vec![None; width];
                elements[channel] = Some(element);
                groups.push((head, elements));
            }
        }
    }
    groups.into_iter().map(|(_, elements)| elements.into_iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_groups_even_if_they_share_units_or_are_interleaved() {
        let units = |all: &[i64]| all.iter().map(|unit| u32::try_from(*unit).ok()).collect::<Vec<_>>();
        assert_eq!(groups_of(&units(&[0, 1, 2, 3]), 2), Some(vec![vec![0, 1], vec![2, 3]]));
        assert_eq!(groups_of(&units(&[0, 1, 0, 1, 2, 3]), 2), Some(vec![vec![0, 1], vec![2, 3], vec![4, 5]]));
        assert_eq!(groups_of(&units(&[-1, 2, 0, 3, -1, 1]), 2), Some(vec![vec![1, 3], vec![2, 5]]));
        assert_eq!(groups_of(&units(&[0, 1, 2]), 2), None);
    }
}

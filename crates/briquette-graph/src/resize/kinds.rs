//! Counts of axes of weights, by their use in the graph.

use super::sizes::Sizes;
use crate::graph::{Graph, InputSource, Node, Operand, ValueId, WeightId};
use crate::op::{Composite, Op, Primitive};
use briquette_core::{Error, Result};

/// The meaning of the entries of an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AxisKind {
    /// Words, labels, positions, channels of images: no student changes them.
    Fixed,
    /// Features of hidden states.
    Width,
    /// Features of word embeddings.
    Embedding,
    /// Features of feed-forward layers.
    Inner,
    /// Features of one expert's feed-forward layers.
    ExpertInner,
    /// Features of all heads of queries.
    Queries,
    /// Features of all heads of keys or values.
    Keys,
    /// Features of a head.
    HeadWidth,
    Heads,
    Experts,
    /// Several kinds after one another: fused projections.
    Sum(Vec<AxisKind>),
}

impl AxisKind {
    /// The extent by the sizes of a config.json; `None` if it follows from none.
    pub(super) fn extent(&self, sizes: &Sizes) -> Option<usize> {
        Some(match self {
            Self::Fixed => return None,
            Self::Width => sizes.width,
            Self::Embedding => sizes.embedding,
            Self::Inner => sizes.inner,
            Self::ExpertInner => sizes.expert_inner,
            Self::Queries => sizes.heads.checked_mul(sizes.head_width)?,
            Self::Keys => sizes.key_heads.checked_mul(sizes.head_width)?,
            Self::HeadWidth => sizes.head_width,
            Self::Heads => sizes.heads,
            Self::Experts => sizes.experts,
            Self::Sum(parts) => parts.iter().map(|part| part.extent(sizes)).sum::<Option<usize>>()?,
        })
    }

    pub(super) fn words(&self) -> &'static str {
        match self {
            Self::Fixed => "entries",
            Self::Width => "features of hidden states",
            Self::Embedding => "features of embeddings",
            Self::Inner | Self::ExpertInner => "inner features",
            Self::Queries => "features of queries",
            Self::Keys => "features of keys",
            Self::HeadWidth => "features of a head",
            Self::Heads => "heads",
            Self::Experts => "experts",
            Self::Sum(_) => "features of a fused projection",
        }
    }
}

/// Returns what each axis of each weight counts, matrices as `[out, in]`; `None` for weights that no rule knows.
///
/// # Errors
/// Config: the graph has convolutions of other values than images.
pub(super) fn weight_kinds(graph: &Graph) -> Result<Vec<Option<Vec<AxisKind>>>> {
    let mut walk =
        KindWalk { graph, values: vec![AxisKind::Fixed; graph.values.len()], weights: vec![None; graph.weights.len()] };
    (0..graph.nodes.len()).try_for_each(|index| walk.node(index))?;
    Ok(walk.weights)
}

/// A walk through the nodes in order, with what the last axis (of images, the channels) of each value counts.
struct KindWalk<'g> {
    graph: &'g Graph,
    values: Vec<AxisKind>,
    weights: Vec<Option<Vec<AxisKind>>>,
}

impl KindWalk<'_> {
    fn node(&mut self, index: usize) -> Result<()> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        let input = match node.inputs.first() {
            Some(Operand::Value(value)) => self.values[value.0].clone(),
            _ => AxisKind::Fixed,
        };
        let output = match &node.op {
            Op::Composite(Composite::Linear) => {
                let output = self.linear_output(index);
                self.set(node, 1, vec![output.clone(), input]);
                self.set(node, 2, vec![output.clone()]);
                output
            }
            Op::Composite(Composite::Embedding) => {
                let output = self.table_width(index);
                self.set(node, 0, vec![AxisKind::Fixed, output.clone()]);
                output
            }
            Op::Primitive(Primitive::Conv(_)) => {
                if input != AxisKind::Fixed {
                    return Err(Error::config("its sizes do not follow from keys of config.json"));
                }
                let output = self.use_of(node.outputs[0], false);
                self.set(node, 1, vec![output.clone(), AxisKind::Fixed, AxisKind::Fixed, AxisKind::Fixed]);
                self.set(node, 2, vec![output.clone()]);
                output
            }
            Op::Composite(Composite::HeadNorm { .. }) => {
                self.set(node, 1, vec![AxisKind::HeadWidth]);
                input
            }
            Op::Composite(Composite::Attention(_)) => AxisKind::Queries,
            Op::Composite(Composite::SplitHeads { .. }) => AxisKind::Queries,
            Op::Composite(Composite::SeparateExperts { .. }) => {
                for place in 2..node.inputs.len() {
                    let kinds = [AxisKind::ExpertInner, AxisKind::Width];
                    let is_down = (place - 2) % 3 == 2;
                    self.set(
                        node,
                        place,
                        if is_down { vec![kinds[1].clone(), kinds[0].clone()] } else { kinds.to_vec() },
                    );
                }
                AxisKind::Width
            }
            Op::Primitive(Primitive::Split { .. }) => {
                for output in &node.outputs {
                    self.values[output.0] = self.use_of(*output, false);
                }
                return Ok(());
            }
            _ => {
                self.other(node);
                return Ok(());
            }
        };
        node.outputs.iter().for_each(|value| self.values[value.0] = output.clone());
        Ok(())
    }

    /// Handles operations that keep the last axis: norms, sums, tokens. Their weights have it too.
    fn other(&mut self, node: &Node) {
        let known = node.values().map(|(_, value)| &self.values[value.0]).find(|kind| **kind != AxisKind::Fixed);
        let takes_values = node.values().next().is_some();
        let kind = match known {
            Some(kind) => kind.clone(),
            None if takes_values && node.weights().next().is_none() => AxisKind::Fixed,
            None => self.use_of(node.outputs[0], false),
        };
        for (place, weight) in node.weights() {
            let rank = self.graph.weights[weight.0].shape.0.len();
            let mut kinds = vec![AxisKind::Fixed; rank];
            if let Some(last) = kinds.last_mut() {
                *last = kind.clone();
            }
            self.set(node, place, kinds);
        }
        node.outputs.iter().for_each(|value| self.values[value.0] = kind.clone());
    }

    fn set(&mut self, node: &Node, place: usize, kinds: Vec<AxisKind>) {
        if let Some(Operand::Weight(WeightId(weight))) = node.inputs.get(place) {
            // A table that is also the head keeps the kinds of the table.
            self.weights[*weight].get_or_insert(kinds);
        }
    }

    /// The outputs of a linear layer. Layers may share weights, and a head may have the table of words.
    fn linear_output(&self, index: usize) -> AxisKind {
        let node = &self.graph.nodes[index];
        let known = match node.inputs.get(1) {
            Some(Operand::Weight(weight)) => self.weights[weight.0].as_ref(),
            _ => None,
        };
        match known {
            Some(kinds) => kinds[0].clone(),
            None => self.use_of(node.outputs[0], self.is_in_block(index)),
        }
    }

    fn is_in_block(&self, index: usize) -> bool {
        self.graph.blocks.iter().any(|block| block.nodes.contains(&index))
    }

    /// The columns of a table.
    fn table_width(&self, index: usize) -> AxisKind {
        let node = &self.graph.nodes[index];
        let looks_up_words = |(_, value): (usize, ValueId)| {
            self.graph.inputs.iter().any(|input| input.value == value && input.source == InputSource::TokenIds)
        };
        match node.values().any(looks_up_words) {
            true => AxisKind::Embedding,
            false => self.use_of(node.outputs[0], false),
        }
    }

    /// Returns the meaning of the last axis of a value, by the operations that use it.
    ///
    /// `is_inner` tells whether a linear layer after a function would be the second of a feed-forward block.
    fn use_of(&self, value: ValueId, is_inner: bool) -> AxisKind {
        let users =
            self.graph.nodes.iter().enumerate().filter(|(_, node)| node.values().any(|(_, used)| used == value));
        for (_, node) in users {
            let place = node.inputs.iter().position(|operand| *operand == Operand::Value(value)).unwrap_or(0);
            if let Some(kind) = self.use_by(node, place, value, is_inner) {
                return kind;
            }
        }
        AxisKind::Fixed
    }

    fn use_by(&self, node: &Node, place: usize, value: ValueId, is_inner: bool) -> Option<AxisKind> {
        let onward = |is_inner| Some(self.use_of(node.outputs[0], is_inner)).filter(|kind| *kind != AxisKind::Fixed);
        match &node.op {
            Op::Composite(Composite::Attention(_)) => {
                Some([AxisKind::Queries, AxisKind::Keys, AxisKind::Keys, AxisKind::Heads][place.min(3)].clone())
            }
            Op::Composite(Composite::SplitHeads { parts, .. }) => Some(AxisKind::Sum(vec![AxisKind::Queries; *parts])),
            Op::Primitive(Primitive::Split { .. }) => {
                Some(AxisKind::Sum(node.outputs.iter().map(|part| self.use_of(*part, is_inner)).collect()))
            }
            Op::Composite(Composite::Gate(_)) => Some(AxisKind::Inner),
            Op::Composite(Composite::SeparateExperts { .. }) => {
                Some(if place == 1 { AxisKind::Experts } else { AxisKind::Width })
            }
            Op::Composite(Composite::Linear) => Some(self.input_of(node)),
            Op::Primitive(Primitive::Elementwise(_)) => {
                let other = node.values().find(|(_, other)| *other != value);
                match other.map(|(_, other)| self.values[other.0].clone()) {
                    Some(AxisKind::Fixed) => onward(false),
                    Some(kind) => Some(kind),
                    // A function of one value.
                    None if is_inner && self.feeds_linear(node) => Some(AxisKind::Inner),
                    None => onward(false).or_else(|| self.is_output(node).then_some(AxisKind::Width)),
                }
            }
            _ => onward(is_inner),
        }
    }

    /// The inputs of a linear layer whose input is not known yet: features of words before a head with their table.
    fn input_of(&self, node: &Node) -> AxisKind {
        match node.inputs.get(1) {
            Some(Operand::Weight(weight)) => match &self.weights[weight.0] {
                Some(kinds) => kinds[1].clone(),
                None => AxisKind::Width,
            },
            _ => AxisKind::Width,
        }
    }

    fn feeds_linear(&self, node: &Node) -> bool {
        let takes = |user: &&Node| user.values().any(|(_, value)| node.outputs.contains(&value));
        let is_linear = |user: &Node| matches!(user.op, Op::Composite(Composite::Linear));
        self.graph.nodes.iter().filter(takes).any(is_linear)
    }

    fn is_output(&self, node: &Node) -> bool {
        node.outputs.iter().any(|value| self.graph.outputs.contains(value))
    }
}

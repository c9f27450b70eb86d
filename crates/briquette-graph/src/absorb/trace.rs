//! Follows a value back to the weights that a scale of its channels can be moved into.

use super::uses::ValueUses;
use crate::graph::{Graph, Node, Operand, ValueId, WeightId};
use crate::lower::Lowered;
use crate::op::{Attention, Composite, ElementFunction, Op, PoolWindow, Primitive, Reduction};
use briquette_core::OutputAxis;

/// An axis of a weight whose elements belong to channels of a value.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaledAxis {
    /// The weight.
    pub weight: WeightId,
    /// The axis.
    pub axis: usize,
    /// The channel of each element; none if a scale leaves the element unchanged.
    pub units: Vec<Option<u32>>,
    /// Added to the weight when the network runs: 1 for norms of Gemma, else 0.
    pub offset: f64,
    /// The batch norm between the layer and the value.
    pub norm: Option<NormStatistics>,
}

/// The batch norm after a layer: it multiplies channels by `weight / sqrt(variance + eps)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormStatistics {
    /// The weight.
    pub weight: WeightId,
    /// The running variance.
    pub variance: WeightId,
    /// Added to the variance.
    pub eps: f64,
}

/// The channels of a value.
#[derive(Clone)]
pub(super) struct Channels {
    /// The axis of the value.
    pub(super) axis: usize,
    /// The unit of each element along the axis; none where the scale stays.
    pub(super) units: Vec<Option<u32>>,
}

/// The weights, or the reason why there are none.
type TracedAxes = Result<Vec<ScaledAxis>, String>;

/// Returns the axis of a layer's weight that counts outputs; none if the node is no such layer.
pub(super) fn output_axis(graph: &Graph, node: &Node) -> Option<usize> {
    let weight = &graph.weights[own_weight(node, 1)?.0];
    match &node.op {
        Op::Composite(Composite::Linear) => Some(usize::from(weight.layout == OutputAxis::Last)),
        Op::Primitive(Primitive::Conv(settings)) if !settings.transposed => Some(0),
        Op::Primitive(Primitive::Conv(settings)) if settings.groups == 1 => Some(1),
        _ => None,
    }
}

/// Returns the weight at a position of a node's inputs.
pub(super) fn own_weight(node: &Node, position: usize) -> Option<WeightId> {
    match node.inputs.get(position) {
        Some(Operand::Weight(weight)) => Some(*weight),
        _ => None,
    }
}

/// Returns the value at a position of a node's inputs.
pub(super) fn own_value(node: &Node, position: usize) -> Option<ValueId> {
    match node.inputs.get(position) {
        Some(Operand::Value(value)) => Some(*value),
        _ => None,
    }
}

/// Returns whether an operation has weights that scale its outputs.
fn is_maker(op: &Op) -> bool {
    use Composite::{BatchNorm, GroupNorm, LayerNorm, Linear, RmsNorm};
    match op {
        Op::Composite(op) => {
            matches!(op, Linear | LayerNorm { .. } | RmsNorm { .. } | BatchNorm { .. } | GroupNorm { .. })
        }
        Op::Primitive(op) => matches!(op, Primitive::Conv(_)),
    }
}

/// Returns whether the second axis counts channels, as in images; else the last.
fn counts_second(op: &Op) -> bool {
    matches!(
        op,
        Op::Primitive(Primitive::Conv(_)) | Op::Composite(Composite::BatchNorm { .. } | Composite::GroupNorm { .. })
    )
}

/// Follows values back to the weights that make them.
pub(super) struct Tracer<'a> {
    pub(super) graph: &'a Graph,
    pub(super) lowered: &'a Lowered,
    pub(super) uses: &'a ValueUses,
}

impl Tracer<'_> {
    /// Returns the weights that scale the channels of a value if their elements are divided by the scales.
    ///
    /// Every reader of the value itself must expect the scale; values before it have one reader.
    pub(super) fn producers(&self, value: ValueId, channels: Channels) -> TracedAxes {
        let Some(node) = self.uses.maker(self.graph, value) else { return Err("no layer makes its input".into()) };
        let rank = self.lowered.shapes[value.0].len();
        if is_maker(&node.op) && channels.axis != if counts_second(&node.op) { 1 } else { rank.saturating_sub(1) } {
            return Err(format!("its channels are no axis of the {} before it", node.op.name()));
        }
        if output_axis(self.graph, node).is_some() {
            return self.own_vectors(node, &[1, 2], &channels, None);
        }
        match &node.op {
            Op::Composite(Composite::LayerNorm { .. } | Composite::GroupNorm { .. }) => {
                self.own_vectors(node, &[1, 2], &channels, None)
            }
            Op::Composite(Composite::RmsNorm { offset, .. }) => {
                let mut found = self.own_vectors(node, &[1], &channels, None)?;
                found.iter_mut().for_each(|axis| axis.offset = *offset);
                Ok(found)
            }
            Op::Composite(Composite::BatchNorm { eps }) => self.batch_norm(node, *eps, channels),
            Op::Composite(Composite::Gate(_)) => self.before(node, 1, channels),
            Op::Composite(Composite::Attention(attention)) => self.values_of(node, attention, channels),
            Op::Composite(Composite::SplitHeads { heads, parts }) => {
                self.whole_heads(node, value, [*heads, *parts], channels)
            }
            Op::Primitive(Primitive::Elementwise(ElementFunction::Relu)) if node.inputs.len() == 1 => {
                self.before(node, 0, channels)
            }
            Op::Primitive(Primitive::Scale(_)) => self.before(node, 0, channels),
            Op::Primitive(Primitive::Pool(PoolWindow { .. }) | Primitive::AdaptivePool(_)) => {
                self.before(node, 0, channels)
            }
            Op::Primitive(Primitive::Reduce { axes, kind: Reduction::Mean }) if axes.iter().all(|&axis| axis > 1) => {
                self.before(node, 0, channels)
            }
            Op::Primitive(Primitive::Reshape(_)) if self.only_drops_ones(node) => self.before(node, 0, channels),
            Op::Primitive(Primitive::Split { axis, sizes }) => self.whole_split(node, value, *axis, sizes, channels),
            op => Err(format!("no layer that can absorb a scale makes its input; it is the output of a {}", op.name())),
        }
    }

    /// Continues with an input of a node, which no other node may read.
    fn before(&self, node: &Node, position: usize, channels: Channels) -> TracedAxes {
        match own_value(node, position) {
            Some(value) if self.uses.has_one_reader(value) => self.producers(value, channels),
            _ => Err(format!("other layers read the input of the {} before it", node.op.name())),
        }
    }

    /// Returns the axes of a layer or a norm: of its weight and its bias.
    fn own_vectors(
        &self,
        node: &Node,
        positions: &[usize],
        channels: &Channels,
        norm: Option<NormStatistics>,
    ) -> TracedAxes {
        let mut found = Vec::new();
        for weight in positions.iter().filter_map(|&position| own_weight(node, position)) {
            let (shape, is_matrix) = (&self.graph.weights[weight.0].shape.0, found.is_empty());
            let axis = if is_matrix { output_axis(self.graph, node).unwrap_or(0) } else { 0 };
            if self.uses.is_shared(weight) {
                return Err("the layer before it shares its weights".into());
            }
            if shape.get(axis) != Some(&channels.units.len()) {
                return Err("the layer before it has another number of outputs".into());
            }
            found.push(ScaledAxis { weight, axis, units: channels.units.clone(), offset: 0.0, norm });
        }
        match found.is_empty() {
            true => Err("the norm before it has no weight".into()),
            false => Ok(found),
        }
    }

    /// Moves a scale through a batch norm into the layer before it, or into the norm.
    fn batch_norm(&self, node: &Node, eps: f64, channels: Channels) -> TracedAxes {
        let layer = own_value(node, 0).filter(|&value| self.uses.has_one_reader(value));
        let layer = layer.and_then(|value| self.uses.maker(self.graph, value));
        let statistics = own_weight(node, 1).zip(own_weight(node, 4));
        match (layer.filter(|layer| output_axis(self.graph, layer).is_some()), statistics) {
            (Some(layer), Some((weight, variance))) => {
                let norm = Some(NormStatistics { weight, variance, eps });
                let mut found = self.own_vectors(layer, &[1, 2], &channels, norm)?;
                found.extend(self.own_vectors(node, &[2, 3], &channels, None)?);
                Ok(found)
            }
            _ => self.own_vectors(node, &[1, 2], &channels, None),
        }
    }

    /// Continues with the values of an attention: heads of queries may share them.
    fn values_of(&self, node: &Node, attention: &Attention, channels: Channels) -> TracedAxes {
        let Attention { heads, kv_heads, .. } = *attention;
        let Channels { axis, units } = channels;
        let width = units.len().checked_div(heads).unwrap_or(0);
        let n_shared = heads.checked_div(kv_heads).unwrap_or(0);
        if width * heads != units.len() || n_shared * kv_heads != heads {
            return Err("its heads have different widths".into());
        }
        let mut own = vec![None; kv_heads * width];
        for (element, unit) in units.iter().enumerate() {
            let (head, at) = (element / width, element % width);
            own[head / n_shared * width + at] = *unit;
        }
        self.before(node, 2, Channels { axis, units: own })
    }

    /// Continues with the value that was split, whose other parts keep their scale.
    fn whole_split(&self, node: &Node, part: ValueId, axis: usize, sizes: &[usize], channels: Channels) -> TracedAxes {
        let units = channels.units;
        let index = node.outputs.iter().position(|output| *output == part).unwrap_or(0);
        if axis != channels.axis || sizes.get(index) != Some(&units.len()) {
            return Err("a split of another axis is before it".into());
        }
        let start: usize = sizes[..index].iter().sum();
        let mut own = vec![None; sizes.iter().sum()];
        own[start..start + units.len()].copy_from_slice(&units);
        self.before(node, 0, Channels { axis, units: own })
    }

    /// The same for heads that each have several parts.
    fn whole_heads(&self, node: &Node, part: ValueId, [heads, parts]: [usize; 2], channels: Channels) -> TracedAxes {
        let Channels { axis, units } = channels;
        let index = node.outputs.iter().position(|output| *output == part).unwrap_or(0);
        let width = units.len().checked_div(heads).unwrap_or(0);
        if width * heads != units.len() {
            return Err("its heads have different widths".into());
        }
        let mut own = vec![None; units.len() * parts];
        for (element, unit) in units.iter().enumerate() {
            own[(element / width * parts + index) * width + element % width] = *unit;
        }
        self.before(node, 0, Channels { axis, units: own })
    }

    /// Returns whether a reshape only removes or adds axes of extent 1 at the end.
    fn only_drops_ones(&self, node: &Node) -> bool {
        let trimmed = |value: ValueId| {
            let mut shape = self.lowered.shapes[value.0].clone();
            while shape.len() > 2 && shape.last() == Some(&1) {
                shape.pop();
            }
            shape
        };
        let (from, to) = (own_value(node, 0), node.outputs.first());
        from.zip(to).is_some_and(|(from, to)| trimmed(from) == trimmed(*to))
    }
}

//! Values whose channels can be scaled: the layers that read them are multiplied, the layers before them are divided.

use super::SkippedLayer;
use super::trace::{Channels, ScaledAxis, Tracer, own_weight};
use super::uses::ValueUses;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::lower::Lowered;
use crate::op::{Composite, Op, Primitive};
use briquette_core::OutputAxis;

/// A value whose channels can be scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalePlace {
    /// The name of the first layer that reads the value.
    pub name: String,
    /// The number of channels with a scale of their own.
    pub n_units: usize,
    /// Weights that are divided by the scales, so that the value is.
    pub producers: Vec<ScaledAxis>,
    /// The layers that read the value.
    pub readers: Vec<Reader>,
}

/// A weight that reads the value, and is multiplied by the scales.
#[derive(Debug, Clone, PartialEq)]
pub struct Reader {
    /// The axis of the inputs.
    pub inputs: ScaledAxis,
    /// Whether it belongs to a convolution.
    pub is_conv: bool,
}

/// Returns every value that only linear layers or convolutions read and whose scale other layers can absorb.
///
/// Also returns the linear layers and convolutions without such a value.
pub fn scales(graph: &Graph, lowered: &Lowered) -> (Vec<ScalePlace>, Vec<SkippedLayer>) {
    let uses = ValueUses::of(graph);
    let tracer = Tracer { graph, lowered, uses: &uses };
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for value in (0..graph.values.len()).map(ValueId) {
        let layers: Vec<&Node> =
            uses.readers(value).iter().map(|(node, _)| &graph.nodes[node.0]).filter(|node| is_layer(node)).collect();
        let Some(first) = layers.first() else { continue };
        match place(&tracer, value, &first.name) {
            Ok(place) => found.push(place),
            Err(reason) => {
                let skip = |node: &&Node| SkippedLayer { name: node.name.clone(), reason: reason.clone() };
                skipped.extend(layers.iter().map(skip));
            }
        }
    }
    (found, skipped)
}

fn is_layer(node: &Node) -> bool {
    matches!(node.op, Op::Composite(Composite::Linear) | Op::Primitive(Primitive::Conv(_)))
}

fn place(tracer: &Tracer, value: ValueId, name: &str) -> Result<ScalePlace, String> {
    let Tracer { graph, lowered, uses } = tracer;
    if uses.is_output(value) {
        return Err("its input is an output of the network".into());
    }
    let shape = &lowered.shapes[value.0];
    let is_image = uses.readers(value).iter().any(|(node, _)| is_conv(&graph.nodes[node.0]));
    let n = if is_image { shape.get(1) } else { shape.last() }.copied().unwrap_or(0);
    let (units, n_units) = units_of(tracer, value, n);
    let mut readers = Vec::new();
    for &(node, position) in uses.readers(value) {
        readers.extend(readers_of(tracer, node, position, &units)?);
    }
    let axis = if is_image { 1 } else { shape.len().saturating_sub(1) };
    let channels = Channels { axis, units: units.iter().copied().map(Some).collect() };
    let producers = tracer.producers(value, channels)?;
    if let Some(shared) = readers.iter().find(|reader| uses.is_shared(reader.inputs.weight)) {
        return Err(format!("another layer shares {}", graph.weights[shared.inputs.weight.0].name));
    }
    Ok(ScalePlace { name: name.into(), n_units, producers, readers })
}

fn is_conv(node: &Node) -> bool {
    matches!(node.op, Op::Primitive(Primitive::Conv(_)))
}

/// Returns the unit of each channel: heads of queries that share values share their scales too.
pub(super) fn units_of(tracer: &Tracer, value: ValueId, n: usize) -> (Vec<u32>, usize) {
    let attention = tracer.uses.maker(tracer.graph, value).map(|node| &node.op);
    if let Some(Op::Composite(Composite::Attention(attention))) = attention {
        let (heads, kv_heads) = (attention.heads.max(1), attention.kv_heads.max(1));
        let (width, n_shared) = ((n / heads).max(1), (heads / kv_heads).max(1));
        let unit = |element: usize| (element / width / n_shared * width + element % width) as u32;
        return ((0..n).map(unit).collect(), kv_heads * width);
    }
    ((0..n as u32).collect(), n)
}

/// Returns the weights of a node that multiply a value.
pub(super) fn readers_of(tracer: &Tracer, node: NodeId, position: usize, units: &[u32]) -> Result<Vec<Reader>, String> {
    let node = &tracer.graph.nodes[node.0];
    let wrong = || Err(format!("its input is also the input of a {}", node.op.name()));
    let axes: Vec<(usize, usize)> = match &node.op {
        _ if position != 0 => return wrong(),
        Op::Composite(Composite::Linear) => {
            let Some(weight) = own_weight(node, 1) else { return wrong() };
            let is_last = tracer.graph.weights[weight.0].layout == OutputAxis::Last;
            vec![(1, usize::from(!is_last))]
        }
        Op::Composite(Composite::Experts { .. }) => vec![(2, 2), (3, 2)],
        Op::Composite(Composite::SeparateExperts { .. }) => {
            (2..node.inputs.len()).filter(|position| position % 3 != 1).map(|position| (position, 1)).collect()
        }
        Op::Primitive(Primitive::Conv(settings)) if settings.groups == 1 => {
            vec![(1, usize::from(!settings.transposed))]
        }
        // Each input channel of a depthwise convolution has filters of its own.
        Op::Primitive(Primitive::Conv(settings)) if settings.groups == units.len() && !settings.transposed => {
            vec![(1, 0)]
        }
        _ => return wrong(),
    };
    let reader = |(position, axis): (usize, usize)| {
        let weight = own_weight(node, position).ok_or("a layer has no weight of its own")?;
        let extent = tracer.graph.weights[weight.0].shape.0.get(axis).copied().unwrap_or(0);
        let n_each = extent.checked_div(units.len()).unwrap_or(0);
        if extent == 0 || n_each * units.len() != extent {
            return Err("its input has another number of channels".to_string());
        }
        let units = (0..extent).map(|element| Some(units[element / n_each])).collect();
        let inputs = ScaledAxis { weight, axis, units, offset: 0.0, norm: None };
        Ok(Reader { inputs, is_conv: is_conv(node) })
    };
    axes.into_iter().map(reader).collect()
}

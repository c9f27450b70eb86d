//! Batch norms that the layer before them can absorb.

use super::SkippedLayer;
use super::trace::{output_axis, own_weight};
use super::uses::ValueUses;
use crate::graph::{Graph, Node, Operand, WeightId};
use crate::op::{Composite, Op};

/// A batch norm, and the convolution or linear layer before it.
#[derive(Debug, Clone, PartialEq)]
pub struct NormPlace {
    /// The name of the batch norm.
    pub name: String,
    /// Added to the variance.
    pub eps: f64,
    /// Weight, bias, mean and variance of the norm.
    pub norm: [WeightId; 4],
    /// The weight of the layer.
    pub weight: WeightId,
    /// The axis of the weight that counts outputs.
    pub axis: usize,
    /// The bias of the layer.
    pub bias: Option<WeightId>,
}

/// Returns every batch norm that the layer before it can absorb, and the batch norms that it cannot.
pub fn batch_norms(graph: &Graph) -> (Vec<NormPlace>, Vec<SkippedLayer>) {
    let uses = ValueUses::of(graph);
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for node in &graph.nodes {
        let Op::Composite(Composite::BatchNorm { eps }) = node.op else { continue };
        match place(graph, &uses, node, eps) {
            Ok(place) => found.push(place),
            Err(reason) => skipped.push(SkippedLayer { name: node.name.clone(), reason: reason.into() }),
        }
    }
    (found, skipped)
}

fn place(graph: &Graph, uses: &ValueUses, node: &Node, eps: f64) -> Result<NormPlace, &'static str> {
    const SHARED: &str = "several layers share its weights";
    let &[Operand::Value(x), Operand::Weight(a), Operand::Weight(b), Operand::Weight(c), Operand::Weight(d)] =
        node.inputs.as_slice()
    else {
        return Err("it has no weight and bias of its own");
    };
    let layer = uses.maker(graph, x).ok_or("no layer is before it")?;
    let axis = output_axis(graph, layer).ok_or("no convolution or linear layer is before it")?;
    if !uses.has_one_reader(x) {
        return Err("other layers read the output of the layer before it");
    }
    let weight = own_weight(layer, 1).ok_or("no convolution or linear layer is before it")?;
    let bias = own_weight(layer, 2);
    let norm = [a, b, c, d];
    match norm.into_iter().chain([weight]).chain(bias).any(|weight| uses.is_shared(weight)) {
        true => Err(SHARED),
        false => Ok(NormPlace { name: node.name.clone(), eps, norm, weight, axis, bias }),
    }
}

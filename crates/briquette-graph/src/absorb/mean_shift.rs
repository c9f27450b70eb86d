//! Weights that shift the outputs of a layer by a constant: its bias, or the mean of the batch norm after it.

use super::trace::{output_axis, own_value, own_weight};
use super::uses::ValueUses;
use crate::graph::{Graph, Node, WeightId};
use crate::op::{Composite, Op, Primitive};

/// A layer, and the vector with a number for each of its outputs that shifts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeanShift {
    /// The weight of the layer.
    pub weight: WeightId,
    /// The bias, or the mean of a batch norm.
    pub vector: WeightId,
    /// Whether the vector is subtracted from the outputs, as the mean of a batch norm, instead of added.
    pub is_subtracted: bool,
}

/// Returns every linear layer and convolution whose outputs a vector of their own shifts. Layers that share weights have none.
pub fn mean_shifts(graph: &Graph) -> Vec<MeanShift> {
    let uses = ValueUses::of(graph);
    graph.nodes.iter().filter_map(|node| shift_of(graph, &uses, node)).collect()
}

fn shift_of(graph: &Graph, uses: &ValueUses, node: &Node) -> Option<MeanShift> {
    let is_transposed = matches!(&node.op, Op::Primitive(Primitive::Conv(settings)) if settings.transposed);
    output_axis(graph, node).filter(|_| !is_transposed)?;
    own_value(node, 0)?;
    let weight = own_weight(node, 1)?;
    let (vector, is_subtracted) = match own_weight(node, 2) {
        Some(bias) => (bias, false),
        None => (mean_of_norm(graph, uses, node)?, true),
    };
    let is_own = !uses.is_shared(weight) && !uses.is_shared(vector);
    is_own.then_some(MeanShift { weight, vector, is_subtracted })
}

/// Returns the mean of the batch norm that alone reads the outputs of a layer.
fn mean_of_norm(graph: &Graph, uses: &ValueUses, node: &Node) -> Option<WeightId> {
    let output = *node.outputs.first()?;
    let &[(reader, 0)] = uses.readers(output) else { return None };
    let norm = &graph.nodes[reader.0];
    let is_norm = matches!(norm.op, Op::Composite(Composite::BatchNorm { .. })) && !uses.is_output(output);
    own_weight(norm, 3).filter(|_| is_norm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::ConvSettings;
    use crate::{GraphBuilder, Headers};
    use briquette_core::DType;
    use briquette_formats::TensorInfo;

    #[test]
    fn a_bias_or_the_mean_of_a_batch_norm_shifts_the_outputs_of_a_layer() {
        let tensor =
            |name: &str, shape: &[usize]| TensorInfo::checked(name.into(), DType::F32, shape.to_vec()).unwrap();
        let norm = |name: &str| ["weight", "bias", "running_mean", "running_var"].map(|part| format!("{name}.{part}"));
        let mut tensors = vec![
            tensor("a.weight", &[4, 3, 3, 3]),
            tensor("b.weight", &[4, 4, 1, 1]),
            tensor("c.weight", &[4, 4, 1, 1]),
        ];
        tensors.extend([tensor("b.bias", &[4]), tensor("fc.weight", &[2, 4]), tensor("fc.bias", &[2])]);
        tensors.extend(norm("bn").iter().map(|name| tensor(name, &[4])));
        let headers = Headers::new(&tensors, None);
        let mut to = GraphBuilder::new("small", &headers);
        let x = to.input("images", &[1, 3, 8, 8]);
        let x = to.conv("a", x, ConvSettings::square(1, 1)).unwrap();
        let x = to.batch_norm("bn", x, 1e-5).unwrap();
        let x = to.conv("b", x, ConvSettings::square(1, 0)).unwrap();
        // Nothing shifts the outputs of `c`.
        let x = to.conv("c", x, ConvSettings::square(1, 0)).unwrap();
        let x = to.function("relu", crate::op::ElementFunction::Relu, x);
        let graph = to.finish(&[x]);
        let name = |id: WeightId| graph.weights[id.0].name.as_str();
        let found = mean_shifts(&graph);
        let found: Vec<_> = found.iter().map(|it| (name(it.weight), name(it.vector), it.is_subtracted)).collect();
        assert_eq!(found, [("a.weight", "bn.running_mean", true), ("b.weight", "b.bias", false)]);
    }

    #[test]
    fn shared_weights_and_outputs_that_others_read_are_left_out() {
        let tensor =
            |name: &str, shape: &[usize]| TensorInfo::checked(name.into(), DType::F32, shape.to_vec()).unwrap();
        let tensors = [tensor("a.weight", &[4, 4]), tensor("a.bias", &[4]), tensor("b.weight", &[4, 4])];
        let headers = Headers::new(&tensors, None);
        let mut to = GraphBuilder::new("small", &headers);
        let x = to.input("x", &[1, 4]);
        let y = to.linear("a", x).unwrap();
        let z = to.linear("a", y).unwrap();
        let z = to.linear("b", z).unwrap();
        let graph = to.finish(&[z]);
        assert_eq!(mean_shifts(&graph), []);
    }
}

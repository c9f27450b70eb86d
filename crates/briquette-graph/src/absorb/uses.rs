//! The nodes that make and use each value and each weight.

use crate::graph::{Graph, Node, NodeId, Operand, ValueId, WeightId};

/// The nodes that make and use each value, and the number of uses of each weight.
pub(super) struct ValueUses {
    makers: Vec<Option<NodeId>>,
    readers: Vec<Vec<(NodeId, usize)>>,
    n_uses: Vec<usize>,
    is_output: Vec<bool>,
}

impl ValueUses {
    pub(super) fn of(graph: &Graph) -> Self {
        let n = graph.values.len();
        let mut uses = Self {
            makers: vec![None; n],
            readers: vec![Vec::new(); n],
            n_uses: vec![0; graph.weights.len()],
            is_output: vec![false; n],
        };
        for (index, node) in graph.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|output| uses.makers[output.0] = Some(NodeId(index)));
            for (position, operand) in node.inputs.iter().enumerate() {
                match operand {
                    Operand::Value(value) => uses.readers[value.0].push((NodeId(index), position)),
                    Operand::Weight(weight) => uses.n_uses[weight.0] += 1,
                }
            }
        }
        graph.outputs.iter().for_each(|output| uses.is_output[output.0] = true);
        uses
    }

    /// Returns the node that makes a value; none for an input of the graph.
    pub(super) fn maker<'g>(&self, graph: &'g Graph, value: ValueId) -> Option<&'g Node> {
        self.makers[value.0].map(|node| &graph.nodes[node.0])
    }

    /// Returns the nodes that read a value, with the position of the operand.
    pub(super) fn readers(&self, value: ValueId) -> &[(NodeId, usize)] {
        &self.readers[value.0]
    }

    /// Returns whether a value is an output of the graph.
    pub(super) fn is_output(&self, value: ValueId) -> bool {
        self.is_output[value.0]
    }

    /// Returns whether one node alone reads a value.
    pub(super) fn has_one_reader(&self, value: ValueId) -> bool {
        !self.is_output(value) && self.readers(value).len() == 1
    }

    /// Returns whether several nodes use a weight.
    pub(super) fn is_shared(&self, weight: WeightId) -> bool {
        self.n_uses[weight.0] > 1
    }
}

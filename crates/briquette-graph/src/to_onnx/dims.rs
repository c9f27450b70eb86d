//! Which extents of a network are dynamic: found by building its graph for several examples.

use crate::families::Extents;
use crate::graph::{Graph, NodeId, Operand, ValueId};
use crate::op::{Op, Primitive};
use crate::order::order;
use briquette_core::Result;

/// Extents that a caller may choose, with their names in ONNX.
const SYMBOLS: [&str; 4] = ["batch", "sequence", "height", "width"];
const SEQUENCE: u8 = 1 << 1;

/// An extent of an example, and the symbols that it changes with, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SymbolicDim {
    pub(super) extent: usize,
    symbols: u8,
}

impl SymbolicDim {
    /// An extent that is always the same.
    pub(super) fn fixed(extent: usize) -> Self {
        Self { extent, symbols: 0 }
    }

    /// Whether the extent differs between inputs.
    pub(super) fn is_dynamic(self) -> bool {
        self.symbols != 0
    }

    /// Whether the extent counts the tokens of texts.
    pub(super) fn counts_tokens(self) -> bool {
        self.symbols & SEQUENCE != 0
    }

    /// The name of a dynamic extent that is a symbol itself, such as `batch`.
    pub(super) fn symbol(self) -> Option<&'static str> {
        (0..SYMBOLS.len()).find(|index| self.symbols == 1 << index).map(|index| SYMBOLS[index])
    }
}

/// A graph whose extents are known to be fixed or dynamic.
pub(super) struct SymbolicGraph {
    pub(super) graph: Graph,
    /// The extents of each value.
    values: Vec<Vec<SymbolicDim>>,
    /// The target extents of nodes that reshape or expand.
    targets: Vec<Vec<SymbolicDim>>,
    order: Vec<NodeId>,
}

impl SymbolicGraph {
    /// Builds the graph for an example, and for others that differ in one extent.
    ///
    /// If a graph has other operations for another example, the extent is fixed.
    pub(super) fn new(build: &dyn Fn(Extents) -> Result<Graph>) -> Result<Self> {
        let base = Extents { tokens: 8, ..Extents::default() };
        let [height, width] = base.image;
        let others = [
            Extents { batch: 2, ..base },
            Extents { tokens: 11, ..base },
            Extents { image: [height + 32, width], ..base },
            Extents { image: [height, width + 64], ..base },
        ];
        let graph = build(base)?;
        let fixed = |shape: &Vec<usize>| shape.iter().copied().map(SymbolicDim::fixed).collect();
        let mut values: Vec<Vec<SymbolicDim>> = graph.lower()?.shapes[..graph.values.len()].iter().map(fixed).collect();
        let mut targets: Vec<Vec<SymbolicDim>> = graph.nodes.iter().map(|node| fixed(&target(&node.op))).collect();
        for (symbol, extents) in others.into_iter().enumerate() {
            let other = build(extents)?;
            if !is_same_network(&graph, &other) {
                continue;
            }
            let shapes = other.lower()?.shapes;
            values.iter_mut().zip(&shapes).for_each(|(dims, shape)| mark(dims, shape, symbol));
            let of_nodes = targets.iter_mut().zip(&other.nodes);
            of_nodes.for_each(|(dims, node)| mark(dims, &target(&node.op), symbol));
        }
        let order = order(&graph)?;
        Ok(Self { graph, values, targets, order })
    }

    /// A graph whose extents are all taken for fixed.
    pub(super) fn fixed(graph: Graph) -> Result<Self> {
        let all_fixed = |shape: &Vec<usize>| shape.iter().copied().map(SymbolicDim::fixed).collect();
        let values = graph.lower()?.shapes[..graph.values.len()].iter().map(all_fixed).collect();
        Ok(Self { targets: vec![Vec::new(); graph.nodes.len()], order: Vec::new(), values, graph })
    }

    /// The nodes, each after the nodes that it depends on.
    pub(super) fn order(&self) -> Vec<NodeId> {
        self.order.clone()
    }

    /// The extents of a value.
    pub(super) fn value(&self, value: ValueId) -> &[SymbolicDim] {
        &self.values[value.0]
    }

    /// The extents of a value or weight.
    pub(super) fn operand(&self, operand: Operand) -> Vec<SymbolicDim> {
        match operand {
            Operand::Value(value) => self.values[value.0].clone(),
            Operand::Weight(weight) => {
                self.graph.weights[weight.0].shape.0.iter().copied().map(SymbolicDim::fixed).collect()
            }
        }
    }

    /// The extents that a node reshapes or expands to.
    pub(super) fn target(&self, node: NodeId) -> &[SymbolicDim] {
        &self.targets[node.0]
    }
}

fn target(op: &Op) -> Vec<usize> {
    match op {
        Op::Primitive(Primitive::Reshape(shape) | Primitive::Expand(shape)) => shape.clone(),
        _ => Vec::new(),
    }
}

fn mark(dims: &mut [SymbolicDim], shape: &[usize], symbol: usize) {
    for (dim, extent) in dims.iter_mut().zip(shape) {
        if dim.extent != *extent {
            dim.symbols |= 1 << symbol;
        }
    }
}

/// Whether two graphs differ at most in the extents of values and reshapes.
fn is_same_network(a: &Graph, b: &Graph) -> bool {
    let is_reshape = |op: &Op| matches!(op, Op::Primitive(Primitive::Reshape(_) | Primitive::Expand(_)));
    let is_same_op = |a: &Op, b: &Op| match (is_reshape(a), is_reshape(b)) {
        (true, true) => target(a).len() == target(b).len(),
        _ => a == b,
    };
    a.values == b.values
        && a.outputs == b.outputs
        && a.nodes.len() == b.nodes.len()
        && a.nodes.iter().zip(&b.nodes).all(|(a, b)| {
            (&a.name, &a.inputs, &a.outputs) == (&b.name, &b.inputs, &b.outputs) && is_same_op(&a.op, &b.op)
        })
}

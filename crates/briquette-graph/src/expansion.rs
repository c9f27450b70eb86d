//! Collects the primitives that composites expand to, with the shape of every value.

use crate::graph::{Node, NodeId, Operand, ValueId, Weight};
use crate::op::Primitive;
use crate::shapes::{ShapeError, infer};

/// A primitive, and the node of the graph that it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct PrimitiveStep {
    /// The primitive with its inputs and outputs.
    pub node: Node<Primitive>,
    /// The node that was expanded.
    pub origin: NodeId,
}

/// A misfit with the operand itself.
#[derive(Debug)]
pub(crate) struct Mismatch {
    pub(crate) operand: Option<Operand>,
    pub(crate) message: String,
}

/// Steps and shapes so far, and the node that is being expanded.
pub(crate) struct Expansion<'a> {
    pub(crate) weights: &'a [Weight],
    pub(crate) steps: Vec<PrimitiveStep>,
    /// The shape of each value; empty until its node is expanded.
    pub(crate) shapes: Vec<Option<Vec<usize>>>,
    pub(crate) origin: NodeId,
}

impl Expansion<'_> {
    /// The shape of an operand.
    ///
    /// # Panics
    /// If its node was not expanded yet.
    pub(crate) fn shape(&self, operand: Operand) -> &[usize] {
        match operand {
            Operand::Weight(weight) => &self.weights[weight.0].shape.0,
            Operand::Value(value) => self.shapes[value.0].as_deref().expect("nodes are expanded in order"),
        }
    }

    /// Appends a primitive and returns its outputs.
    pub(crate) fn apply(&mut self, op: Primitive, inputs: &[Operand]) -> Result<Vec<ValueId>, Mismatch> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|operand| self.shape(*operand)).collect();
        let outputs = infer(&op, &shapes).map_err(|ShapeError { operand, message }| {
            let operand = operand.and_then(|at| inputs.get(at)).copied();
            Mismatch { operand, message }
        })?;
        let first = self.shapes.len();
        self.shapes.extend(outputs.into_iter().map(Some));
        let outputs: Vec<ValueId> = (first..self.shapes.len()).map(ValueId).collect();
        let node = Node { name: String::new(), op, inputs: inputs.to_vec(), outputs: outputs.clone() };
        self.steps.push(PrimitiveStep { node, origin: self.origin });
        Ok(outputs)
    }

    /// Appends a primitive with one output.
    pub(crate) fn one(&mut self, op: Primitive, inputs: &[Operand]) -> Result<Operand, Mismatch> {
        Ok(Operand::Value(self.apply(op, inputs)?[0]))
    }

    /// Appends a reshape.
    pub(crate) fn reshape(&mut self, x: Operand, shape: Vec<usize>) -> Result<Operand, Mismatch> {
        self.one(Primitive::Reshape(shape), &[x])
    }

    /// Appends a transpose.
    pub(crate) fn transpose(&mut self, x: Operand, permutation: &[usize]) -> Result<Operand, Mismatch> {
        self.one(Primitive::Transpose(permutation.to_vec()), &[x])
    }
}

/// A mismatch that names an operand.
pub(crate) fn mismatch<T>(operand: Operand, message: String) -> Result<T, Mismatch> {
    Err(Mismatch { operand: Some(operand), message })
}

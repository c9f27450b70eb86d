//! Checks a graph, expands it to primitives and infers the shape of every value.

use crate::expand::expand;
use crate::expansion::{Expansion, Mismatch, PrimitiveStep};
use crate::graph::{Graph, NodeId, Operand, ValueId};
use crate::order::{order, place};
use briquette_core::{Error, Result};

/// A graph as primitives, with the shape of every value.
#[derive(Debug, Clone, PartialEq)]
pub struct Lowered {
    /// The primitives, each after the primitives that it depends on.
    pub steps: Vec<PrimitiveStep>,
    /// The shape of each value. Values of the graph keep their indices; values inside composites follow.
    pub shapes: Vec<Vec<usize>>,
}

impl Graph {
    /// Expands the graph to primitives and infers all shapes.
    ///
    /// This is the validator: a graph that lowers is sound.
    ///
    /// # Errors
    /// GraphInput, in one line:
    /// - A weight or value does not fit its node.
    /// - Nodes form a cycle, or a value is computed twice or never.
    /// - A tensor has more elements than memory can address.
    pub fn lower(&self) -> Result<Lowered> {
        self.check_extents()?;
        let order = order(self)?;
        let mut shapes = vec![None; self.values.len()];
        for input in &self.inputs {
            shapes[input.value.0] = Some(input.shape.clone());
        }
        let mut to = Expansion { weights: &self.weights, steps: Vec::new(), shapes, origin: NodeId(0) };
        for id in order {
            self.lower_node(&mut to, id)?;
        }
        Ok(Lowered { steps: to.steps, shapes: to.shapes.into_iter().map(Option::unwrap_or_default).collect() })
    }

    /// Refuses inputs and weights that are empty or larger than memory can address.
    fn check_extents(&self) -> Result<()> {
        let value = |id: ValueId| self.values.get(id.0).map_or("input", String::as_str);
        let inputs = self.inputs.iter().map(|input| (value(input.value), input.shape.as_slice()));
        let weights = self.weights.iter().map(|weight| (weight.name.as_str(), weight.shape.0.as_slice()));
        for (name, shape) in inputs.chain(weights) {
            let n = shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent));
            let message = match n {
                Some(0) => "is empty",
                Some(n) if n <= isize::MAX as usize / 8 => continue,
                _ => "has more elements than memory can address",
            };
            return Err(Error::input(format!("{shape:?} {message}")).at(name));
        }
        Ok(())
    }

    fn lower_node(&self, to: &mut Expansion, id: NodeId) -> Result<()> {
        let node = &self.nodes[id.0];
        to.origin = id;
        let first = to.steps.len();
        let found = expand(to, &node.op, &node.inputs).map_err(|mismatch| self.error(to, id, mismatch))?;
        if found.len() != node.outputs.len() {
            let message = format!("has {} outputs, expected {}", node.outputs.len(), found.len());
            return Err(Error::input(message).at(place(self, id.0)));
        }
        // The expansion made new values for the results; the graph has ids for them.
        for (inner, outer) in found.iter().zip(&node.outputs) {
            to.shapes[outer.0] = to.shapes[inner.0].take();
            for step in &mut to.steps[first..] {
                rename(&mut step.node.outputs, *inner, *outer);
                for operand in &mut step.node.inputs {
                    if *operand == Operand::Value(*inner) {
                        *operand = Operand::Value(*outer);
                    }
                }
            }
        }
        for step in &mut to.steps[first..] {
            step.node.name.clone_from(&node.name);
        }
        Ok(())
    }

    /// Names the weight or value that does not fit, and its node.
    fn error(&self, to: &Expansion, id: NodeId, Mismatch { operand, message }: Mismatch) -> Error {
        let at = place(self, id.0);
        match operand {
            None => Error::input(message).at(at),
            Some(Operand::Weight(weight)) => {
                let weight = &self.weights[weight.0];
                Error::input(format!("weight {:?} {} does not fit: {message}", weight.name, weight.shape)).at(at)
            }
            Some(Operand::Value(value)) => {
                let name = self.values.get(value.0).map_or("inner value", String::as_str);
                let shape = to.shapes[value.0].as_deref().unwrap_or_default();
                Error::input(format!("input {name:?} {shape:?} does not fit: {message}")).at(at)
            }
        }
    }
}

fn rename(values: &mut [ValueId], from: ValueId, to: ValueId) {
    for value in values.iter_mut().filter(|value| **value == from) {
        *value = to;
    }
}

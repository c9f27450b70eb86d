//! Finds layers that exporters write as several operators: norms and activations.

use crate::graph::{Graph, Node, Operand, ValueId};
use crate::op::{Composite, ElementFunction, NumberFunction, Op, Primitive, Reduction};
use std::f64::consts::SQRT_2;

/// Replaces the last node of each known pattern by the layer. The other nodes stay, and are removed if nothing uses them.
///
/// | pattern | layer |
/// |---|---|
/// | `x · sigmoid(x)` | SiLU |
/// | `x · sigmoid(1.702 x)` | quick GELU |
/// | `x · hard-sigmoid(x)` | hard swish |
/// | `(x / √2 → erf → + 1) · x · 0.5`, in any order of the products | GELU |
/// | `max(x, 0)` and `min(.., 6)` | from `Clip`, see `element_wise` |
/// | a linear layer, then the sum with a vector of its width | a linear layer with a bias |
pub(super) fn recognise(graph: &mut Graph) {
    let producers = producers(graph);
    let Ok(lowered) = graph.lower() else { return };
    for index in 0..graph.nodes.len() {
        let found = Pattern { graph, producers: &producers, shapes: &lowered.shapes }.of(&graph.nodes[index]);
        if let Some((op, inputs)) = found {
            let node = &mut graph.nodes[index];
            (node.op, node.inputs) = (op, inputs);
        }
    }
}

/// The node that computes each value.
fn producers(graph: &Graph) -> Vec<Option<usize>> {
    let mut found = vec![None; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        node.outputs.iter().for_each(|value| found[value.0] = Some(index));
    }
    found
}

struct Pattern<'a> {
    graph: &'a Graph,
    producers: &'a [Option<usize>],
    /// The shape of each value.
    shapes: &'a [Vec<usize>],
}

impl<'a> Pattern<'a> {
    /// Returns the layer that a node ends, with its inputs.
    fn of(&self, node: &Node) -> Option<(Op, Vec<Operand>)> {
        match &node.op {
            Op::Primitive(Primitive::Elementwise(ElementFunction::Mul)) => {
                let &[a, b] = node.inputs.as_slice() else { return None };
                let function = |function| Some((Op::Primitive(Primitive::Elementwise(function)), ()));
                let pairs = [(a, b), (b, a)];
                let gated = pairs.into_iter().find_map(|(x, gate)| Some((x, self.gate(x, gate)?)));
                let gelu =
                    || pairs.into_iter().find_map(|(x, other)| Some((self.gelu(x, other)?, ElementFunction::Gelu)));
                let norm = || pairs.into_iter().find_map(|(x, weight)| self.rms_norm(x, weight));
                match gated.or_else(gelu) {
                    Some((x, found)) => Some((function(found)?.0, vec![x])),
                    None => norm(),
                }
            }
            // GELU may end in its factor one half.
            Op::Primitive(Primitive::Scale(half)) if *half == 0.5 => {
                let (a, b) = self.pair(*node.inputs.first()?, ElementFunction::Mul)?;
                let x = [(a, b), (b, a)].into_iter().find(|(x, other)| self.one_plus_erf(*other) == Some(*x))?.0;
                Some((Op::Primitive(Primitive::Elementwise(ElementFunction::Gelu)), vec![x]))
            }
            Op::Primitive(Primitive::Elementwise(ElementFunction::Add)) => {
                let &[a, b] = node.inputs.as_slice() else { return None };
                [(a, b), (b, a)]
                    .into_iter()
                    .find_map(|(x, bias)| self.biased(x, bias).or_else(|| self.layer_norm(x, bias)))
            }
            _ => None,
        }
    }

    fn node(&self, operand: Operand) -> Option<&'a Node> {
        let Operand::Value(ValueId(value)) = operand else { return None };
        self.graph.nodes.get((*self.producers.get(value)?)?)
    }

    /// The input of a node with this function.
    fn through(&self, operand: Operand, function: ElementFunction) -> Option<Operand> {
        let node = self.node(operand)?;
        (node.op == Op::Primitive(Primitive::Elementwise(function)) && node.inputs.len() == 1).then(|| node.inputs[0])
    }

    /// Both inputs of a node with this function.
    fn pair(&self, operand: Operand, function: ElementFunction) -> Option<(Operand, Operand)> {
        let node = self.node(operand)?;
        let &[a, b] = node.inputs.as_slice() else { return None };
        (node.op == Op::Primitive(Primitive::Elementwise(function))).then_some((a, b))
    }

    /// The input of a product with about this number.
    fn scaled(&self, operand: Operand, expected: f64) -> Option<Operand> {
        let found = match &self.node(operand)?.op {
            Op::Primitive(Primitive::Scale(found)) => *found,
            Op::Primitive(Primitive::Number { function: NumberFunction::DivideBy, number }) => 1.0 / number,
            _ => return None,
        };
        let is_close = (found - expected).abs() < 1e-4 * expected.abs();
        self.node(operand)?.inputs.first().copied().filter(|_| is_close)
    }

    /// The input and the number of a function with a number.
    fn number(&self, operand: Operand, expected: NumberFunction) -> Option<(Operand, f64)> {
        let node = self.node(operand)?;
        match &node.op {
            Op::Primitive(Primitive::Number { function, number }) if *function == expected => {
                Some((*node.inputs.first()?, *number))
            }
            _ => None,
        }
    }

    /// The activation that `x · gate` is.
    fn gate(&self, x: Operand, gate: Operand) -> Option<ElementFunction> {
        if self.through(gate, ElementFunction::HardSigmoid) == Some(x) {
            return Some(ElementFunction::HardSwish);
        }
        match self.through(gate, ElementFunction::Sigmoid)? {
            inner if inner == x => Some(ElementFunction::Silu),
            inner if self.scaled(inner, 1.702) == Some(x) => Some(ElementFunction::QuickGelu),
            _ => None,
        }
    }

    /// The `x` of `1 + erf(x / √2)`.
    fn one_plus_erf(&self, operand: Operand) -> Option<Operand> {
        let (inner, one) = self.number(operand, NumberFunction::Add)?;
        let inner = self.through(inner, ElementFunction::Foreign("Erf")).filter(|_| one == 1.0)?;
        self.scaled(inner, 1.0 / SQRT_2)
    }

    /// The `x` of a product `x · 0.5 · (1 + erf(x / √2))`.
    fn gelu(&self, a: Operand, b: Operand) -> Option<Operand> {
        let halved = self.scaled(a, 0.5);
        let x = self.one_plus_erf(b).or_else(|| self.one_plus_erf(self.scaled(b, 0.5)?))?;
        (halved == Some(x) || (a == x && self.scaled(b, 0.5).is_some())).then_some(x)
    }

    /// A linear layer without a bias, and a vector that is added to it.
    fn biased(&self, product: Operand, bias: Operand) -> Option<(Op, Vec<Operand>)> {
        let (layer, Operand::Weight(vector)) = (self.node(product)?, bias) else { return None };
        let (&[x, weight @ Operand::Weight(matrix)], Op::Composite(Composite::Linear)) =
            (layer.inputs.as_slice(), &layer.op)
        else {
            return None;
        };
        let matrix = &self.graph.weights[matrix.0];
        let n_outputs = matrix.shape.0[usize::from(matrix.layout == briquette_core::OutputAxis::Last)];
        let vector = &self.graph.weights[vector.0];
        // A product that other nodes use too stays a layer of its own, and a layer holds no constants of the graph.
        let n_uses = self.graph.nodes.iter().flat_map(|node| &node.inputs).filter(|input| **input == product).count();
        let is_bias = vector.shape.0 == [n_outputs]
            && n_uses == 1
            && !self.graph.constants.contains_key(&vector.name)
            && !self.graph.outputs.iter().any(|output| Operand::Value(*output) == product);
        is_bias.then(|| (Composite::Linear.into(), vec![x, weight, bias]))
    }

    /// A mean over the last axis, which keeps it.
    fn mean_of(&self, operand: Operand) -> Option<Operand> {
        match &self.node(operand)?.op {
            Op::Primitive(Primitive::Reduce { axes, kind: Reduction::Mean }) => {
                let x = *self.node(operand)?.inputs.first()?;
                let Operand::Value(value) = x else { return None };
                (axes.len() == 1 && axes[0] + 1 == self.shapes[value.0].len()).then_some(x)
            }
            _ => None,
        }
    }

    /// The `x` and `eps` of `sqrt(mean(x²) + eps)`.
    fn root_mean_square(&self, operand: Operand) -> Option<(Operand, f64)> {
        let inner = self.through(operand, ElementFunction::Foreign("Sqrt"))?;
        let (inner, eps) = self.number(inner, NumberFunction::Add)?;
        let mean = self.mean_of(inner)?;
        // `x · x` is the square too.
        let squared = self.through(mean, ElementFunction::Square).or_else(|| {
            let (a, b) = self.pair(mean, ElementFunction::Mul)?;
            (a == b).then_some(a)
        });
        Some((squared?, eps))
    }

    /// The `x` and `eps` of `x / sqrt(mean(x²) + eps)`, or of its product with a reciprocal.
    fn normalized(&self, operand: Operand) -> Option<(Operand, f64)> {
        let quotient = self.pair(operand, ElementFunction::Foreign("Div"));
        if let Some((x, root)) = quotient {
            return self.root_mean_square(root).filter(|(inner, _)| *inner == x);
        }
        let (a, b) = self.pair(operand, ElementFunction::Mul)?;
        let root = |operand| {
            let reciprocal = self.through(operand, ElementFunction::Foreign("Reciprocal"));
            let divided = || self.number(operand, NumberFunction::Divide).filter(|(_, one)| *one == 1.0);
            reciprocal.or_else(|| Some(divided()?.0))
        };
        [(a, b), (b, a)].into_iter().find_map(|(x, other)| {
            let found = root(other).and_then(|root| self.root_mean_square(root))?;
            (found.0 == x).then_some(found)
        })
    }

    /// A vector of the last extent of normalized values.
    fn vector(&self, operand: Operand, normed: Operand) -> Option<()> {
        let (Operand::Weight(weight), Operand::Value(normed)) = (operand, normed) else { return None };
        let width = *self.shapes[normed.0].last()?;
        (self.graph.weights[weight.0].shape.0 == [width]).then_some(())
    }

    /// A root-mean-square norm with its weight.
    fn rms_norm(&self, normed: Operand, weight: Operand) -> Option<(Op, Vec<Operand>)> {
        self.vector(weight, normed)?;
        let (x, eps) = self.normalized(normed)?;
        let is_centred = self.pair(x, ElementFunction::Sub).is_some_and(|(x, mean)| self.mean_of(mean) == Some(x));
        (!is_centred).then(|| (Composite::RmsNorm { eps, offset: 0.0 }.into(), vec![x, weight]))
    }

    /// A layer norm: centred, normalized, scaled and shifted.
    fn layer_norm(&self, scaled: Operand, bias: Operand) -> Option<(Op, Vec<Operand>)> {
        self.vector(bias, scaled)?;
        let (a, b) = self.pair(scaled, ElementFunction::Mul)?;
        let (normed, weight) = if self.vector(a, scaled).is_some() { (b, a) } else { (a, b) };
        self.vector(weight, normed)?;
        let (centred, eps) = self.normalized(normed)?;
        let (x, mean) = self.pair(centred, ElementFunction::Sub)?;
        (self.mean_of(mean) == Some(x)).then(|| (Composite::LayerNorm { eps }.into(), vec![x, weight, bias]))
    }
}

//! Mixtures of experts: each expert computes the tokens that chose it.

use super::emitter::Emitter;
use super::functions::apply;
use super::linear;
use crate::graph::{NodeId, Operand};
use crate::op::{ElementFunction, Routing};
use briquette_core::{OutputAxis, Result};
use briquette_formats::onnx_write::{OnnxAttribute, OnnxType};

/// How a mixture computes.
pub(super) struct Mixture {
    pub(super) routing: Routing,
    pub(super) function: ElementFunction,
}

/// The matrices of an expert: `gate`, `up` and `down`.
type Matrices = [Matrix; 3];

/// A matrix `[out, in]`.
#[derive(Clone, Copy)]
enum Matrix {
    /// A weight of its own.
    Own(Operand),
    /// A part of a weight `[experts, out, in]`.
    Part(Operand, usize),
}

impl Mixture {
    /// `[x, logits, gate, up, down]`, each weight with all experts.
    pub(super) fn stacked(&self, to: &mut Emitter, id: NodeId, inputs: &[Operand]) -> Result<String> {
        let is_turned = |input: &Operand| match input {
            Operand::Weight(weight) => to.symbolic.graph.weights[weight.0].layout == OutputAxis::Last,
            Operand::Value(_) => false,
        };
        if inputs[2..].iter().any(is_turned) {
            return Err(to.refused(id, "found experts [experts, in, out]"));
        }
        let n_experts = to.dims(inputs[2])[0].extent;
        let of = |expert| [2, 3, 4].map(|at| Matrix::Part(inputs[at], expert));
        self.sum(to, id, inputs, &(0..n_experts).map(of).collect::<Vec<_>>())
    }

    /// `[x, logits, gate, up, down, gate, ..]`, a weight for each matrix.
    pub(super) fn separate(&self, to: &mut Emitter, id: NodeId, inputs: &[Operand]) -> Result<String> {
        let of = |own: &[Operand]| [0, 1, 2].map(|at| Matrix::Own(own[at]));
        self.sum(to, id, inputs, &inputs[2..].chunks_exact(3).map(of).collect::<Vec<_>>())
    }

    /// Adds the results of experts to the tokens that chose them.
    fn sum(&self, to: &mut Emitter, id: NodeId, inputs: &[Operand], experts: &[Matrices]) -> Result<String> {
        let x = to.operand(inputs[0]);
        let width = to.dims(inputs[0]).last().map_or(0, |dim| dim.extent);
        let tokens = to.reshape(&x, &[-1, width as i64]);
        let shares = self.shares(to, inputs[1], experts.len());
        let (zero, shape) = (to.number(0.0), to.plain("Shape", &[&tokens]));
        let mut sum = to.plain("Expand", &[&zero, &shape]);
        for (expert, matrices) in experts.iter().enumerate() {
            let index = to.int(expert as i64);
            let own = to.op("Gather", &[&shares, &index], vec![("axis", OnnxAttribute::Int(1))]);
            let places = to.plain("NonZero", &[&own]);
            let places = to.transpose(&places, &[1, 0]);
            let given = to.plain("GatherND", &[&tokens, &places]);
            let result = self.expert(to, id, &given, matrices)?;
            let share = to.plain("GatherND", &[&own, &places]);
            let mut share = to.unsqueeze(&share, &[1]);
            if to.float_type() != OnnxType::F32 {
                share = to.cast(&share, to.float_type());
            }
            let weighed = to.plain("Mul", &[&result, &share]);
            let before = to.plain("GatherND", &[&sum, &places]);
            let after = to.plain("Add", &[&before, &weighed]);
            sum = to.plain("ScatterND", &[&sum, &places, &after]);
        }
        let shape = to.plain("Shape", &[&x]);
        Ok(to.plain("Reshape", &[&sum, &shape]))
    }

    /// The share of each expert for each token in f32, `[tokens, experts]`: 0 for experts that a token did not choose.
    fn shares(&self, to: &mut Emitter, logits: Operand, n_experts: usize) -> String {
        let last = || vec![("axis", OnnxAttribute::Int(1))];
        let logits = to.operand(logits);
        let mut logits = to.reshape(&logits, &[-1, n_experts as i64]);
        if to.float_type() != OnnxType::F32 {
            logits = to.cast(&logits, OnnxType::F32);
        }
        let shares = to.op("Softmax", &[&logits], last());
        let n_chosen = to.ints(&[self.routing.top_k as i64]);
        let largest = to.ops("TopK", &[&shares, &n_chosen], last(), 2);
        let mut chosen = largest[0].clone();
        if self.routing.is_normalized {
            let axes = to.ints(&[1]);
            let total = to.plain("ReduceSum", &[&chosen, &axes]);
            chosen = to.plain("Div", &[&chosen, &total]);
        }
        let (zero, shape) = (to.number_of(OnnxType::F32, 0.0), to.plain("Shape", &[&shares]));
        let zeros = to.plain("Expand", &[&zero, &shape]);
        to.op("ScatterElements", &[&zeros, &largest[1], &chosen], last())
    }

    /// `down(function(gate x) · up x)`.
    fn expert(&self, to: &mut Emitter, id: NodeId, x: &str, [gate, up, down]: &Matrices) -> Result<String> {
        let gated = product(to, id, x, *gate)?;
        let gated = apply(to, id, self.function, &gated)?;
        let inner = product(to, id, x, *up)?;
        let inner = to.plain("Mul", &[&gated, &inner]);
        product(to, id, &inner, *down)
    }
}

fn product(to: &mut Emitter, id: NodeId, x: &str, matrix: Matrix) -> Result<String> {
    match matrix {
        Matrix::Own(Operand::Weight(weight)) => linear::weighted(to, id, x, weight),
        Matrix::Own(value) => {
            let matrix = to.operand(value);
            Ok(turned_product(to, x, &matrix))
        }
        Matrix::Part(all, expert) => {
            let (all, index) = (to.operand(all), to.int(expert as i64));
            let matrix = to.op("Gather", &[&all, &index], vec![("axis", OnnxAttribute::Int(0))]);
            Ok(turned_product(to, x, &matrix))
        }
    }
}

/// `x · Mᵀ`.
fn turned_product(to: &mut Emitter, x: &str, matrix: &str) -> String {
    let turned = to.transpose(matrix, &[1, 0]);
    to.plain("MatMul", &[x, &turned])
}

//! Recurrent layers of ONNX models.

use super::value::AnyTensor;
use briquette_graph::op::{Recurrent, RecurrentCell};
use briquette_ops::fused::{ActivationFunction, activate};
use burn::tensor::Tensor;

/// The weights of one direction.
struct RecurrentDirection {
    /// `[inputs, gates · width]`.
    w: Tensor<2>,
    /// `[width, gates · width]`.
    r: Tensor<2>,
    /// `[1, gates · width]`.
    of_w: Tensor<2>,
    of_r: Tensor<2>,
}

/// Computes a recurrent layer: the states of all tokens, the last state, and the last cell state of an LSTM.
///
/// # Panics
/// If an input is missing or has another shape.
pub(super) fn recurrent(layer: &Recurrent, inputs: Vec<AnyTensor>) -> Vec<AnyTensor> {
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("an input");
    let (x, w, r, bias) = (next().three(), next().three(), next().three(), next().two());
    let states: Vec<Tensor<3>> = inputs.map(AnyTensor::three).collect();
    let [_, all, _] = w.dims();
    let width = all / layer.n_gates();
    let (mut all_tokens, mut last) = (Vec::new(), vec![Vec::new(); states.len()]);
    for (at, is_backward) in layer.is_backward().iter().enumerate() {
        let one = |x: &Tensor<3>| x.clone().narrow(0, at, 1).squeeze_dim::<2>(0);
        let own = bias.clone().narrow(0, at, 1);
        let direction = RecurrentDirection {
            w: one(&w).transpose(),
            r: one(&r).transpose(),
            of_w: own.clone().narrow(1, 0, all),
            of_r: own.narrow(1, all, all),
        };
        let state = states.iter().map(one).collect();
        let (tokens, state) = direction.run(layer.cell, x.clone(), state, width, *is_backward);
        all_tokens.push(tokens);
        state.into_iter().zip(&mut last).for_each(|(state, last)| last.push(state));
    }
    let joined = Tensor::cat(all_tokens, 1);
    let [tokens, directions, batch] = [x.dims()[0], layer.n_directions(), x.dims()[1]];
    let joined = joined.reshape([tokens, directions, batch, width]);
    [joined.into()].into_iter().chain(last.into_iter().map(|parts| Tensor::stack::<3>(parts, 0).into())).collect()
}

impl RecurrentDirection {
    /// Returns the states of all tokens `[tokens, 1, batch · width]`, and the last states.
    fn run(
        &self,
        cell: RecurrentCell,
        x: Tensor<3>,
        mut state: Vec<Tensor<2>>,
        width: usize,
        is_backward: bool,
    ) -> (Tensor<3>, Vec<Tensor<2>>) {
        let [n, batch, inputs] = x.dims();
        // The products of all tokens in one call.
        let products = x.reshape([n * batch, inputs]).matmul(self.w.clone()) + self.of_w.clone();
        let mut tokens = Vec::with_capacity(n);
        for step in 0..n {
            let at = if is_backward { n - 1 - step } else { step };
            let of_x = products.clone().narrow(0, at * batch, batch);
            state = self.step(cell, of_x, state, width);
            tokens.push(state[0].clone().reshape([1, 1, batch * width]));
        }
        if is_backward {
            tokens.reverse();
        }
        (Tensor::cat(tokens, 0), state)
    }

    /// Returns the states after a token; `of_x` is its product with `w`, with the bias.
    fn step(&self, cell: RecurrentCell, of_x: Tensor<2>, mut state: Vec<Tensor<2>>, width: usize) -> Vec<Tensor<2>> {
        let h = state.remove(0);
        let part = |x: &Tensor<2>, at: usize, n: usize| x.clone().narrow(1, at * width, n * width);
        let product = |h: Tensor<2>, at, n| h.matmul(part(&self.r, at, n)) + part(&self.of_r, at, n);
        match cell {
            RecurrentCell::Rnn => vec![tanh(of_x + product(h, 0, 1))],
            RecurrentCell::Gru { resets_product } => {
                let gates = sigmoid(part(&of_x, 0, 2) + product(h.clone(), 0, 2));
                let (update, reset) = (part(&gates, 0, 1), part(&gates, 1, 1));
                let of_h = match resets_product {
                    true => reset * product(h.clone(), 2, 1),
                    false => product(reset * h.clone(), 2, 1),
                };
                let new = tanh(part(&of_x, 2, 1) + of_h);
                vec![new.clone() + update * (h - new)]
            }
            RecurrentCell::Lstm => {
                let gates = of_x + product(h, 0, 4);
                let shares = sigmoid(part(&gates, 0, 3));
                let (input, output, kept) = (part(&shares, 0, 1), part(&shares, 1, 1), part(&shares, 2, 1));
                let c = kept * state.remove(0) + input * tanh(part(&gates, 3, 1));
                vec![output * tanh(c.clone()), c]
            }
        }
    }
}

fn sigmoid(x: Tensor<2>) -> Tensor<2> {
    activate(x, ActivationFunction::Sigmoid)
}

fn tanh(x: Tensor<2>) -> Tensor<2> {
    activate(x, ActivationFunction::Tanh)
}

//! Mixtures of experts: each expert runs only on the tokens that the router sends to it.

use super::functions::apply;
use super::steps::ExpertsCall;
use super::value::BinaryFunction;
use crate::layers::Linear;
use briquette_graph::op::{ElementFunction, Routing};
use burn::tensor::activation::softmax;
use burn::tensor::{FloatDType, IndexingUpdateOp, Int, Tensor, TensorData};

/// Computes `Σ_e share_e · down_e(function(gate_e x) · up_e x)` for tokens `[batch, length, width]`.
///
/// `logits` are `[batch, length, experts]`, and `matrices` are gate, up and down of each expert.
pub(super) fn experts(x: Tensor<3>, logits: Tensor<3>, matrices: &[[&Linear; 3]], call: &ExpertsCall) -> Tensor<3> {
    let ([batch, length, width], n_experts) = (x.dims(), matrices.len());
    let (x, logits) = (x.reshape([batch * length, width]), logits.reshape([batch * length, n_experts]));
    let chosen = ChosenTokens::of(&logits, call.routing.top_k);
    let shares = shares(logits, &chosen, call.routing).cast(FloatDType::from(x.dtype()));
    let mut sum = x.zeros_like();
    for (expert, matrices) in matrices.iter().enumerate() {
        let Some(tokens) = chosen.of_expert(expert, &x.device()) else { continue };
        let found = gated(x.clone().select(0, tokens.clone()), *matrices, call.function);
        let share = shares.clone().narrow(1, expert, 1).select(0, tokens.clone());
        sum = sum.select_assign(0, tokens, found * share, IndexingUpdateOp::Add);
    }
    sum.reshape([batch, length, width])
}

/// Computes `down(function(gate x) · up x)`.
fn gated(x: Tensor<2>, [gate, up, down]: [&Linear; 3], function: ElementFunction) -> Tensor<2> {
    let opened = apply(function, gate.forward(x.clone()).into());
    down.forward(opened.zip(up.forward(x).into(), BinaryFunction::Mul).two())
}

/// Returns the share of each expert, `[tokens, experts]`; of experts that are not chosen, it is not used.
fn shares(logits: Tensor<2>, chosen: &ChosenTokens, routing: Routing) -> Tensor<2> {
    let shares = softmax(logits.cast(FloatDType::F32), 1);
    if !routing.is_normalized {
        return shares;
    }
    let mask = Tensor::<2>::from_data(chosen.mask(), (&shares.device(), shares.dtype()));
    let shares = shares * mask;
    shares.clone() / shares.sum_dim(1)
}

/// The tokens of each expert, ascending.
struct ChosenTokens {
    n_tokens: usize,
    by_expert: Vec<Vec<i64>>,
}

impl ChosenTokens {
    /// Sends each token to the experts of its `top_k` largest logits. Of equal logits the first wins.
    fn of(logits: &Tensor<2>, top_k: usize) -> Self {
        let [n_tokens, n_experts] = logits.dims();
        let logits = logits.clone().cast(FloatDType::F32).into_data();
        let logits = logits.try_into_vec_as::<f32>().expect("logits in f32");
        let mut by_expert = vec![Vec::new(); n_experts];
        for (token, logits) in logits.chunks_exact(n_experts).enumerate() {
            let mut order: Vec<usize> = (0..n_experts).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            for &expert in &order[..top_k] {
                by_expert[expert].push(token as i64);
            }
        }
        Self { n_tokens, by_expert }
    }

    /// Returns the tokens of an expert; `None` if no token chose it.
    fn of_expert(&self, expert: usize, device: &burn::tensor::Device) -> Option<Tensor<1, Int>> {
        let tokens = &self.by_expert[expert];
        let data = || TensorData::new(tokens.clone(), [tokens.len()]);
        (!tokens.is_empty()).then(|| Tensor::from_data(data(), device))
    }

    /// Returns 1 where a token chose an expert, `[tokens, experts]`.
    fn mask(&self) -> TensorData {
        let n_experts = self.by_expert.len();
        let mut mask = vec![0.0_f32; self.n_tokens * n_experts];
        for (expert, tokens) in self.by_expert.iter().enumerate() {
            tokens.iter().for_each(|&token| mask[token as usize * n_experts + expert] = 1.0);
        }
        TensorData::new(mask, [self.n_tokens, n_experts])
    }
}

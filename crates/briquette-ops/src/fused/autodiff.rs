//! The fused operations with autodiff.

use crate::fused::ops::{AttentionHeads, FusedGrads, FusedOps};
use crate::fused::record::{Again, record, record_kept};
use briquette_cpu::float::{ActivationFunction, RotaryTable};
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use std::marker::PhantomData;
use std::sync::Arc;

impl<B: FusedOps + FusedGrads, C: CheckpointStrategy> FusedOps for Autodiff<B, C> {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<B, C, 1>([x], |[x]| B::fused_gelu(x), |[x], dy| [B::gelu_grad(x, dy)])
    }

    fn fused_activation(x: FloatTensor<Self>, function: ActivationFunction) -> FloatTensor<Self> {
        let forward = move |[x]: [_; 1]| B::fused_activation(x, function);
        record::<B, C, 1>([x], forward, move |[x], dy| [B::activation_grad(x, function, dy)])
    }

    fn fused_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let forward = move |[x, gamma, beta]: [_; 3]| B::fused_norm(x, gamma, beta, epsilon);
        record::<B, C, 3>([x, gamma, beta], forward, move |[x, gamma, _], dy| B::norm_grads(x, gamma, epsilon, dy))
    }

    /// The sum is a separate operation here, so that the norm stores the sum and not both summands.
    fn fused_add_norm(
        x: FloatTensor<Self>,
        shortcut: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        Self::fused_norm(Self::float_add(x, shortcut), gamma, beta, epsilon)
    }

    fn fused_rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        let forward = move |[x, gamma]: [_; 2]| B::fused_rms_norm(x, gamma, epsilon);
        record::<B, C, 2>([x, gamma], forward, move |[x, gamma], dy| B::rms_norm_grads(x, gamma, epsilon, dy))
    }

    fn fused_swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let forward = |[gate, up]: [_; 2]| B::fused_swiglu(gate, up);
        record::<B, C, 2>([gate, up], forward, |[gate, up], dy| B::swiglu_grads(gate, up, dy))
    }

    fn fused_rotate(x: FloatTensor<Self>, n_heads: usize, turns: Arc<RotaryTable>) -> FloatTensor<Self> {
        let node = x.node();
        let forward = {
            let turns = Arc::clone(&turns);
            move |[x]: [_; 1]| B::fused_rotate(x, n_heads, Arc::clone(&turns))
        };
        let again = Again::<B, _, 1> { inputs: [node.id()], forward: forward.clone(), backend: PhantomData };
        let step = RotateStep.prepare::<C>([node]).memory_bound().retro_forward(again).parents([&x]);
        let y = forward([x.into_primitive()]);
        match step.stateful() {
            OpsKind::Tracked(step) => step.finish((n_heads, turns), y),
            OpsKind::UnTracked(step) => step.finish(y),
        }
    }

    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        heads: AttentionHeads,
    ) -> FloatTensor<Self> {
        let of_grads = heads.clone();
        let forward = move |[q, k, v]: [_; 3]| B::fused_attention(q, k, v, heads.clone());
        record_kept::<B, C, 3>([q, k, v], forward, move |qkv, dy| B::attention_grads(qkv, &of_grads, dy))
    }
}

/// The gradient of a rotation: the reverse rotation, which does not need the input.
#[derive(Debug)]
struct RotateStep;

impl<B: FusedOps> Backward<B, 1> for RotateStep {
    type State = (usize, Arc<RotaryTable>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (n_heads, turns) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |dy| B::fused_rotate(dy, n_heads, Arc::new(turns.reversed())));
    }
}

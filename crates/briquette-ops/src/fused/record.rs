//! Recording operations for autodiff, with recomputation of outputs that are not stored.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use std::fmt;
use std::marker::PhantomData;

/// Records `forward` with the function `grads` of the inputs and the output's gradient.
///
/// With gradient checkpointing, the output is recomputed instead of stored.
pub(crate) fn record<B: Backend, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    forward: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B> + Clone + Send + Sync + 'static,
    grads: impl Fn([FloatTensor<B>; N], FloatTensor<B>) -> [FloatTensor<B>; N] + Send + 'static,
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = inputs.each_ref().map(|input| input.node());
    let again = Again::<B, _, N> {
        inputs: nodes.each_ref().map(|node| node.id()),
        forward: forward.clone(),
        backend: PhantomData,
    };
    let step = FusedStep { grads }.prepare::<C>(nodes).memory_bound().retro_forward(again).parents(&inputs);
    finish(step.stateful(), inputs, forward)
}

/// Like [`record`], for operations that take too long to recompute.
pub(crate) fn record_kept<B: Backend, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    forward: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
    grads: impl Fn([FloatTensor<B>; N], FloatTensor<B>) -> [FloatTensor<B>; N] + Send + 'static,
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = inputs.each_ref().map(|input| input.node());
    finish(FusedStep { grads }.prepare::<C>(nodes).compute_bound().stateful(), inputs, forward)
}

fn finish<B: Backend, C: CheckpointStrategy, G, const N: usize>(
    step: OpsKind<FusedStep<G>, B, [NodeId; N], C, N>,
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    forward: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>>
where
    FusedStep<G>: Backward<B, N, State = [NodeId; N]>,
{
    match step {
        OpsKind::Tracked(mut step) => {
            let state = inputs.each_ref().map(|input| step.checkpoint(input));
            step.finish(state, forward(inputs.map(|input| input.into_primitive())))
        }
        OpsKind::UnTracked(step) => step.finish(forward(inputs.map(|input| input.into_primitive()))),
    }
}

/// Recomputes an output.
pub(crate) struct Again<B, F, const N: usize> {
    pub(crate) inputs: [NodeId; N],
    pub(crate) forward: F,
    pub(crate) backend: PhantomData<B>,
}

impl<B, F, const N: usize> fmt::Debug for Again<B, F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Again").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl<B: Backend, F, const N: usize> RetroForward for Again<B, F, N>
where
    F: Fn([FloatTensor<B>; N]) -> FloatTensor<B> + Send + 'static,
{
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let inputs = self.inputs.map(|input| states.get_state::<FloatTensor<B>>(&input));
        states.save(out_node, (self.forward)(inputs));
    }
}

/// The backward step of an operation whose inputs are stored.
struct FusedStep<G> {
    grads: G,
}

impl<G> fmt::Debug for FusedStep<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FusedStep")
    }
}

impl<B: Backend, G, const N: usize> Backward<B, N> for FusedStep<G>
where
    G: Fn([FloatTensor<B>; N], FloatTensor<B>) -> [FloatTensor<B>; N] + Send + 'static,
{
    type State = [NodeId; N];

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let inputs = ops.state.map(|input| checkpointer.retrieve_node_output::<FloatTensor<B>>(input));
        for (node, grad) in ops.parents.into_iter().zip((self.grads)(inputs, dy)) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

//! Computes gradients of a text model block by block.
//!
//! The weights and gradients of one block are in memory at a time, and the hidden states between all blocks.

use super::states::States;
use super::{BlockPart, LayerwiseRunner, Room};
use crate::outputs::ItemProgress;
use crate::samples::TokenBatch;
use briquette_core::{Error, Result};
use briquette_formats::TensorSource;
use briquette_models::{GraphNet, still};
use briquette_nn::NameMap;
use burn::tensor::{Device, Gradients, Tensor};
use std::ops::Range;

/// The loss of a backward pass, and the use of its gradients.
pub(crate) trait Backwards {
    /// Returns the token ranges of a batch whose losses are computed together.
    fn parts(&self, network: &GraphNet, length: usize) -> Vec<Range<usize>>;

    /// Returns the loss of some tokens of a batch, from the head's inputs.
    ///
    /// # Errors
    /// Io: the device cannot be read.
    fn loss(&self, network: &GraphNet, left: Tensor<3>, batch: &TokenBatch, tokens: Range<usize>) -> Result<Tensor<1>>;

    /// Receives the gradients of a network's parameters.
    ///
    /// # Errors
    /// Io: the device cannot be read.
    fn see(&mut self, network: &GraphNet, names: &NameMap, gradients: &Gradients) -> Result<()>;
}

/// Runs all blocks forward from the first, then backward from the losses to the inputs of the first block.
///
/// Gradients are computed on the run's device.
///
/// # Errors
/// - See [`LayerwiseRunner::advance`].
/// - The first error of `how`.
pub(crate) fn backward(
    mut runner: LayerwiseRunner,
    weights: &dyn TensorSource,
    room: Room,
    how: &mut dyn Backwards,
    progress: ItemProgress,
) -> Result<()> {
    let (n_blocks, n_batches) = (runner.n_blocks(), runner.n_batches());
    let room = Room { max_bytes: room.max_bytes.map(|bytes| bytes / (n_blocks as u64 + 2)), ..room };
    let (mut before, mut n_done) = (Vec::with_capacity(n_blocks), 0);
    let mut after = |_, _| {
        n_done += 1;
        progress(n_done, (2 * n_blocks + 2) * n_batches)
    };
    while runner.next_block().is_some() {
        let mut states = States::with_room(room);
        (0..n_batches).try_for_each(|batch| states.set(batch, runner.state(batch)?))?;
        before.push(states);
        runner.advance(weights, &mut after)?;
    }
    let mut pass =
        BackwardPass { device: runner.device.clone().autodiff(), towards: States::with_room(room), runner, how };
    pass.exit(weights, &mut after)?;
    while let Some(states) = before.pop() {
        pass.block(weights, before.len(), &states, &mut after)?;
    }
    pass.entry(weights, &mut after)
}

/// The backward pass through a network.
struct BackwardPass<'w, 'h> {
    runner: LayerwiseRunner<'w>,
    device: Device,
    /// The gradient of each batch at the current boundary between blocks.
    towards: States,
    how: &'h mut dyn Backwards,
}

impl BackwardPass<'_, '_> {
    fn exit(&mut self, weights: &dyn TensorSource, after: ItemProgress) -> Result<()> {
        let (network, names) = self.network(weights, BlockPart::Exit)?;
        for batch in 0..self.runner.n_batches() {
            let (state, tokens) = (self.runner.state(batch)?, &self.runner.batches[batch]);
            let mut towards = Vec::new();
            for part in self.how.parts(&network, tokens.length()) {
                let leaf = leaf(state.clone().narrow(1, part.start, part.len()));
                let left = self.runner.blocks(&network)?.leave(leaf.clone());
                let gradients = self.how.loss(&network, left, tokens, part)?.backward();
                self.how.see(&network, &names, &gradients)?;
                towards.push(gradient_of(&leaf, &gradients)?);
            }
            self.towards.set(batch, Tensor::cat(towards, 1))?;
            self.runner.check_memory("in the backward pass")?;
            after(batch, 0)?;
        }
        Ok(())
    }

    fn block(&mut self, weights: &dyn TensorSource, index: usize, before: &States, after: ItemProgress) -> Result<()> {
        let (network, names) = self.network(weights, BlockPart::Block(index))?;
        for batch in 0..self.runner.n_batches() {
            let leaf = leaf(self.runner.shaped(batch, before.get(batch)?));
            let (_, padding) = self.runner.batches[batch].to_tensors(&self.device);
            let left = self.runner.blocks(&network)?.block(index, leaf.clone(), padding);
            let gradients = self.toward(batch, left)?;
            self.how.see(&network, &names, &gradients)?;
            self.towards.set(batch, gradient_of(&leaf, &gradients)?)?;
            self.runner.check_memory("in the backward pass")?;
            after(batch, 0)?;
        }
        Ok(())
    }

    fn entry(&mut self, weights: &dyn TensorSource, after: ItemProgress) -> Result<()> {
        let (network, names) = self.network(weights, BlockPart::Entry)?;
        for batch in 0..self.runner.n_batches() {
            let (tokens, padding) = self.runner.batches[batch].to_tensors(&self.device);
            let gradients = self.toward(batch, self.runner.blocks(&network)?.enter(tokens, padding))?;
            self.how.see(&network, &names, &gradients)?;
            self.runner.check_memory("in the backward pass")?;
            after(batch, 0)?;
        }
        Ok(())
    }

    /// Returns the network with the weights of one part, with gradients enabled.
    fn network(&self, weights: &dyn TensorSource, part: BlockPart) -> Result<(GraphNet, NameMap)> {
        let (network, names) = self.runner.network_on(weights, part, &self.device)?;
        Ok((still(network), names))
    }

    /// Returns the gradients upstream of a hidden state, from the gradient of that state.
    fn toward(&self, batch: usize, state: Tensor<3>) -> Result<Gradients> {
        let towards = self.runner.shaped(batch, self.towards.get(batch)?);
        Ok((state * Tensor::from_inner(towards)).sum().backward())
    }
}

/// Returns a hidden state that is a leaf of the autodiff graph.
fn leaf(state: Tensor<3>) -> Tensor<3> {
    Tensor::from_inner(state).require_grad()
}

fn gradient_of(leaf: &Tensor<3>, gradients: &Gradients) -> Result<Tensor<3>> {
    leaf.grad(gradients).ok_or_else(|| Error::bug("a state without a gradient"))
}

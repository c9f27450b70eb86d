//! Computes gradients of a model block by block.
//!
//! The weights and gradients of one block are in memory at a time, and the values between all blocks.

use super::states::States;
use super::{BlockPart, LayerwiseRunner, Room};
use crate::outputs::ItemProgress;
use crate::samples::RunBatch;
use briquette_core::{Error, Result};
use briquette_formats::TensorSource;
use briquette_models::graph_net::AnyTensor;
use briquette_models::{BlockState, GraphNet, still};
use briquette_nn::NameMap;
use burn::tensor::{Device, Gradients, Tensor};
use std::ops::Range;

/// The loss of a backward pass, and the use of its gradients.
pub(crate) trait Backwards {
    /// Returns the token ranges of a batch whose losses are computed together.
    fn parts(&self, network: &GraphNet, length: usize) -> Vec<Range<usize>>;

    /// Returns the loss of some tokens of a batch, from the head's inputs or a classifier's logits.
    ///
    /// # Errors
    /// Io: the device cannot be read.
    fn loss(&self, network: &GraphNet, left: AnyTensor, batch: &RunBatch, tokens: Range<usize>) -> Result<Tensor<1>>;

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
/// - Refused: the gradients of one part exceed the memory limit.
/// - See [`LayerwiseRunner::advance`].
/// - The first error of `how`.
pub(crate) fn backward(
    mut runner: LayerwiseRunner,
    weights: &dyn TensorSource,
    room: Room,
    how: &mut dyn Backwards,
    progress: ItemProgress,
) -> Result<()> {
    runner.check_gradients()?;
    let (n_blocks, n_batches) = (runner.n_blocks(), runner.n_batches());
    let room = Room { max_bytes: room.max_bytes.map(|bytes| bytes / (n_blocks as u64 + 2)), ..room };
    let (mut before, mut n_done) = (Vec::with_capacity(n_blocks), 0);
    let mut after = |_, _| {
        n_done += 1;
        progress(n_done, (2 * n_blocks + 2) * n_batches)
    };
    while runner.next_block().is_some() {
        let mut states = States::with_room(room);
        (0..n_batches).try_for_each(|batch| states.copy_from(batch, &runner.states))?;
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
            let (mut towards, parts) = (Vec::new(), self.how.parts(&network, tokens.length()));
            let n_parts = parts.len();
            for part in parts {
                let leaves = if n_parts == 1 { state.clone() } else { state.clone().positions(part.clone()) }.leaves();
                let left = network.leave(leaves.clone());
                let gradients = self.how.loss(&network, left, tokens, part)?.backward();
                self.how.see(&network, &names, &gradients)?;
                towards.push(leaves.gradients(&gradients));
            }
            self.towards.set(batch, &joined(towards))?;
            self.runner.check_memory("in the backward pass")?;
            after(batch, 0)?;
        }
        Ok(())
    }

    fn block(&mut self, weights: &dyn TensorSource, index: usize, before: &States, after: ItemProgress) -> Result<()> {
        let (network, names) = self.network(weights, BlockPart::Block(index))?;
        for batch in 0..self.runner.n_batches() {
            let leaves = before.get(batch, &self.runner.device)?.leaves();
            let inputs = self.runner.batches[batch].inputs(&self.device)?;
            let left = network.block(index, leaves.clone(), &inputs);
            let gradients = self.toward(batch, left)?;
            self.how.see(&network, &names, &gradients)?;
            self.towards.set(batch, &leaves.gradients(&gradients))?;
            self.runner.check_memory("in the backward pass")?;
            after(batch, 0)?;
        }
        Ok(())
    }

    fn entry(&mut self, weights: &dyn TensorSource, after: ItemProgress) -> Result<()> {
        let (network, names) = self.network(weights, BlockPart::Entry)?;
        if names.parameters(&network)?.iter().all(|it| self.runner.part_of(&names.file_name(it)) != BlockPart::Entry) {
            return Ok(());
        }
        for batch in 0..self.runner.n_batches() {
            let inputs = self.runner.batches[batch].clone().read(&self.device)?;
            let inputs = inputs.ok_or_else(|| Error::input("images that decoded before do not decode now"))?;
            let gradients = self.toward(batch, network.enter(&inputs))?;
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

    /// Returns the gradients upstream of a state, from the gradients of that state.
    fn toward(&self, batch: usize, state: BlockState) -> Result<Gradients> {
        Ok(state.dot(self.towards.get(batch, &self.runner.device)?)?.backward())
    }
}

/// Joins the gradients of consecutive positions.
fn joined(mut parts: Vec<BlockState>) -> BlockState {
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts.into_iter().map(BlockState::hidden).collect(), 1).into(),
    }
}

//! Gradients of a model of text, block by block: the weights of one block and their gradients are in memory at a time, and what lies
//! between all blocks.

use super::states::States;
use super::{BlockPart, LayerwiseRunner, Room};
use crate::outputs::ItemProgress;
use crate::samples::TokenBatch;
use briquette_core::{Error, Result};
use briquette_formats::TensorSource;
use briquette_models::{Network, still};
use briquette_nn::NameMap;
use burn::tensor::{Device, Gradients, Tensor};
use std::ops::Range;

/// What to do with gradients on their way.
pub(crate) trait Backwards {
    /// The tokens of a batch whose losses are found together, of so many.
    fn parts(&self, network: &Network, length: usize) -> Vec<Range<usize>>;

    /// The loss of some tokens of a batch, by what the network's head takes of them.
    ///
    /// # Errors
    /// Those of reading from the device.
    fn loss(&self, network: &Network, left: Tensor<3>, batch: &TokenBatch, tokens: Range<usize>) -> Result<Tensor<1>>;

    /// Looks at the gradients of a network's parameters.
    ///
    /// # Errors
    /// Those of reading from the device.
    fn see(&mut self, network: &Network, names: &NameMap, gradients: &Gradients) -> Result<()>;
}

/// Runs all blocks of a walk that is at its first one, and goes back from the losses at their end to what entered the first. `device` is that of the
/// walk with gradients.
///
/// # Errors
/// As [`LayerwiseRunner::advance`]; those of `how`.
pub(crate) fn backward(
    mut walk: LayerwiseRunner,
    weights: &dyn TensorSource,
    room: Room,
    how: &mut dyn Backwards,
    progress: ItemProgress,
) -> Result<()> {
    let (n_blocks, n_batches) = (walk.n_blocks(), walk.n_batches());
    let room = Room { max_bytes: room.max_bytes.map(|bytes| bytes / (n_blocks as u64 + 2)), ..room };
    let (mut before, mut n_done) = (Vec::with_capacity(n_blocks), 0);
    let mut after = |_, _| {
        n_done += 1;
        progress(n_done, (2 * n_blocks + 2) * n_batches)
    };
    while walk.next_block().is_some() {
        let mut states = States::with_room(room);
        (0..n_batches).try_for_each(|batch| states.set(batch, walk.state(batch)?))?;
        before.push(states);
        walk.advance(weights, &mut after)?;
    }
    let mut way = WayBack { device: walk.device.clone().autodiff(), towards: States::with_room(room), walk, how };
    way.exit(weights, &mut after)?;
    while let Some(states) = before.pop() {
        way.block(weights, before.len(), &states, &mut after)?;
    }
    way.entry(weights, &mut after)
}

/// The way back through a network.
struct WayBack<'w, 'h> {
    walk: LayerwiseRunner<'w>,
    device: Device,
    /// The gradient of each batch at where the way has come to.
    towards: States,
    how: &'h mut dyn Backwards,
}

impl WayBack<'_, '_> {
    fn exit(&mut self, weights: &dyn TensorSource, after: ItemProgress) -> Result<()> {
        let (network, names) = self.network(weights, BlockPart::Exit)?;
        for batch in 0..self.walk.n_batches() {
            let (state, tokens) = (self.walk.state(batch)?, &self.walk.batches[batch]);
            let mut towards = Vec::new();
            for part in self.how.parts(&network, tokens.length()) {
                let leaf = leaf(state.clone().narrow(1, part.start, part.len()));
                let left = self.walk.blocks(&network)?.leave(leaf.clone());
                let gradients = self.how.loss(&network, left, tokens, part)?.backward();
                self.how.see(&network, &names, &gradients)?;
                towards.push(gradient_of(&leaf, &gradients)?);
            }
            self.towards.set(batch, Tensor::cat(towards, 1))?;
            self.walk.check_memory("on the way back")?;
            after(batch, 0)?;
        }
        Ok(())
    }

    fn block(&mut self, weights: &dyn TensorSource, index: usize, before: &States, after: ItemProgress) -> Result<()> {
        let (network, names) = self.network(weights, BlockPart::Block(index))?;
        for batch in 0..self.walk.n_batches() {
            let leaf = leaf(self.walk.shaped(batch, before.get(batch)?));
            let (_, padding) = self.walk.batches[batch].to_tensors(&self.device);
            let left = self.walk.blocks(&network)?.block(index, leaf.clone(), padding);
            let gradients = self.toward(batch, left)?;
            self.how.see(&network, &names, &gradients)?;
            self.towards.set(batch, gradient_of(&leaf, &gradients)?)?;
            self.walk.check_memory("on the way back")?;
            after(batch, 0)?;
        }
        Ok(())
    }

    fn entry(&mut self, weights: &dyn TensorSource, after: ItemProgress) -> Result<()> {
        let (network, names) = self.network(weights, BlockPart::Entry)?;
        for batch in 0..self.walk.n_batches() {
            let (tokens, _) = self.walk.batches[batch].to_tensors(&self.device);
            let gradients = self.toward(batch, self.walk.blocks(&network)?.enter(tokens))?;
            self.how.see(&network, &names, &gradients)?;
            self.walk.check_memory("on the way back")?;
            after(batch, 0)?;
        }
        Ok(())
    }

    /// The network with the weights of one part, and gradients.
    fn network(&self, weights: &dyn TensorSource, part: BlockPart) -> Result<(Network, NameMap)> {
        let (network, names) = self.walk.network_on(weights, part, &self.device)?;
        Ok((still(network), names))
    }

    /// The gradients of what led to a state, by those of the state.
    fn toward(&self, batch: usize, state: Tensor<3>) -> Result<Gradients> {
        let towards = self.walk.shaped(batch, self.towards.get(batch)?);
        Ok((state * Tensor::from_inner(towards)).sum().backward())
    }
}

/// A state at which gradients end.
fn leaf(state: Tensor<3>) -> Tensor<3> {
    Tensor::from_inner(state).require_grad()
}

fn gradient_of(leaf: &Tensor<3>, gradients: &Gradients) -> Result<Tensor<3>> {
    leaf.grad(gradients).ok_or_else(|| Error::bug("a state without a gradient"))
}

//! Runs a model block by block.
//!
//! The weights of one block and the values between two blocks are in memory. A block is a range of a graph's nodes,
//! and any values may cross its border.

mod backward;
mod block_error;
mod exit;
mod influence;
mod needs;
mod observers;
mod offloaded;
mod paired;
mod parts;
mod states;

use crate::likelihood::each_scores;
use crate::samples::RunBatch;
pub(crate) use backward::{Backwards, backward};
use briquette_core::memory::MemoryLimit;
use briquette_core::{Error, InputStats, Result};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::graph_net::{AnyTensor, RunInputs};
use briquette_models::memory::take_scratch;
use briquette_models::{Arch, BlockState, GraphNet, device};
use briquette_nn::{NameMap, Observing, Probe, load_some, observable, round_inputs};
use burn::tensor::Device;
pub(crate) use exit::exit_of;
use influence::BlockInfluence;
use observers::{ProbedNetwork, observed};
pub(crate) use offloaded::{OffloadedOutputs, run_keeping_states};
pub use offloaded::{offloaded_bytes, run_offloaded};
pub use paired::{GapInputs, PairedInputs};
pub use parts::{BlockPart, NetworkParts};
pub use states::Room;
use states::States;
pub(crate) use states::input_within;
use std::collections::{BTreeMap, BTreeSet};

/// A progress callback: the number of batches done, and the total of this run.
pub type BatchProgress<'a> = &'a mut dyn FnMut(usize, usize) -> Result<()>;

/// Input statistics of layers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeenInputs {
    /// The statistics, by the name of the layer's weight in files without `.weight`.
    pub layers: BTreeMap<String, InputStats>,
    /// Layers that cannot be observed, or received no input.
    pub unseen: Vec<String>,
    /// The mean of `1 - cos` of vectors before and after the block, if the run advanced and their shapes are equal.
    pub influence: Option<f64>,
}

/// A layerwise run of a model, with the values before the next block.
pub struct LayerwiseRunner<'a> {
    checkpoint: &'a Checkpoint,
    arch: Arch,
    device: Device,
    batches: Vec<RunBatch>,
    states: States,
    parts: NetworkParts,
    /// Items that could not be read.
    n_skipped: usize,
    /// The layers that can be observed.
    layers: BTreeSet<String>,
    next: usize,
    /// Whether a block has run.
    has_run: bool,
    /// Whether layers round their inputs as they do on the codes of the checkpoint.
    rounds_inputs: bool,
    limit: Option<MemoryLimit<'a>>,
}

impl<'a> LayerwiseRunner<'a> {
    /// Runs the part before the first block.
    ///
    /// Images that do not decode are left out. `weights` has the tensors of `checkpoint`, by name; their values may differ.
    ///
    /// # Errors
    /// - Input: the checkpoint does not match the architecture, or an image is damaged and the data is strict.
    /// - Refused: the memory limit is exceeded.
    /// - Io: a tensor cannot be read, or hidden states cannot be stored.
    pub fn begin(
        checkpoint: &'a Checkpoint,
        arch: Arch,
        device: &Device,
        batches: Vec<RunBatch>,
        room: Room<'a>,
        weights: &dyn TensorSource,
    ) -> Result<Self> {
        Self::begin_as_served(checkpoint, arch, device, batches, room, (weights, false))
    }

    /// Implements [`begin`](Self::begin). If the flag is true, layers round their inputs as they do on the codes of the checkpoint.
    fn begin_as_served(
        checkpoint: &'a Checkpoint,
        arch: Arch,
        device: &Device,
        batches: Vec<RunBatch>,
        room: Room<'a>,
        (weights, rounds_inputs): (&dyn TensorSource, bool),
    ) -> Result<Self> {
        let (network, names) = GraphNet::blank(arch, checkpoint, device)?;
        let parts = NetworkParts::of(&network, &names);
        let layers = layers_of(&network, &names)?;
        let is_on_host = briquette_models::device_name(device) == "cpu";
        let room = match room.limit.is_some_and(|limit| limit.is_of_host() == is_on_host) {
            true => {
                let what = format!("load the largest part of {}", checkpoint.path().display());
                room.beside_weights(&what, parts.largest_bytes(checkpoint) + parts.sizes.plan())?
            }
            false => room,
        };
        let (device, next, has_run, limit) = (device.clone(), 0, false, room.limit);
        let states = States::with_room(room);
        let n_skipped = 0;
        let mut runner = Self {
            checkpoint,
            arch,
            device,
            batches: Vec::new(),
            states,
            parts,
            n_skipped,
            layers,
            next,
            has_run,
            rounds_inputs,
            limit,
        };
        let (network, _) = runner.network(weights, BlockPart::Entry)?;
        for mut batch in batches {
            let n_items = batch.places.len();
            let (extents, of_reading) = (batch.extents()?, batch.reading_bytes()?);
            runner.check_before("run the part before the first block", || {
                network.run_sizes().entry(extents).max(of_reading)
            })?;
            let inputs = batch.read(&runner.device)?;
            runner.n_skipped += n_items - batch.places.len();
            let Some(inputs) = inputs else { continue };
            let state = network.enter(&inputs);
            runner.states.set(runner.batches.len(), &state)?;
            runner.batches.push(batch);
            runner.check_memory("before the first block")?;
        }
        Ok(runner)
    }

    /// Returns the parts of a model's network.
    ///
    /// # Errors
    /// Config and Input: the checkpoint does not match the architecture.
    pub fn parts(checkpoint: &Checkpoint, arch: Arch) -> Result<NetworkParts> {
        let (network, names) = GraphNet::blank(arch, checkpoint, &device("cpu")?)?;
        Ok(NetworkParts::of(&network, &names))
    }

    /// Returns the layers that can be observed, by the names of their weights without `.weight`.
    ///
    /// # Errors
    /// Config and Input: the checkpoint does not match the architecture.
    pub fn layers_of(checkpoint: &Checkpoint, arch: Arch) -> Result<BTreeSet<String>> {
        let (network, names) = GraphNet::blank(arch, checkpoint, &device("cpu")?)?;
        layers_of(&network, &names)
    }

    /// Returns the number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.parts.blocks.len()
    }

    /// Returns the next block; `None` after the last.
    pub fn next_block(&self) -> Option<usize> {
        (self.next < self.n_blocks()).then_some(self.next)
    }

    /// Returns the number of items: texts, windows or images.
    pub fn n_items(&self) -> usize {
        self.batches.iter().map(|batch| batch.places.len()).sum()
    }

    /// Returns the number of images that do not decode.
    pub fn n_skipped(&self) -> usize {
        self.n_skipped
    }

    /// Returns the number of tokens or images.
    pub(crate) fn n_positions(&self) -> usize {
        self.batches.iter().map(RunBatch::n_positions).sum()
    }

    /// Returns the number of batches.
    pub fn n_batches(&self) -> usize {
        self.batches.len()
    }

    /// Returns the layers that can be observed, by the names of their weights without `.weight`.
    pub fn layers(&self) -> &BTreeSet<String> {
        &self.layers
    }

    /// Returns the part of the network that a tensor belongs to.
    pub fn part_of(&self, name: &str) -> BlockPart {
        self.parts.part_of(name)
    }

    /// Runs the next block with these weights, and gathers the input statistics of its layers, without
    /// advancing.
    ///
    /// # Errors
    /// - See [`begin`](Self::begin).
    /// - Refused: an input is not finite.
    pub fn observe(
        &mut self,
        weights: &dyn TensorSource,
        probe: &Probe,
        progress: BatchProgress,
    ) -> Result<SeenInputs> {
        self.run(weights, Some(probe), false, progress)
    }

    /// Runs the next block with these weights, and advances to the following block.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    pub fn advance(&mut self, weights: &dyn TensorSource, progress: BatchProgress) -> Result<()> {
        self.run(weights, None, true, progress).map(drop)
    }

    /// Runs [`observe`](Self::observe) and [`advance`](Self::advance) in one pass.
    ///
    /// # Errors
    /// See [`observe`](Self::observe).
    pub fn observe_and_advance(
        &mut self,
        weights: &dyn TensorSource,
        probe: &Probe,
        progress: BatchProgress,
    ) -> Result<SeenInputs> {
        self.run(weights, Some(probe), true, progress)
    }

    fn run(
        &mut self,
        weights: &dyn TensorSource,
        probe: Option<&Probe>,
        advances: bool,
        progress: BatchProgress,
    ) -> Result<SeenInputs> {
        let index = self.next_block().ok_or_else(|| Error::bug("a layerwise run beyond the last block"))?;
        self.check_before_block(index, probe)?;
        let (network, names) = self.network(weights, BlockPart::Block(index))?;
        let is_of_it = |layer: &str| self.part_of(layer) == BlockPart::Block(index);
        let n_lanes = self.n_lanes(index, probe);
        let (observers, watched, unseen) = ProbedNetwork::several(network, probe, &names, &is_of_it, n_lanes)?;
        let (n_batches, mut influence) = (self.batches.len(), BlockInfluence::default());
        for first in (0..n_batches).step_by(observers.len()) {
            let group = first..n_batches.min(first + observers.len());
            let inputs = group.clone().map(|batch| Ok((self.state(batch)?, self.inputs(batch)?)));
            let ran = observers::run_block(&observers, index, advances, inputs.collect::<Result<_>>()?)?;
            if !self.has_run && self.has_host_limit() {
                take_scratch();
            }
            self.has_run = true;
            for ((batch, state), observer) in group.zip(ran).zip(&observers) {
                observer.tell(probe)?;
                if let Some(state) = state {
                    probe.map_or(Ok(()), |_| influence.add(&self.state(batch)?, &state))?;
                    self.states.set(batch, &state)?;
                }
                self.check_memory(&format!("in block {index}"))?;
                progress(batch + 1, n_batches)?;
            }
        }
        self.next += usize::from(advances);
        Ok(SeenInputs { influence: influence.mean(), ..SeenInputs::of(watched, unseen, probe) })
    }

    /// Runs the part after the last block for every batch.
    ///
    /// Calls `each` with the batch, the network and the last hidden states `[batch, length, width]`, or a classifier's
    /// logits. With a probe, the layers of that part are observed.
    ///
    /// # Errors
    /// - See [`begin`](Self::begin).
    /// - The first error of `each`.
    pub(crate) fn leave(
        &mut self,
        weights: &dyn TensorSource,
        probe: Option<&Probe>,
        mut each: impl FnMut(&RunBatch, &GraphNet, AnyTensor) -> Result<()>,
    ) -> Result<SeenInputs> {
        let (network, names) = self.network(weights, BlockPart::Exit)?;
        let is_after = |layer: &str| self.part_of(layer) == BlockPart::Exit;
        let Observing { module: network, seen, unseen } = observed(network, probe, &names, &is_after)?;
        for batch in 0..self.batches.len() {
            let extents = self.batches[batch].extents()?;
            self.check_before("run the part after the last block", || {
                network.run_sizes().exit(extents) + self.product_bytes()
            })?;
            let state = self.state(batch)?;
            let state = network.leave(state);
            each(&self.batches[batch], &network, state)?;
            self.check_memory("after the last block")?;
            probe.and_then(Probe::take_error).map_or(Ok(()), Err)?;
        }
        Ok(SeenInputs::of(seen, unseen, probe))
    }

    /// Runs the head on the last hidden states, and gathers its input statistics.
    ///
    /// # Errors
    /// See [`observe`](Self::observe).
    pub fn observe_head(&mut self, weights: &dyn TensorSource, probe: &Probe) -> Result<SeenInputs> {
        let is_decoder = self.arch.task().predicts_tokens();
        self.leave(weights, Some(probe), |_, network, state| {
            if is_decoder {
                return each_scores(network.as_decoder(), state.three(), |_, _| Ok(()));
            }
            if network.classifies_text() {
                network.classes_of(state, None);
            }
            Ok(())
        })
    }

    /// Returns an error if the run exceeded the memory limit.
    fn check_memory(&self, place: &str) -> Result<()> {
        let what = || format!("run {} {place}", self.checkpoint.path().display());
        self.limit.map_or(Ok(()), |limit| limit.check(&what()))
    }

    /// Refuses gradients whose largest part would exceed the memory limit.
    fn check_gradients(&self) -> Result<()> {
        let is_on_host = briquette_models::device_name(&self.device) == "cpu";
        let Some(limit) = self.limit.filter(|limit| limit.is_of_host() == is_on_host) else { return Ok(()) };
        let what = format!("compute gradients of the largest part of {}", self.checkpoint.path().display());
        limit.check_before(&what, self.parts.largest_gradient_bytes(self.checkpoint))
    }

    /// Returns the network with the weights of one part.
    fn network(&self, weights: &dyn TensorSource, part: BlockPart) -> Result<(GraphNet, NameMap)> {
        self.network_on(weights, part, &self.device)
    }

    /// Returns the network with the weights of one part, on another device.
    fn network_on(&self, weights: &dyn TensorSource, part: BlockPart, on: &Device) -> Result<(GraphNet, NameMap)> {
        let (network, names) = GraphNet::blank(self.arch, self.checkpoint, on)?;
        let is_chosen = |name: &str| self.parts.needs(part, name);
        let network = load_some(network, weights, self.checkpoint.layout(), &names, &is_chosen)?;
        let network = if self.rounds_inputs { round_inputs(network, self.checkpoint, &names)? } else { network };
        Ok((network, names))
    }

    fn inputs(&self, batch: usize) -> Result<RunInputs> {
        self.batches[batch].inputs(&self.device)
    }

    fn state(&self, batch: usize) -> Result<BlockState> {
        self.states.get(batch, &self.device)
    }
}

/// Returns the layers of a network that can be observed.
fn layers_of(network: &GraphNet, names: &NameMap) -> Result<BTreeSet<String>> {
    Ok(observable(network, names, &|_| true)?.0.into_values().collect())
}

impl SeenInputs {
    /// Returns the statistics of a probe, and empties it.
    fn of(watched: Vec<String>, mut unseen: Vec<String>, probe: Option<&Probe>) -> Self {
        let layers = probe.map(Probe::take_stats).unwrap_or_default();
        unseen.extend(watched.into_iter().filter(|layer| !layers.contains_key(layer)));
        Self { layers, unseen, influence: None }
    }
}

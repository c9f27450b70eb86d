//! Gathers input statistics of each layer over data.

use crate::LayerwiseRunner;
use crate::layerwise::{Room, SeenInputs};
use crate::outputs::ItemProgress;
use crate::samples::{Samples, no_item};
use crate::sensitivity::add_importance;
use briquette_core::{InputStats, Result};
use briquette_formats::Checkpoint;
use briquette_models::Arch;
use briquette_models::data::{Data, DataSpec};
use briquette_nn::Probe;
use burn::tensor::Device;
use std::collections::BTreeMap;

/// With fewer input vectors than this, a layer's statistics are unreliable.
pub const FEW: u64 = 512;

/// The statistics to gather, and the memory for them.
#[derive(Debug, Clone, Copy)]
pub struct Gathering<'a> {
    /// The items to run.
    pub samples: Samples,
    /// Whether to gather Gram matrices too.
    pub has_gram: bool,
    /// Whether to gather the importance of each input too, by a backward pass.
    pub has_gradients: bool,
    /// The memory and directory for hidden states between blocks.
    pub room: Room<'a>,
}

/// The gathered statistics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    /// Input statistics of each layer, by the name of its weight in files without `.weight`.
    pub layers: BTreeMap<String, InputStats>,
    /// The number of items that ran.
    pub n_items: usize,
    /// The number of images that did not decode.
    pub n_skipped: usize,
    /// Layers without statistics: they cannot be observed, or received no input.
    pub unseen: Vec<String>,
    /// The influence of each block, the mean of `1 - cos` of a vector before and after it; empty if the blocks change shapes.
    pub block_influence: Vec<f64>,
}

impl Calibration {
    /// Returns the layers with fewer than [`FEW`] input vectors, and their numbers of vectors.
    pub fn few(&self) -> Vec<(&str, u64)> {
        let few = self.layers.iter().filter(|(_, stats)| stats.count < FEW);
        few.map(|(layer, stats)| (layer.as_str(), stats.count)).collect()
    }

    fn take_in(&mut self, seen: SeenInputs) {
        self.layers.extend(seen.layers);
        self.unseen.extend(seen.unseen);
    }
}

/// Runs a model over data and gathers the input statistics of its linear layers and convolutions.
///
/// The statistics are sums, sums of squares and largest magnitudes, and Gram matrices and the importance on request. The model runs
/// block by block, with the weights of one block in memory. Activations inside blocks are not stored; padding
/// tokens are not counted.
///
/// # Errors
/// - Config: the data is of another kind than the model takes, or the weights are codes.
/// - Input: an item is damaged and the data is strict, or no item can be used.
/// - Refused: an input is not finite.
pub fn calibrate(
    checkpoint: &Checkpoint,
    arch: Arch,
    device: &Device,
    (data, spec): (&Data, &DataSpec),
    gathering: Gathering,
    progress: ItemProgress,
) -> Result<Calibration> {
    let of_nodes = checkpoint.with_codes_of_nodes()?;
    let checkpoint = of_nodes.as_ref().unwrap_or(checkpoint);
    let mut input = gathering.room.input(arch, checkpoint)?;
    let batches = gathering.room.batches(arch, &mut input, (data, spec), gathering.samples)?;
    let mut runner = LayerwiseRunner::begin(checkpoint, arch, device, batches, gathering.room, checkpoint)?;
    let (n_items, n_skipped) = (runner.n_items(), runner.n_skipped());
    if n_items == 0 {
        return Err(no_item(spec));
    }
    let mut found = Calibration { n_items, n_skipped, ..Calibration::default() };
    let probe = if gathering.has_gram { Probe::with_gram() } else { Probe::new() };
    if gathering.has_gram {
        runner.check_before_all_grams()?;
    }
    let n_blocks = runner.n_blocks();
    while let Some(block) = runner.next_block() {
        let mut after = |done, total| progress(block * total + done, n_blocks * total);
        let seen = runner.observe_and_advance(checkpoint, &probe, &mut after)?;
        found.block_influence.extend(seen.influence);
        found.take_in(seen);
    }
    if found.block_influence.len() != n_blocks {
        found.block_influence.clear();
    }
    found.take_in(runner.observe_head(checkpoint, &probe)?);
    if gathering.has_gradients {
        drop(runner);
        let (samples, room) = (gathering.samples, gathering.room);
        add_importance(&mut found.layers, checkpoint, arch, device, (data, spec), (samples, room), progress)?;
    }
    Ok(found)
}

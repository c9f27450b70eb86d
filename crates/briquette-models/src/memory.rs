//! How much memory a model takes: what was foretold, what its weights hold, what running it adds.

use briquette_core::memory::MemoryMeter;
use briquette_formats::{Checkpoint, TensorSource};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

/// What one meter saw of a model that was loaded, run and dropped. Every figure is above what was there before.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// What was measured, in words.
    pub meter: String,
    /// Bytes of the weights, as the headers foretell them.
    pub predicted_bytes: u64,
    /// Bytes that its network held.
    pub weights_bytes: Option<u64>,
    /// The most in use while it ran, weights and all.
    pub peak_bytes: Option<u64>,
    /// What was left when it was dropped.
    pub after_bytes: Option<u64>,
}

/// The bytes a device's pool has in use.
#[derive(Debug, Clone)]
pub struct DevicePool(pub Device);

impl MemoryMeter for DevicePool {
    fn name(&self) -> &str {
        "bytes in use in the device's pool"
    }

    fn live_bytes(&self) -> Option<u64> {
        self.0.memory_pool_usage().map(|usage| usage.bytes_in_use)
    }

    fn peak_bytes(&self) -> Option<u64> {
        None
    }
}

/// Follows a model through its life with several meters.
pub(crate) struct Watch<'a> {
    meters: &'a [&'a dyn MemoryMeter],
    before: Vec<Option<u64>>,
    found: Vec<Memory>,
}

impl<'a> Watch<'a> {
    /// Before a model is loaded.
    pub(crate) fn start(meters: &'a [&'a dyn MemoryMeter], checkpoint: &Checkpoint) -> Self {
        let predicted_bytes = predicted_bytes(checkpoint);
        let one =
            |meter: &&dyn MemoryMeter| Memory { meter: meter.name().to_string(), predicted_bytes, ..Memory::default() };
        Self {
            meters,
            before: meters.iter().map(|meter| meter.live_bytes()).collect(),
            found: meters.iter().map(one).collect(),
        }
    }

    /// Once it is loaded.
    pub(crate) fn loaded(&mut self) {
        self.meters.iter().for_each(|meter| meter.reset_peak());
    }

    /// Drops its network: what that frees is what its weights took, without tokenizers and what running left behind.
    pub(crate) fn drop_network<T>(&mut self, network: T) {
        let with: Vec<Option<u64>> = self.meters.iter().map(|meter| meter.live_bytes()).collect();
        drop(network);
        for ((meter, with), found) in self.meters.iter().zip(with).zip(&mut self.found) {
            found.weights_bytes = above(with, meter.live_bytes());
        }
    }

    /// Once it has run.
    pub(crate) fn ran(&mut self) {
        for (meter, (before, found)) in self.meters.iter().zip(self.before.iter().zip(&mut self.found)) {
            found.peak_bytes = above(meter.peak_bytes(), *before);
        }
    }

    /// Once it is dropped.
    pub(crate) fn dropped(mut self) -> Vec<Memory> {
        for (meter, (before, found)) in self.meters.iter().zip(self.before.iter().zip(&mut self.found)) {
            found.after_bytes = above(meter.live_bytes(), *before);
        }
        self.found
    }
}

fn above(now: Option<u64>, before: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(before?))
}

/// Bytes of a checkpoint's weights as f32, as they are loaded: known from its headers.
pub fn predicted_bytes(checkpoint: &Checkpoint) -> u64 {
    let tied = |name: &str| {
        checkpoint
            .manifest()
            .and_then(|manifest| manifest.tensors.get(name))
            .is_some_and(|entry| entry.tied_to.is_some())
    };
    let weights = checkpoint.tensors().iter().filter(|info| info.dtype.is_weight() && !tied(&info.name));
    weights.map(|info| 4 * info.n_elements() as u64).sum()
}

//! Predicts the memory of a block, so that a memory limit is refused before it is exceeded.

use super::{BlockPart, LayerwiseRunner};
use crate::lanes::n_lanes;
use crate::samples::RunBatch;
use briquette_core::Result;
use briquette_core::memory::MemoryLimit;
use briquette_formats::{TensorSource, WeightLayout};
use briquette_graph::Extents;
use briquette_models::ModelTask;
use briquette_models::memory::scratch_bytes;
use briquette_nn::Probe;
use briquette_nn::module::GROUP_PATCHES;
use std::collections::BTreeSet;

/// Bytes of an element of a Gram matrix, a sum in f64.
const GRAM_BYTES: u64 = 8;
/// Bytes of an element of the last batch's matrix: f32, of which the upper triangle is stored.
const LAST_BYTES: u64 = 2;

/// Bytes of the patches of some channel groups, with their copies: f32 values, in another order, and their squares.
const GROUP_PATCH_BYTES: u64 = 4 * 4 * GROUP_PATCHES as u64;

/// The inputs and outputs of a linear layer or of a convolution's patches.
struct Widths<'a> {
    /// The module that has the layer; layers of one module with equally many inputs usually share them. A convolution
    /// is its own owner.
    owner: &'a str,
    /// Inputs of a channel group.
    n_inputs: u64,
    n_groups: u64,
    n_outputs: u64,
}

fn has_gram(probe: Option<&Probe>) -> bool {
    probe.is_some_and(Probe::has_gram)
}

impl LayerwiseRunner<'_> {
    /// Refuses to gather the Gram matrices of all blocks beyond the limit.
    ///
    /// # Errors
    /// Refused: the matrices exceed what is left.
    pub(crate) fn check_before_all_grams(&self) -> Result<()> {
        let n_bytes = || (0..self.n_blocks()).map(|block| self.gram_bytes(block, GRAM_BYTES)).sum();
        self.check_before("gather the Gram matrices", n_bytes)
    }

    /// Refuses to load a block, to run a batch, and to gather its input statistics, beyond the limit.
    ///
    /// # Errors
    /// Refused: the weights, the Gram matrices and the activations of one batch exceed what is left.
    pub(super) fn check_before_block(&self, index: usize, probe: Option<&Probe>) -> Result<()> {
        let of_weights = self.parts.bytes_of(self.checkpoint, BlockPart::Block(index));
        let of_grams = || self.new_gram_bytes(index, has_gram(probe));
        let n_bytes = || of_weights + of_grams() + self.batch_bytes(index, probe.is_some());
        self.check_before(&format!("run block {index}"), n_bytes)
    }

    /// Refuses to run a block of this model and of the original one beyond the limit, with the input statistics of both.
    ///
    /// # Errors
    /// See [`check_before_block`](Self::check_before_block), for twice its bytes.
    pub(super) fn check_before_pair(&self, index: usize) -> Result<()> {
        let of_weights = self.parts.bytes_of(self.checkpoint, BlockPart::Block(index));
        let n_bytes = || 2 * (of_weights + self.new_gram_bytes(index, true) + self.batch_bytes(index, true));
        self.check_before(&format!("run block {index} twice to correct weights (calibration.correct)"), n_bytes)
    }

    /// Returns the number of batches that run concurrently in both models: one with a limit.
    pub(super) fn n_pair_lanes(&self) -> usize {
        if self.host_limit().is_some() { 1 } else { n_lanes(&self.device) }
    }

    pub(super) fn check_before(&self, what: &str, n_bytes: impl Fn() -> u64) -> Result<()> {
        let what = format!("{what} of {}", self.checkpoint.path().display());
        self.host_limit().map_or(Ok(()), |limit| limit.check_before(&what, n_bytes()))
    }

    /// Returns the limit if the blocks run in the memory that it limits.
    fn host_limit(&self) -> Option<MemoryLimit<'_>> {
        let is_on_host = briquette_models::device_name(&self.device) == "cpu";
        self.limit.filter(|limit| limit.is_of_host() && is_on_host)
    }

    /// Returns whether the blocks run in memory with a limit.
    pub(super) fn has_host_limit(&self) -> bool {
        self.host_limit().is_some()
    }

    /// Returns the size of the Gram matrices of a block. Layers of one module with equally many inputs share one.
    fn gram_bytes(&self, index: usize, element_bytes: u64) -> u64 {
        let layers = self.widths(index);
        let matrices: BTreeSet<(&str, [u64; 2])> =
            layers.iter().map(|layer| (layer.owner, [layer.n_groups, layer.n_inputs])).collect();
        matrices.iter().map(|(_, [groups, n])| element_bytes * groups * n * n).sum()
    }

    /// Returns the number of batches that run concurrently in a block: fewer if the limit leaves no room for more.
    ///
    /// The results do not depend on this number.
    pub(super) fn n_lanes(&self, index: usize, probe: Option<&Probe>) -> usize {
        let most = n_lanes(&self.device);
        let Some(limit) = self.host_limit() else { return most };
        let left = limit.left().saturating_sub(self.new_gram_bytes(index, has_gram(probe)));
        usize::try_from(left / self.batch_bytes(index, probe.is_some()).max(1)).unwrap_or(usize::MAX).clamp(1, most)
    }

    fn new_gram_bytes(&self, index: usize, has_gram: bool) -> u64 {
        if has_gram { self.gram_bytes(index, GRAM_BYTES + LAST_BYTES) } else { 0 }
    }

    /// Returns the size of what a block computes, for the largest batch.
    ///
    /// The graph predicts the values that are held at a time. With the inputs that probes copy, an image network may hold all
    /// that a block computes, and a text network the inputs and outputs of all linear layers.
    fn batch_bytes(&self, index: usize, is_observed: bool) -> u64 {
        let of_probes = if is_observed { self.computed_bytes(index) } else { 0 };
        self.held_bytes(index).max(of_probes) + self.product_bytes()
    }

    /// Returns the size of what a product of floats takes, with the scratch of every thread before the first one.
    pub(super) fn product_bytes(&self) -> u64 {
        let of_scratch = if self.has_run { 0 } else { scratch_bytes() };
        of_scratch + self.parts.product_bytes
    }

    /// Returns the size of the values of a block that are held at a time, for the largest batch.
    fn held_bytes(&self, index: usize) -> u64 {
        let extents: Vec<Extents> = self.batches.iter().filter_map(|batch| batch.extents().ok()).collect();
        // The longest items have the largest scores, and the batch with the most tokens the largest hidden states.
        let longest = extents.iter().max_by_key(|of| (of.tokens, of.batch));
        let largest = extents.iter().max_by_key(|of| of.tokens * of.batch);
        let sizes = longest.into_iter().chain(largest).map(|of| self.parts.sizes.block(index, *of));
        sizes.max().unwrap_or(0)
    }

    /// Returns the size of what the layers of a block compute, for the largest batch.
    fn computed_bytes(&self, index: usize) -> u64 {
        if let Some(growth) = self.parts.growth(index).filter(|_| self.arch.task() == ModelTask::Classifier) {
            let has_groups = self.widths(index).iter().any(|layer| layer.n_groups > 1);
            let of_patches = if has_groups { GROUP_PATCH_BYTES } else { 0 };
            return (4.0 * self.states.most_elements() as f64 * growth) as u64 + of_patches;
        }
        let n_tokens = self.batches.iter().map(RunBatch::most_positions).max().unwrap_or(0) as u64;
        let width: u64 = self.widths(index).iter().map(|layer| layer.n_inputs + layer.n_outputs).sum();
        4 * n_tokens * width
    }

    /// Returns the widths of the layers of a block that can be observed.
    fn widths(&self, index: usize) -> Vec<Widths<'_>> {
        let tensors = self.checkpoint.tensors().iter();
        let of_block = tensors.filter(|info| self.parts.part_of(&info.name) == BlockPart::Block(index));
        let linear = of_block.filter_map(|info| {
            let layer = info.name.strip_suffix(".weight").filter(|layer| self.layers.contains(*layer))?;
            if let [filters, columns @ ..] = info.shape.0.as_slice()
                && columns.len() == 3
            {
                let n_inputs = columns.iter().map(|extent| *extent as u64).product();
                let n_groups = self.parts.n_groups(layer) as u64;
                return Some(Widths { owner: layer, n_inputs, n_groups, n_outputs: *filters as u64 });
            }
            let [first, last] = info.shape.0[..] else { return None };
            let is_turned = self.checkpoint.layout() == Some(WeightLayout::Burn);
            let (n_outputs, n_inputs) = if is_turned { (last, first) } else { (first, last) };
            let owner = layer.rsplit_once('.').map_or("", |(owner, _)| owner);
            Some(Widths { owner, n_inputs: n_inputs as u64, n_groups: 1, n_outputs: n_outputs as u64 })
        });
        linear.collect()
    }
}

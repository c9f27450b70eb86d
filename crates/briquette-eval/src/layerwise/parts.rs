//! The parts of a network that are in memory at different times, with their tensors.

use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::GraphNet;
use briquette_models::graph_net::RunSizes;
use briquette_models::memory::packed_bytes;
use briquette_nn::NameMap;
use std::collections::BTreeMap;

/// A part of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockPart {
    /// The part before the first block.
    Entry,
    /// A block.
    Block(usize),
    /// The part after the last block.
    Exit,
}

/// The part of the network that each tensor belongs to, by its name in files.
#[derive(Debug, Clone)]
pub struct NetworkParts {
    /// The prefixes of the tensor names of each block.
    pub(super) blocks: Vec<Vec<String>>,
    /// The prefixes of tensor names after the last block.
    exit: Vec<String>,
    exit_needs_entry: bool,
    /// The elements that each block computes for an element of its input, where known.
    growth: Vec<Option<f64>>,
    /// The memory of runs.
    pub(super) sizes: RunSizes,
    /// The bytes of a product of floats on the CPU, beside its values.
    pub(super) product_bytes: u64,
    /// The number of channel groups of convolutions that have several, by layer.
    groups: BTreeMap<String, usize>,
}

impl NetworkParts {
    pub(super) fn of(network: &GraphNet, names: &NameMap) -> Self {
        let prefix = |path: String| format!("{}.", names.renamed(&path));
        let prefixes = |paths: Vec<String>| paths.into_iter().map(prefix).collect();
        let blocks = match network.is_one_block() {
            // Every name begins with the empty prefix: names of ONNX tensors need not be those of their layers.
            true => vec![vec![String::new()]],
            false => (0..network.n_blocks()).map(|index| prefixes(network.block_paths(index))).collect(),
        };
        Self {
            blocks,
            exit: prefixes(network.exit_paths()),
            exit_needs_entry: network.exit_needs_entry(),
            sizes: network.run_sizes(),
            product_bytes: packed_bytes(network.graph()),
            growth: (0..network.n_blocks()).map(|index| network.growth(index)).collect(),
            groups: network.channel_groups().into_iter().map(|(path, n)| (names.renamed(&path), n)).collect(),
        }
    }

    /// Returns the number of channel groups of a layer.
    pub(super) fn n_groups(&self, layer: &str) -> usize {
        self.groups.get(layer).copied().unwrap_or(1)
    }

    /// Returns the part that a tensor belongs to.
    pub fn part_of(&self, name: &str) -> BlockPart {
        // Also matches the name of a layer without a parameter.
        let is_below = |prefix: &String| name.starts_with(prefix.as_str()) || prefix.strip_suffix('.') == Some(name);
        match self.blocks.iter().position(|prefixes| prefixes.iter().any(is_below)) {
            Some(block) => BlockPart::Block(block),
            None if self.exit.iter().any(is_below) => BlockPart::Exit,
            None => BlockPart::Entry,
        }
    }

    /// Returns whether a part of the network needs this tensor to run.
    pub(super) fn needs(&self, part: BlockPart, name: &str) -> bool {
        let of = self.part_of(name);
        of == part || part == BlockPart::Exit && of == BlockPart::Entry && self.exit_needs_entry
    }

    /// Returns the elements that a block computes for an element of its input, where known.
    pub(super) fn growth(&self, block: usize) -> Option<f64> {
        self.growth[block]
    }

    /// Returns the size of the largest part's weights in bytes, as f32.
    pub(super) fn largest_bytes(&self, checkpoint: &Checkpoint) -> u64 {
        let blocks = (0..self.blocks.len()).map(BlockPart::Block);
        let parts = [BlockPart::Entry, BlockPart::Exit].into_iter().chain(blocks);
        parts.map(|part| self.bytes_of(checkpoint, part)).max().unwrap_or(0)
    }

    /// Returns a lower bound of the bytes of the largest part's weights and gradients, as f32.
    ///
    /// Each gradient is also copied to the host. The gradient of a table is scattered into a second copy.
    pub(super) fn largest_gradient_bytes(&self, checkpoint: &Checkpoint) -> u64 {
        let of_blocks = (0..self.blocks.len()).map(|block| 3 * self.bytes_of(checkpoint, BlockPart::Block(block)));
        of_blocks.max().unwrap_or(0).max(4 * self.bytes_of(checkpoint, BlockPart::Entry))
    }

    /// Returns the size of a part's weights in bytes, as f32.
    pub(super) fn bytes_of(&self, checkpoint: &Checkpoint, part: BlockPart) -> u64 {
        let needed = checkpoint.tensors().iter().filter(|info| self.needs(part, &info.name));
        needed.map(|info| 4 * info.n_elements() as u64).sum()
    }
}

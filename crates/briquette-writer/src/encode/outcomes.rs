//! The results of encoding, in few bytes, as there may be millions of tensors.

use super::output_error::OutputError;
use crate::narrow::Narrowness;
use crate::weight_norm::NormSums;
use briquette_core::{ErrorStats, Hash128};
use std::collections::BTreeMap;

/// The results of encoding the tensors of a plan, by index. A tied tensor has the results of its main tensor.
#[derive(Debug, Clone)]
pub struct Outcomes {
    /// Hashes of the dequantized values row by row. The manifest may have another hash: see
    /// [`ManifestHead::hash_of`](briquette_formats::ManifestHead::hash_of).
    pub hashes: Vec<Hash128>,
    /// The errors of the dequantized values.
    pub stats: Vec<ErrorStats>,
    /// The errors of the layers' outputs whose inputs are known.
    pub outputs: BTreeMap<usize, OutputError>,
    /// The ranges that scales and values need in their stored types, if they are not the default.
    pub(crate) narrow: BTreeMap<usize, Narrowness>,
    /// The end of each entropy-coded block, in bytes from the start of the first.
    pub(crate) block_ends: BTreeMap<usize, Box<[u64]>>,
}

impl Outcomes {
    /// Returns the ends of a tensor's entropy-coded blocks; empty without entropy coding.
    pub(crate) fn block_ends(&self, tensor: usize) -> &[u64] {
        self.block_ends.get(&tensor).map_or(&[], |ends| ends)
    }
}

/// The intermediate results of a task.
#[derive(Default)]
pub(super) struct TaskOutcome {
    pub(super) digests: Vec<Hash128>,
    pub(super) stats: ErrorStats,
    pub(super) outputs: OutputError,
    pub(super) narrowness: Narrowness,
    /// Sums over the directions of a weight norm; boxed, as few tensors have one.
    pub(super) norm: Option<Box<NormSums>>,
    /// Bytes of each block of codes.
    pub(super) block_bytes: Vec<u64>,
}

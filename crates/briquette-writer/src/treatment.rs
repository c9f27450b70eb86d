//! The treatment of a tensor. Most tensors are treated alike, so equal treatments are stored once.

use crate::known::{Known, Reason};
use briquette_core::{DType, OutputAxis, Role, Rows};
use briquette_formats::ValueGrid;
use briquette_methods::prune::{Reconstruction, Score, SparsityPattern};
use briquette_methods::quant::{Activations, QuantSpec, Rounding};
use std::sync::Arc;

/// The most treatments that are searched for an equal one.
const MAX_KNOWN: usize = 64;

/// The treatment of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Treatment {
    /// The role in the network.
    pub role: Role,
    /// The axis of the layer's outputs.
    pub axis: OutputAxis,
    /// The reason for the role and the axis.
    pub why: Reason,
    /// The row view by outputs. A tensor that is not a weight has rows of one byte.
    ///
    /// An unchanged tensor is read in its own order instead: see [`TensorPlan::rows`](crate::TensorPlan::rows).
    pub output_rows: Rows,
    /// The pruning, if any.
    pub prune: Option<Pruning>,
    /// The quantization, if any.
    pub quant: Option<Quant>,
    /// How weights are updated to preserve the outputs of the layer.
    pub solve: Solve,
    /// Whether the source has updated weights, which replace the tensor's own.
    pub is_moved: bool,
    /// The new type of the tensor, if it is cast.
    pub cast: Option<DType>,
    /// Whether the source stores the tensor as sparse.
    pub was_sparse: bool,
    /// The size of its blocks, if its codes are entropy-coded.
    pub blocks: Option<BlockBytes>,
    /// Why the tensor is unchanged, if it is.
    pub skipped: Option<String>,
}

impl Treatment {
    /// Creates a treatment that leaves a tensor unchanged. `output_rows` is its row view by outputs.
    pub fn none(known: Known, output_rows: Rows) -> Self {
        let Known { role, axis, why } = known;
        let (prune, quant, cast, skipped) = (None, None, None, None);
        let solve = Solve::default();
        Self {
            role,
            axis,
            why,
            output_rows,
            prune,
            quant,
            solve,
            is_moved: false,
            cast,
            was_sparse: false,
            blocks: None,
            skipped,
        }
    }
}

/// The bytes of a tensor's blocks of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockBytes {
    /// At most the bytes without entropy coding, as the codes are not coded yet.
    AtMost,
    /// Exactly this many.
    Exactly(usize),
}

/// How weights are updated (error compensation) to preserve the outputs of their layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Solve {
    /// The update while weights are pruned.
    pub reconstruction: Option<Reconstruction>,
    /// The update while weights are rounded.
    pub rounding: Rounding,
    /// Whether the rounding is then learned from the outputs of the block (SignRound).
    pub learns: bool,
    /// Whether the bias of the layer takes up the mean error of the new weights.
    pub corrects_bias: bool,
}

impl Solve {
    /// Returns whether weights are updated at all.
    pub fn moves(self) -> bool {
        self.reconstruction.is_some() || self.rounding != Rounding::Nearest || self.learns
    }
}

/// The pruning of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// The score of weights: see [`TensorPlan::score`](crate::TensorPlan::score).
    pub score: Score,
    /// The number of pruned weights, and the weights that compete.
    pub cut: Cut,
}

/// The number of pruned weights, and the weights that compete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The weights of this tensor alone that a pattern drops.
    Pattern(SparsityPattern),
    /// The weights below the threshold of the pool with this index.
    Pool(usize),
    /// The weights that a mask of the source prunes.
    Given,
}

/// The quantization of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quant {
    /// The scheme of the weights.
    pub spec: QuantSpec,
    /// The quantization of the layer's activations at run time.
    pub activations: Activations,
    /// Whether the scales come from the source and are used unchanged.
    pub is_given: bool,
    /// The fixed grid of the layer's inputs, once it is known.
    pub inputs: Option<ValueGrid>,
}

/// Recently used treatments, so that equal treatments are shared.
#[derive(Debug, Default)]
pub struct SharedTreatments(Vec<Arc<Treatment>>);

impl SharedTreatments {
    /// Returns the shared treatment that equals this one; if there is none, this one.
    pub fn of(&mut self, treatment: Arc<Treatment>) -> Arc<Treatment> {
        let is_known = |known: &Arc<Treatment>| Arc::ptr_eq(known, &treatment) || **known == *treatment;
        match self.0.iter().position(is_known) {
            Some(place) => self.0[..=place].rotate_right(1),
            None => {
                self.0.truncate(MAX_KNOWN - 1);
                self.0.insert(0, treatment);
            }
        }
        self.0[0].clone()
    }
}

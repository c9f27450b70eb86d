//! What is done to a tensor. Most tensors of a model are treated alike, so equal treatments are stored once.

use crate::known::{Known, Reason};
use briquette_core::{DType, OutputAxis, Role, Rows};
use briquette_methods::prune::{Reconstruction, Score};
use briquette_methods::quant::{Activations, QuantSpec, Rounding};
use std::sync::Arc;

/// The most treatments that are searched for an equal one.
const MAX_KNOWN: usize = 64;

/// What is done to a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Treatment {
    /// Its role in the network.
    pub role: Role,
    /// Which axis of the tensor counts outputs.
    pub axis: OutputAxis,
    /// What shows the role and the axis.
    pub why: Reason,
    /// The row view by outputs. A tensor that is no weight is rows of one byte. A tensor that stays unchanged is read in its own
    /// order instead: see [`TensorPlan::rows`](crate::TensorPlan::rows).
    pub output_rows: Rows,
    /// Which weights are dropped.
    pub prune: Option<Pruning>,
    /// The grid that weights are rounded to.
    pub quant: Option<Quant>,
    /// How its weights are moved so that the outputs of its layer stay what they were, where they are.
    pub solve: Solve,
    /// Whether the source has moved weights, which take the place of the tensor's own.
    pub is_moved: bool,
    /// The type that the tensor is stored in, where not its own.
    pub cast: Option<DType>,
    /// Whether the source stores the tensor sparse.
    pub was_sparse: bool,
    /// How large its blocks are, where its codes are to be entropy-coded.
    pub blocks: Option<BlockBytes>,
    /// Why nothing is done to the tensor, where nothing is.
    pub skipped: Option<String>,
}

impl Treatment {
    /// The treatment that leaves a tensor unchanged; `output_rows` is its row view by outputs.
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
    /// No more than the codes would take without frequencies: they are yet to be coded.
    AtMost,
    /// This many.
    Exactly(usize),
}

/// How weights are moved so that the outputs of their layer stay what they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Solve {
    /// While some are dropped.
    pub reconstruction: Option<Reconstruction>,
    /// While they are rounded.
    pub rounding: Rounding,
}

impl Solve {
    /// Whether weights are moved at all.
    pub fn moves(self) -> bool {
        self.reconstruction.is_some() || self.rounding != Rounding::Nearest
    }
}

/// Which weights are dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// How they are scored; see [`TensorPlan::score`](crate::TensorPlan::score).
    pub score: Score,
    /// How many are dropped, and among which weights.
    pub cut: Cut,
}

/// How many weights are dropped, and among which they are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// This many of the tensor's weights.
    Count(usize),
    /// The weights below the threshold of the pool at this index.
    Pool(usize),
    /// This many of every `size` consecutive inputs of an output; of all its inputs where `size` is the row's length.
    OfEach {
        /// Inputs that are compared with each other.
        size: usize,
        /// How many of these are dropped.
        n_drop: usize,
    },
    /// This many weights of every block of `size` consecutive inputs, all outputs together.
    Columns {
        /// Inputs of a block; the last may have fewer.
        size: usize,
        /// How many weights of a whole block are dropped; of a shorter last block, in proportion.
        n_drop: usize,
    },
    /// All but n of every m inputs.
    NOfM {
        /// Inputs that are kept.
        n: usize,
        /// Inputs in each run.
        m: usize,
    },
    /// The weights that a mask of the source drops.
    Given,
}

/// The grid weights are rounded to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quant {
    /// The scheme of the weights.
    pub spec: QuantSpec,
    /// How activations are to be rounded when the layer runs.
    pub activations: Activations,
    /// Whether the source has scales already, which are used unchanged.
    pub is_given: bool,
}

/// Recently used treatments, so that tensors that are treated alike share one.
#[derive(Debug, Default)]
pub struct SharedTreatments(Vec<Arc<Treatment>>);

impl SharedTreatments {
    /// The shared treatment that equals this one; this one, if none does.
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

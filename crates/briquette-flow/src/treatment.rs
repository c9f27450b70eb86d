//! What is done to a tensor: the same for most tensors of a model, so that each kind of it is kept once.

use crate::known::{Known, Reason};
use briquette_core::{DType, OutputAxis, Role, Rows};
use briquette_prune::Score;
use briquette_quant::{Activations, QuantSpec};
use std::sync::Arc;

/// Kinds of treatment that are looked through for one that is there already.
const MAX_KNOWN: usize = 64;

/// What is done to a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Treatment {
    /// What it is in its network.
    pub role: Role,
    /// Which of its axes counts outputs.
    pub axis: OutputAxis,
    /// What shows that.
    pub why: Reason,
    /// Its row view. A tensor that is no weight is rows of one byte.
    pub rows: Rows,
    /// Which weights go.
    pub prune: Option<Pruning>,
    /// The grid they are rounded to.
    pub quant: Option<Quant>,
    /// The type that it is stored in, where not its own.
    pub cast: Option<DType>,
    /// Whether it is kept sparse in the model already.
    pub was_sparse: bool,
    /// Why nothing is done, where nothing is.
    pub skipped: Option<String>,
}

impl Treatment {
    /// Nothing is done.
    pub fn none(known: Known, rows: Rows) -> Self {
        let Known { role, axis, why } = known;
        Self { role, axis, why, rows, prune: None, quant: None, cast: None, was_sparse: false, skipped: None }
    }
}

/// Which weights go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// How they are scored; see [`TensorPlan::score`](crate::TensorPlan::score).
    pub score: Score,
    /// How many, and among which.
    pub cut: Cut,
}

/// How many weights go, and among which they are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// This many of the tensor.
    Count(usize),
    /// Those below the threshold of a pool of tensors.
    Pool(usize),
    /// This many of every `size` consecutive inputs of an output; of all of its inputs where `size` is the row.
    OfEach {
        /// Inputs that are compared with each other.
        size: usize,
        /// How many of them go.
        n_drop: usize,
    },
    /// This many of every `size` consecutive inputs of all outputs together.
    Columns {
        /// Inputs of a block; the last may have fewer.
        size: usize,
        /// How many weights of a whole block go, of the last in proportion.
        n_drop: usize,
    },
    /// All but n of every m inputs.
    NOfM {
        /// Kept.
        n: usize,
        /// Of these.
        m: usize,
    },
    /// Those that a mask says which the source has already.
    Given,
}

/// The grid weights are rounded to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quant {
    /// The weights.
    pub spec: QuantSpec,
    /// What the run time is to do with activations.
    pub activations: Activations,
    /// Whether the source has scales already, which are taken as they are.
    pub is_given: bool,
}

/// The treatments of late, so that tensors that are treated alike share one.
#[derive(Debug, Default)]
pub struct SharedTreatments(Vec<Arc<Treatment>>);

impl SharedTreatments {
    /// The treatment that is equal to this one.
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

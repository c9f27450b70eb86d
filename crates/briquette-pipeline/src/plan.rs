//! What becomes of each tensor, and what that will take: from headers, and from samples where weights may be tied.

mod choose;
mod exclude;
mod fit;
pub(crate) mod heads;
pub(crate) mod interop;
mod keep;
mod predict;
mod student;
mod treatment;
mod unsure;

use crate::context::Stop;
use crate::recipe::{PruneMethod, Recipe, raw::RawLayout};
use crate::role::Roles;
use briquette_core::{Coding, DType, Error, Hash128, OutputAxis, Result, Rows, encoded::Codes};
use briquette_formats::quantization_config;
use briquette_formats::{Checkpoint, Compressed, Profile, TensorInfo, TensorSource, WeightLayout};
use briquette_quant::{Activations, QuantSpec};
use interop::Loads;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use predict::Prediction;
pub use student::student_of;
pub(crate) use treatment::Shared;
pub use treatment::Treatment;

/// What becomes of a model. Models have up to millions of tensors: what is said of each is what tells it from others.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    /// One for each tensor, in the order of the checkpoint.
    pub tensors: Vec<TensorPlan<'a>>,
    /// Groups of tensors that share one threshold, and how many weights each drops.
    pub pools: Vec<Pool>,
    /// The format of the output.
    pub profile: Profile,
    /// Largest shard written before another is started.
    pub max_shard_bytes: u64,
    /// Whether NaN and infinity pass in tensors that nothing is done to.
    pub allow_nonfinite: bool,
    /// Which way the Linear weights of the model lie.
    pub layout: RawLayout,
    /// Why the output may not load where it is meant to, where it was allowed all the same.
    pub untested: Option<String>,
    /// Free-form strings of the model's files, which come along where the format has a place for them.
    pub metadata: BTreeMap<String, String>,
    /// What is not done as asked, and why.
    pub remarks: Vec<String>,
}

/// What becomes of a tensor; what is done to it is read and changed as if the fields of its [`Treatment`] were its own.
#[derive(Debug, Clone)]
pub struct TensorPlan<'a> {
    /// Its place in the checkpoint.
    pub index: usize,
    /// Name, type and shape.
    pub info: &'a TensorInfo,
    /// The tensor whose parts stand for this one.
    pub tied_to: Option<usize>,
    treatment: Arc<Treatment>,
}

/// Which weights go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prune {
    /// How they are scored; see [`TensorPlan::method`].
    pub method: PruneMethod,
    /// How many.
    pub cut: Cut,
}

/// How many weights go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// This many of the tensor's own.
    Count(usize),
    /// Those below the threshold of a pool.
    Pool(usize),
    /// All but n of every m inputs.
    NOfM {
        /// Kept.
        n: usize,
        /// Of these.
        m: usize,
    },
}

/// The grid weights are rounded to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quant {
    /// The weights.
    pub spec: QuantSpec,
    /// What the run time is to do with activations.
    pub activations: Activations,
    /// Whether the model has these codes already; their scales are taken as they are.
    pub is_stored: bool,
}

/// Tensors that share one threshold.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Their places in the plan.
    pub tensors: Vec<usize>,
    /// The share of their weights that goes.
    pub ratio: briquette_prune::Ratio,
}

impl<'a> TensorPlan<'a> {
    /// What is done to the tensor at this place of a checkpoint, which is tied to no other.
    pub fn new(index: usize, info: &'a TensorInfo, treatment: Treatment) -> Self {
        Self { index, info, tied_to: None, treatment: Arc::new(treatment) }
    }

    /// How its weights are scored, where some go; a random seed is its own.
    pub fn method(&self) -> Option<PruneMethod> {
        Some(match self.prune?.method {
            PruneMethod::Random(seed) => {
                PruneMethod::Random(seed ^ Hash128::of_block(self.info.name.as_bytes()).0 as u64)
            }
            PruneMethod::Magnitude => PruneMethod::Magnitude,
        })
    }

    /// Bytes of one element of the row view.
    pub fn width(&self) -> usize {
        if self.info.dtype.is_weight() { self.info.dtype.n_bits() / 8 } else { 1 }
    }

    /// The type of the elements of the row view in the output.
    pub fn value_dtype(&self) -> DType {
        if self.info.dtype.is_weight() { self.stored_dtype() } else { DType::U8 }
    }

    /// The type of a weight in the output, where it is no codes.
    pub fn stored_dtype(&self) -> DType {
        self.cast.unwrap_or(self.info.dtype)
    }

    /// Name, type and shape in the output.
    pub fn stored_info(&self) -> TensorInfo {
        TensorInfo { dtype: self.stored_dtype(), ..self.info.clone() }
    }

    /// The row view in the tensor's own order, whichever axis its outputs are.
    pub fn rows_as_stored(&self) -> Rows {
        let own = |info: &TensorInfo| Rows::of(&info.shape, OutputAxis::First);
        if self.info.dtype.is_weight() { own(self.info) } else { Rows::of_bytes(self.info.n_bytes()) }
    }

    /// Whether anything is done to it.
    pub fn is_changed(&self) -> bool {
        self.cast.is_some() || self.is_recoded()
    }

    /// Whether it may be kept as anything but dense floats.
    pub fn is_recoded(&self) -> bool {
        self.prune.is_some() || self.quant.is_some() || self.was_sparse
    }

    /// Leaves the tensor as it is.
    pub fn leave(&mut self, why: &str) {
        (self.prune, self.quant, self.cast, self.skipped) = (None, None, None, Some(why.to_string()));
        self.was_sparse = false;
        self.rows = self.rows_as_stored();
    }

    /// The codes it is kept as in this profile.
    pub fn codes(&self, profile: Profile) -> Option<Codes> {
        let quant = self.quant.filter(|_| matches!(profile, Profile::Briquette | Profile::CompressedTensors))?;
        let QuantSpec { grid, grouping, scale, .. } = quant.spec;
        Some(Codes { bits: grid.n_bits(), grid: grid.kind(), grouping, scale })
    }

    /// What the run time is to do with the activations it meets, as the manifest has it.
    pub fn activations(&self) -> Option<&'static str> {
        match self.quant?.activations {
            Activations::Float => None,
            Activations::DynamicSymmetric => Some(quantization_config::SYMMETRIC),
            Activations::DynamicAsymmetric => Some(quantization_config::ASYMMETRIC),
        }
    }

    /// How it is kept in this profile when `n_kept` of its elements are.
    pub fn coding(&self, profile: Profile, n_kept: usize) -> Coding {
        let codes = self.codes(profile);
        match profile {
            Profile::Briquette if self.is_recoded() => {
                Coding::smallest(codes, self.stored_dtype(), self.rows.n_rows, self.rows.n_cols, n_kept)
            }
            _ => Coding { codes, ..Coding::DENSE },
        }
    }

    /// The axis that the manifest records, by which values are hashed: a dense tensor is hashed in its own order, which only that of
    /// burn is not.
    pub fn stored_axis(&self, coding: Coding) -> OutputAxis {
        match self.rows.axis {
            OutputAxis::Last if coding == Coding::DENSE => OutputAxis::First,
            axis => axis,
        }
    }
}

impl<'a> Plan<'a> {
    /// Decides what becomes of each tensor, and of those of the student where a recipe trains one: see [`student_of`].
    ///
    /// # Errors
    /// As [`Plan::new`], for either.
    pub fn of(
        recipe: &Recipe,
        checkpoint: &'a Checkpoint,
        student: Option<&'a [TensorInfo]>,
        stop: &Stop,
    ) -> Result<Self> {
        match student {
            None => Self::new(recipe, checkpoint, stop),
            Some(tensors) => {
                check_start(recipe, checkpoint)?;
                student::plan(recipe, checkpoint, tensors, stop)
            }
        }
    }

    /// Decides what becomes of each tensor. Where a recipe trains in between, that of the model itself.
    ///
    /// # Errors
    /// Everything that recipe and headers show: Config for patterns, groups and N:M that do not fit, Refused for a
    /// model that is already quantized, or whose codes others would misread. Interrupted.
    pub fn new(recipe: &Recipe, checkpoint: &'a Checkpoint, stop: &Stop) -> Result<Self> {
        check_start(recipe, checkpoint)?;
        let is_interop = recipe.profile == Profile::CompressedTensors;
        let loads = is_interop.then(|| Loads::of(checkpoint)).transpose()?;
        let mut plan = Self::untouched(recipe, checkpoint, loads.as_ref())?;
        plan.check_axes()?;
        let spares_heads = heads::matter(recipe);
        let ties = match spares_heads || plan.profile == Profile::Briquette {
            true => crate::ties::ties_of(checkpoint, stop)?,
            false => BTreeMap::new(),
        };
        let heads = if spares_heads { heads::of(&plan, &ties, checkpoint)? } else { BTreeSet::new() };
        choose::apply_stages(&mut plan, recipe.file_stages().enumerate(), &heads, loads.as_ref())?;
        plan.check_fit()?;
        if let Some(loads) = loads {
            plan.untested = loads.check(&plan, recipe)?;
        }
        if plan.profile == Profile::Briquette {
            choose::tie(&mut plan, &ties);
        }
        Ok(plan)
    }

    /// Every tensor as it is.
    fn untouched(recipe: &Recipe, checkpoint: &'a Checkpoint, loads: Option<&Loads>) -> Result<Self> {
        let layout = recipe.layout.map(RawLayout::said).or_else(|| checkpoint.layout());
        let roles = Roles::of_model(checkpoint, layout, &recipe.roles)?;
        let tensors = untouched_tensors(checkpoint.tensors(), &roles);
        let layout = if layout == Some(WeightLayout::Burn) { RawLayout::Burn } else { RawLayout::Torch };
        let Recipe { profile, max_shard_bytes, allow_nonfinite, .. } = *recipe;
        let metadata = checkpoint.metadata();
        let pools = Vec::new();
        let mut plan = Self {
            tensors,
            pools,
            layout,
            metadata,
            profile,
            max_shard_bytes,
            allow_nonfinite,
            untested: None,
            remarks: Vec::new(),
        };
        if let Some(stored) = checkpoint.stored() {
            keep::keep_codings(&mut plan, stored, loads);
        }
        Ok(plan)
    }
}

/// Every tensor as it is.
fn untouched_tensors<'a>(tensors: &'a [TensorInfo], roles: &Roles) -> Vec<TensorPlan<'a>> {
    let mut shared = Shared::default();
    let tensor = |(index, info): (usize, &'a TensorInfo)| {
        let known = roles.of(info);
        let rows = match info.dtype.is_weight() {
            true => Rows::of(&info.shape, known.axis),
            false => Rows::of_bytes(info.n_bytes()),
        };
        let mut tensor = TensorPlan::new(index, info, Treatment::none(known, rows));
        shared.keep(&mut tensor);
        tensor
    };
    tensors.iter().enumerate().map(tensor).collect()
}

/// Refuses a model that is quantized already, and roles of tensors that it has not.
fn check_start(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<()> {
    if checkpoint.compressed() == Compressed::Quantized && recipe.file_stages().next().is_some() {
        let message =
            "the model is already quantized; compress the original, or `briquette export` this to dense first";
        return Err(Error::refused(message).at(checkpoint.path().display()));
    }
    if let Some(method) = checkpoint.quantized_by() {
        let message = format!(
            "the model is already quantized ({method}), which is not decoded here; start from the original weights"
        );
        return Err(Error::refused(message).at(checkpoint.path().display()));
    }
    let names = checkpoint.tensors().iter().map(|info| info.name.as_str());
    for rule in &recipe.roles {
        rule.patterns.check_used("tensor", names.clone()).map_err(|error| error.at("model.roles"))?;
    }
    Ok(())
}

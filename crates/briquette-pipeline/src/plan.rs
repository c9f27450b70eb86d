//! What becomes of each tensor, and what that will take: from headers, and from samples where weights may be tied.

mod choose;
mod exclude;
pub(crate) mod heads;
mod keep;
mod predict;

use crate::context::Stop;
use crate::recipe::{Method, Recipe, raw::RawLayout};
use crate::role::Role;
use briquette_core::{Coding, DType, Error, Grouping, OutputAxis, Result, Rows, encoded::Codes};
use briquette_formats::quantization_config;
use briquette_formats::{Checkpoint, Compressed, Format, Profile, TensorInfo, TensorSource};
use briquette_quant::{Activations, QuantSpec};
use std::collections::{BTreeMap, BTreeSet};

pub use predict::Prediction;

/// What becomes of a model.
#[derive(Debug, Clone)]
pub struct Plan {
    /// One for each tensor, in the order of the checkpoint.
    pub tensors: Vec<TensorPlan>,
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
    /// Free-form strings of the model's files, which come along where the format has a place for them.
    pub metadata: BTreeMap<String, String>,
    /// What is not done as asked, and why.
    pub remarks: Vec<String>,
}

/// What becomes of a tensor.
#[derive(Debug, Clone)]
pub struct TensorPlan {
    /// Its place in the checkpoint.
    pub index: usize,
    /// Name, type and shape.
    pub info: TensorInfo,
    /// What it is in its network.
    pub role: Role,
    /// Its row view. A tensor that is no weight is rows of one byte.
    pub rows: Rows,
    /// Which weights go.
    pub prune: Option<Prune>,
    /// The grid they are rounded to.
    pub quant: Option<Quant>,
    /// The type that it is stored in, where not its own.
    pub cast: Option<DType>,
    /// Whether it is kept sparse in the model already.
    pub was_sparse: bool,
    /// The tensor whose parts stand for this one.
    pub tied_to: Option<usize>,
    /// Why nothing is done, where nothing is.
    pub skipped: Option<String>,
}

/// Which weights go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prune {
    /// How they are scored; a random seed is the tensor's own.
    pub method: Method,
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

impl TensorPlan {
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
        if self.info.dtype.is_weight() { own(&self.info) } else { Rows::of_bytes(self.info.n_bytes()) }
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

    /// The axis that the manifest records: of a tensor kept as it came it does not matter.
    pub fn axis(&self, coding: Coding) -> OutputAxis {
        if coding == Coding::DENSE { OutputAxis::First } else { self.rows.axis }
    }
}

/// Which way Linear weights lie where the recipe does not say: as burn has them in its own format, and as they lay in what an
/// output was made of.
fn layout_of(checkpoint: &Checkpoint) -> RawLayout {
    let said = checkpoint.manifest().and_then(|manifest| manifest.recipe.pointer("/model/layout"));
    match checkpoint.format() {
        Format::Burnpack => RawLayout::Burn,
        _ if said.and_then(serde_json::Value::as_str) == Some("burn") => RawLayout::Burn,
        _ => RawLayout::Torch,
    }
}

impl Plan {
    /// Decides what becomes of each tensor. Where a recipe trains in between, that of the model itself: a smaller student takes
    /// less.
    ///
    /// # Errors
    /// Everything that recipe and headers show: Config for patterns, groups and N:M that do not fit, Refused for a
    /// model that is already quantized. Interrupted.
    pub fn new(recipe: &Recipe, checkpoint: &Checkpoint, stop: &Stop) -> Result<Self> {
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
        let mut plan = Self::untouched(recipe, checkpoint);
        let spares_heads = heads::matter(recipe);
        let ties = match spares_heads || plan.profile == Profile::Briquette {
            true => crate::ties::ties_of(checkpoint, stop)?,
            false => Vec::new(),
        };
        let heads = if spares_heads { heads::of(&plan, &ties, checkpoint)? } else { BTreeSet::new() };
        choose::apply_stages(&mut plan, recipe, &heads)?;
        plan.check_fit()?;
        if plan.profile == Profile::Briquette {
            choose::tie(&mut plan, &ties);
        }
        Ok(plan)
    }

    /// Every tensor as it is.
    fn untouched(recipe: &Recipe, checkpoint: &Checkpoint) -> Self {
        let layout = recipe.layout.unwrap_or_else(|| layout_of(checkpoint));
        let tensor = |(index, info): (usize, &TensorInfo)| {
            let role = Role::of(info, &recipe.roles);
            let axis = match (layout, role) {
                (RawLayout::Burn, Role::Linear) => OutputAxis::Last,
                _ => OutputAxis::First,
            };
            let rows =
                if info.dtype.is_weight() { Rows::of(&info.shape, axis) } else { Rows::of_bytes(info.n_bytes()) };
            let info = info.clone();
            let (prune, quant, cast, was_sparse, tied_to, skipped) = (None, None, None, false, None, None);
            TensorPlan { index, info, role, rows, prune, quant, cast, was_sparse, tied_to, skipped }
        };
        let tensors = checkpoint.tensors().iter().enumerate().map(tensor).collect();
        let Recipe { profile, max_shard_bytes, allow_nonfinite, .. } = *recipe;
        let metadata = checkpoint.metadata();
        let (pools, remarks) = (Vec::new(), Vec::new());
        let mut plan = Self { tensors, pools, layout, metadata, profile, max_shard_bytes, allow_nonfinite, remarks };
        if let Some(stored) = checkpoint.stored() {
            keep::keep_codings(&mut plan, stored);
        }
        plan
    }

    /// Refuses groups and patterns that do not fit the rows of some tensors, with what would leave those out.
    fn check_fit(&self) -> Result<()> {
        let misfits: Vec<(&TensorPlan, String)> =
            self.tensors.iter().filter_map(|tensor| Some((tensor, unfit(tensor)?))).collect();
        let Some((first, what)) = misfits.first() else { return Ok(()) };
        let others = match misfits.len() - 1 {
            0 => String::new(),
            n => format!(", nor those of {n} others"),
        };
        let names: Vec<&str> = misfits.iter().map(|(tensor, _)| tensor.info.name.as_str()).collect();
        let fit = self.tensors.iter().filter(|tensor| tensor.is_changed() && unfit(tensor).is_none());
        let fit: Vec<&str> = fit.map(|tensor| tensor.info.name.as_str()).collect();
        let is_group = first.quant.is_some_and(|quant| quant.spec.grouping.per_row(first.rows.n_cols).is_none());
        let fitting = if is_group { self.group_that_fits() } else { None };
        let instead = fitting.map_or("choose another".into(), |size| {
            format!("groups of {size} (such as int4-g{size}) divide all that are chosen: take those")
        });
        let message = format!(
            "{what} does not divide its {} columns{others}; {instead}, or leave out with {}",
            first.rows.n_cols,
            exclude::flags(&names, &fit)
        );
        Err(Error::config(message).at(first.culprit()))
    }
}

/// Groups smaller than this cost more in scales than they are worth.
const LEAST_GROUP: usize = 8;

impl Plan {
    /// The largest group, of those that are not larger than asked for, that divides the columns of everything in groups.
    fn group_that_fits(&self) -> Option<usize> {
        let grouped = self.tensors.iter().filter_map(|tensor| match tensor.quant?.spec.grouping {
            Grouping::Group(size) => Some((size, tensor.rows.n_cols)),
            _ => None,
        });
        let (most, common) = grouped.reduce(|(one, a), (other, b)| (one.min(other), gcd(a, b)))?;
        largest_group(most, common, self.profile)
    }
}

/// The largest group of at most so many columns that divides `common`.
fn largest_group(most: usize, common: usize, profile: Profile) -> Option<usize> {
    // What reads compressed-tensors has kernels for powers of two.
    let is_fine = |size: &usize| profile != Profile::CompressedTensors || size.is_power_of_two();
    (LEAST_GROUP..=most.min(common)).rev().filter(is_fine).find(|&size| common.is_multiple_of(size))
}

/// The greatest number that divides both.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The group or pattern that does not divide a tensor's columns.
fn unfit(tensor: &TensorPlan) -> Option<String> {
    let n_cols = tensor.rows.n_cols;
    if let Some(quant) = tensor.quant.filter(|quant| quant.spec.grouping.per_row(n_cols).is_none()) {
        return Some(quant.spec.grouping.to_string());
    }
    match tensor.prune.map(|prune| prune.cut) {
        Some(Cut::NOfM { n, m }) if !n_cols.is_multiple_of(m) => Some(format!("the pattern {n}:{m}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_group_is_one_that_the_format_can_hold() {
        assert_eq!(largest_group(128, gcd(576, 1152), Profile::Briquette), Some(96));
        assert_eq!(largest_group(128, 576, Profile::CompressedTensors), Some(64));
        assert_eq!(largest_group(128, gcd(64, 96), Profile::Dense), Some(32));
        assert_eq!((largest_group(16, 29, Profile::Briquette), largest_group(64, 4, Profile::Briquette)), (None, None));
    }
}

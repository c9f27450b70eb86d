//! The treatment of each tensor of a model.

mod exclude;
mod fit;
mod norms;
mod predict;
mod unsure;

use crate::known::{Known, Reason};
use crate::piece_sizes::PieceSizes;
use crate::treatment::{BlockBytes, SharedTreatments, Solve, Treatment};
use crate::weight_norm::WeightNorm;
use briquette_core::encoded::{Codes, Storage};
use briquette_core::{Coding, DType, Hash128, InputStats, InputView, OutputAxis, Result, Role, Rows};
use briquette_formats::onnx::Skeleton;
use briquette_formats::output_format::FilePart;
use briquette_formats::{OutputFormat, TensorInfo, ValueGrid, WeightLayout, activations, limits, quantization_config};
use briquette_methods::prune::Score;
use briquette_methods::quant::{Activations, ScaleSearch};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

pub use predict::Prediction;
pub use unsure::listed;

/// The treatment of a model's tensors, and properties of the output.
///
/// There may be millions of tensors, so equal treatments are shared.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    /// One plan per tensor, in the order of the checkpoint.
    pub tensors: Vec<TensorPlan<'a>>,
    /// Groups of tensors that share one threshold, and the share of weights that each prunes.
    pub pools: Vec<Pool>,
    /// Groups of tensors whose sparsities depend on the outliers of their blocks, with the sparsity of the
    /// whole group.
    pub outlier_pools: Vec<Pool>,
    /// The format of the output.
    pub profile: OutputFormat,
    /// The largest size of a shard.
    pub max_shard_bytes: u64,
    /// How tensors with NaN or infinity are treated.
    pub nonfinite: Nonfinite,
    /// The layout of the model's Linear weights.
    pub layout: WeightLayout,
    /// Why the output may not load in its target program, if the recipe allows that.
    pub untested: Option<String>,
    /// Free-form strings of the model's files, which are copied if the format has a place for them.
    pub metadata: BTreeMap<String, String>,
    /// Deviations from the recipe, with reasons.
    pub remarks: Vec<String>,
    /// Input statistics of tensors whose scores or ranges use them, by tensor index.
    pub inputs: BTreeMap<usize, InputView>,
    /// Directions of weight norms that are pruned or quantized, by tensor index.
    pub norms: BTreeMap<usize, WeightNorm>,
    /// The sizes of the pieces in which tensors are read.
    pub piece_sizes: PieceSizes,
    /// The files of the model, if the output is a copy of them with other values.
    pub skeleton: Option<Arc<Skeleton>>,
}

/// Marks an untied tensor. A model has fewer tensors than this.
const UNTIED: u32 = u32::MAX;

/// How tensors with NaN or infinity are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Nonfinite {
    /// They are refused everywhere.
    #[default]
    Refused,
    /// They are kept in unchanged tensors and refused in others.
    Unchanged,
    /// They are kept, and tensors that have them stay unchanged.
    Left,
}

/// The plan for one tensor. It dereferences to its [`Treatment`].
#[derive(Debug, Clone)]
pub struct TensorPlan<'a> {
    /// Name, type and shape.
    pub info: &'a TensorInfo,
    /// The index in the checkpoint, in four bytes, as there may be millions of tensors.
    index: u32,
    /// The index of the main tensor that it is tied to, or [`UNTIED`].
    tied_to: u32,
    treatment: Arc<Treatment>,
}

/// Tensors that share one threshold.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// The indices of the tensors in the plan.
    pub tensors: Vec<usize>,
    /// The share of their weights that is pruned.
    pub ratio: briquette_methods::prune::Ratio,
}

impl<'a> Plan<'a> {
    /// Creates a plan that leaves every tensor unchanged, under its own name.
    pub fn unchanged(tensors: &'a [TensorInfo], profile: OutputFormat, nonfinite: Nonfinite) -> Self {
        let mut shared = SharedTreatments::default();
        let tensor = |(index, info): (usize, &'a TensorInfo)| {
            let (role, why, rows) = match info.dtype.is_weight() {
                true => (Role::Unknown, Reason::NoRule, Rows::of(&info.shape, OutputAxis::First)),
                false => (Role::Other, Reason::NoWeight, Rows::of_bytes(info.n_bytes())),
            };
            let mut tensor = TensorPlan::new(index, info, Treatment::none(Known::new(role, why), rows));
            tensor.share(&mut shared);
            tensor
        };
        Self {
            piece_sizes: PieceSizes::LARGE,
            tensors: tensors.iter().enumerate().map(tensor).collect(),
            pools: Vec::new(),
            outlier_pools: Vec::new(),
            profile,
            max_shard_bytes: limits::MAX_SHARD_BYTES,
            nonfinite,
            layout: WeightLayout::Torch,
            untested: None,
            metadata: BTreeMap::new(),
            remarks: Vec::new(),
            inputs: BTreeMap::new(),
            norms: BTreeMap::new(),
            skeleton: None,
        }
    }
}

impl<'a> TensorPlan<'a> {
    /// Creates a plan for an untied tensor with this index in a checkpoint.
    pub fn new(index: usize, info: &'a TensorInfo, treatment: Treatment) -> Self {
        Self { index: index as u32, info, tied_to: UNTIED, treatment: Arc::new(treatment) }
    }

    /// Returns the tensor's index in the checkpoint.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// Returns the main tensor that this one is tied to. Its parts are used for both.
    pub fn tied_to(&self) -> Option<usize> {
        (self.tied_to != UNTIED).then_some(self.tied_to as usize)
    }

    /// Ties this tensor to a main tensor, or unties it.
    pub fn tie_to(&mut self, other: Option<usize>) {
        self.tied_to = other.map_or(UNTIED, |other| other as u32);
    }

    /// Returns the score of the weights, if the tensor is pruned. Random scores get a seed for each tensor.
    pub fn score(&self) -> Option<Score> {
        Some(match self.prune?.score {
            Score::Random(seed) => Score::Random(seed ^ Hash128::of_block(self.info.name.as_bytes()).0 as u64),
            score => score,
        })
    }

    /// Returns the treatment, which other tensors may share.
    pub fn treatment(&self) -> &Arc<Treatment> {
        &self.treatment
    }

    /// Sets the treatment.
    pub fn treat(&mut self, treatment: Arc<Treatment>) {
        self.treatment = treatment;
    }

    /// Shares an equal treatment of other tensors again, after this one was changed.
    pub fn share(&mut self, shared: &mut SharedTreatments) {
        self.treatment = shared.of(self.treatment.clone());
    }

    /// Returns the tensor's name for errors.
    pub fn culprit(&self) -> String {
        format!("tensor {:?}", self.info.name)
    }

    /// Returns the tensors in a file that store this tensor.
    ///
    /// # Errors
    /// Config: the format does not support the tensor.
    pub fn file_parts(&self, profile: OutputFormat, coding: Coding, n_kept: usize) -> Result<Vec<FilePart>> {
        let info = self.stored_info();
        let mut parts = profile.file_parts(&info, self.stored_axis(coding), coding, n_kept, self.activations())?;
        if let (Some(quant), Some(held)) =
            (self.static_quant().filter(|_| coding.codes.is_some()), profile.held_codes())
        {
            parts.extend(held.grid_parts(&info.name, quant.inputs.unwrap_or(ValueGrid::UNKNOWN)));
        }
        Ok(parts)
    }

    /// Returns the quantization, if the layer's inputs have a fixed grid.
    pub fn static_quant(&self) -> Option<crate::Quant> {
        self.quant.filter(|quant| quant.activations == Activations::Static)
    }

    /// Returns the number of bytes per element of the row view.
    pub fn width(&self) -> usize {
        if self.info.dtype.is_weight() { self.info.dtype.n_bits() / 8 } else { 1 }
    }

    /// Returns the element type of the row view in the output.
    pub fn value_dtype(&self) -> DType {
        if self.info.dtype.is_weight() { self.stored_dtype() } else { DType::U8 }
    }

    /// Returns the element type in the output, if the tensor has no codes.
    pub fn stored_dtype(&self) -> DType {
        self.cast.unwrap_or(self.info.dtype)
    }

    /// Returns whether input statistics fit the tensor: a number for each column, or for each column of each channel
    /// group of a convolution.
    pub fn takes(&self, stats: &InputStats) -> bool {
        let Rows { n_rows, n_cols, .. } = self.output_rows;
        let n_groups = stats.n_groups(n_cols);
        let has_groups = self.info.shape.0.len() > 2 && n_rows.is_multiple_of(n_groups);
        let n_inputs = stats.n_inputs();
        n_inputs == n_groups * n_cols
            && (n_groups == 1 || has_groups)
            && stats.gram.as_ref().is_none_or(|gram| gram.len() == n_inputs * n_cols)
    }

    /// Returns name, type and shape in the output.
    pub fn stored_info(&self) -> TensorInfo {
        TensorInfo { dtype: self.stored_dtype(), ..self.info.clone() }
    }

    /// Returns the rows that are read, encoded and hashed: outputs, or the tensor's own order if it stays
    /// unchanged.
    ///
    /// Copies of a tensor keep its order, even if the model's layout or the name implies another output axis.
    pub fn rows(&self) -> Rows {
        if self.is_changed() { self.output_rows } else { self.rows_as_stored() }
    }

    /// Returns the row view in the tensor's own order, whatever the axis of the outputs.
    pub fn rows_as_stored(&self) -> Rows {
        let own = |info: &TensorInfo| Rows::of(&info.shape, OutputAxis::First);
        if self.info.dtype.is_weight() { own(self.info) } else { Rows::of_bytes(self.info.n_bytes()) }
    }

    /// Returns whether the tensor changes in any way.
    pub fn is_changed(&self) -> bool {
        self.cast.is_some() || self.is_recoded() || self.is_moved || self.solve.moves()
    }

    /// Returns whether the tensor may be stored in another form than dense floats.
    pub fn is_recoded(&self) -> bool {
        self.prune.is_some() || self.quant.is_some() || self.was_sparse
    }

    /// Cancels the treatment of the tensor, and records the reason.
    pub fn leave(&mut self, why: &str) {
        (self.prune, self.quant, self.cast, self.skipped) = (None, None, None, Some(why.to_string()));
        (self.was_sparse, self.blocks) = (false, None);
        (self.solve, self.is_moved) = (Solve::default(), false);
    }

    /// Returns the codes of the tensor in this format.
    pub fn codes(&self, profile: OutputFormat) -> Option<Codes> {
        profile.held_codes()?;
        Some(self.quant?.spec.codes())
    }

    /// Returns the quantization of activations, as in the manifest.
    pub fn activations(&self) -> Option<&'static str> {
        match self.quant?.activations {
            Activations::Float => None,
            Activations::DynamicSymmetric => Some(quantization_config::SYMMETRIC),
            Activations::DynamicAsymmetric => Some(quantization_config::ASYMMETRIC),
            Activations::Static => Some(activations::STATIC),
        }
    }

    /// Returns how the tensor is stored in this format with `n_kept` kept elements.
    pub fn coding(&self, profile: OutputFormat, n_kept: usize) -> Coding {
        let codes = self.codes(profile);
        if let Some(coding) = self.entropy_coding(profile, codes) {
            return coding;
        }
        match profile.holds_sparse() && self.is_recoded() {
            true => {
                let Rows { n_rows, n_cols, .. } = self.rows();
                let found = Coding::smallest(codes, self.stored_dtype(), n_rows, n_cols, n_kept);
                // Zeros that a source of floats happens to have must save more than the entry of a bitmask takes in the header.
                let by_chance = self.prune.is_none() && !self.was_sparse;
                let dense = Coding { codes, ..Coding::DENSE };
                let [most, least] =
                    [dense, found].map(|coding| coding.n_bytes(self.stored_dtype(), n_rows, n_cols, n_kept) as u64);
                if by_chance && most - least < self.header_bytes_of_bitmask() { dense } else { found }
            }
            false => Coding { codes, ..Coding::DENSE },
        }
    }

    /// Returns the coding of entropy-coded codes, if the format supports them.
    fn entropy_coding(&self, profile: OutputFormat, codes: Option<Codes>) -> Option<Coding> {
        let blocks = self.blocks.filter(|_| profile.holds_sparse())?;
        let Rows { n_rows, n_cols, .. } = self.rows();
        let has_trellis = self.quant.is_some_and(|quant| quant.spec.has_trellis);
        let most = Coding::entropy(codes?, has_trellis, n_rows, n_cols)?;
        Some(match (blocks, most.storage) {
            (BlockBytes::Exactly(n_bytes), Storage::Entropy { has_trellis, .. }) => {
                Coding { storage: Storage::Entropy { n_bytes, has_trellis }, ..most }
            }
            _ => most,
        })
    }

    /// Returns whether the scales follow from more than the weights, so that the source has to give them.
    pub fn needs_given_scales(&self) -> bool {
        self.quant.is_some_and(|quant| matches!(quant.spec.range, ScaleSearch::StepByFrequency(_)))
    }

    /// Returns the output axis in the manifest, which also determines the order of the hash.
    ///
    /// A dense tensor is hashed in its own order. For burn's Linear and for transposed convolutions, this
    /// differs from rows.
    pub fn stored_axis(&self, coding: Coding) -> OutputAxis {
        match self.rows().axis {
            axis if axis.is_turned() && coding == Coding::DENSE => OutputAxis::First,
            axis => axis,
        }
    }
}

impl Deref for TensorPlan<'_> {
    type Target = Treatment;

    fn deref(&self) -> &Treatment {
        &self.treatment
    }
}

impl DerefMut for TensorPlan<'_> {
    /// Returns the treatment for changes. The tensor then has its own treatment until it is shared again.
    fn deref_mut(&mut self) -> &mut Treatment {
        Arc::make_mut(&mut self.treatment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Shape;

    #[test]
    fn equal_treatments_are_shared_and_a_change_affects_one_tensor() {
        let info = TensorInfo::checked("w".into(), DType::F32, vec![4, 2]).unwrap();
        let rows = Rows::of(&Shape(vec![4, 2]), OutputAxis::First);
        let mut shared = SharedTreatments::default();
        let known = Known { role: Role::Linear, axis: OutputAxis::First, why: Reason::Matrix };
        let tensor = |index| TensorPlan::new(index, &info, Treatment::none(known, rows));
        let mut tensors: Vec<TensorPlan> = (0..3).map(tensor).collect();
        tensors.iter_mut().for_each(|tensor| tensor.share(&mut shared));
        assert!(Arc::ptr_eq(&tensors[0].treatment, &tensors[2].treatment));
        tensors[1].cast = Some(DType::F16);
        tensors[1].share(&mut shared);
        assert_eq!((tensors[0].cast, tensors[1].cast, tensors[2].cast), (None, Some(DType::F16), None));
        tensors[2].cast = Some(DType::F16);
        tensors[2].share(&mut shared);
        assert!(Arc::ptr_eq(&tensors[1].treatment, &tensors[2].treatment));
    }
}

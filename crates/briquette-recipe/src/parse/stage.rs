//! Stages by kind, and their order.

use crate::parse::cast::CastStage;
use crate::parse::distill::{Around, DistillStage};
use crate::parse::factorize::FactorizeStage;
use crate::parse::fold::FoldStage;
use crate::parse::kind::StageKind;
use crate::parse::prune::{PruneStage, PruneTarget};
use crate::parse::quantize::QuantizeStage;
use crate::parse::raw::{RawQuantize, RawRecipe, RawStage, StageKeys, keys_of};
use crate::parse::selection::Selection;
use crate::parse::shrink::ShrinkStage;
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result};

use std::path::Path;

/// A stage that works on the whole model, and the stages between it and the previous one.
#[derive(Debug, Clone)]
pub struct RecipePart {
    /// The stages before it.
    pub stages: Vec<Stage>,
    /// The stage that works on the whole model.
    pub then: ModelStage,
}

/// A stage that works on the whole model.
#[derive(Debug, Clone)]
pub enum ModelStage {
    /// Trains the model.
    Distill(Box<DistillStage>),
    /// Replaces its tensors by smaller ones.
    Transform(Box<TransformStage>),
}

/// A stage that replaces tensors of a model by tensors of other shapes or values.
#[derive(Debug, Clone)]
pub enum TransformStage {
    /// Factorizes linear layers.
    Factorize(FactorizeStage),
    /// Removes channels, heads and blocks.
    Shrink(ShrinkStage),
    /// Moves norms and scales into other layers.
    Fold(FoldStage),
}

impl ModelStage {
    /// Returns the kind of the stage.
    pub fn kind(&self) -> StageKind {
        match self {
            Self::Distill(_) => StageKind::Distill,
            Self::Transform(stage) => match **stage {
                TransformStage::Factorize(_) => StageKind::Factorize,
                TransformStage::Shrink(_) => StageKind::Shrink,
                TransformStage::Fold(_) => StageKind::Fold,
            },
        }
    }

    /// Returns the distill stage, if it is one.
    pub fn as_distill(&self) -> Option<&DistillStage> {
        match self {
            Self::Distill(stage) => Some(stage),
            Self::Transform(_) => None,
        }
    }
}

impl RecipePart {
    /// Returns whether the training quantizes with step sizes that are not known yet.
    pub(crate) fn learns_steps(&self) -> bool {
        let quantize = self.then.as_distill().and_then(|stage| stage.quantize.as_ref());
        quantize.is_some_and(QuantizeStage::is_open)
    }
}

/// A stage that works on each tensor.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Prunes weights.
    Prune(PruneStage),
    /// Quantizes weights.
    Quantize(QuantizeStage),
    /// Stores floats in another type.
    Cast(CastStage),
}

/// The stages of a recipe.
pub(crate) struct RecipeStages {
    /// The stages that work on the whole model, each with the stages before it.
    pub(crate) parts: Vec<RecipePart>,
    /// The stages after the last part.
    pub(crate) stages: Vec<Stage>,
    /// The training of scales at the end.
    pub(crate) scales: Option<Box<DistillStage>>,
}

/// Returns the stages of a recipe with resolved paths, split after each stage that works on the whole model.
pub(crate) fn stages_of(raw: &RawRecipe) -> Result<RecipeStages> {
    let (mut parts, mut stages, mut scales) = (Vec::new(), Vec::new(), None);
    for (i, stage) in raw.stage.iter().enumerate() {
        let name = |error: Error| error.at(format_args!("stage {} ({})", i + 1, stage.kind_name()));
        match StageEffect::from_raw(raw, i).map_err(name)? {
            StageEffect::Nothing => {}
            _ if scales.is_some() => {
                return Err(name(Error::config(
                    "found this stage after one with train = \"scales\", which comes last; move it before that stage",
                )));
            }
            StageEffect::ModelStage(ModelStage::Distill(stage)) if stage.trains_scales => scales = Some(stage),
            StageEffect::Stage(stage) => stages.push(stage),
            StageEffect::ModelStage(then) => parts.push(RecipePart { stages: std::mem::take(&mut stages), then }),
        }
    }
    let is_last = |stage: &&RawStage| matches!(&stage.keys, StageKeys::Distill(keys) if keys.trains_scales());
    let ordered = raw.stage.iter().filter(|stage| !is_last(stage));
    check_order(&ordered.filter_map(RawStage::kind).collect::<Vec<_>>())?;
    Ok(RecipeStages { parts, stages, scales })
}

/// The effect of a stage on the weights.
#[expect(clippy::large_enum_variant, reason = "a few a recipe")]
enum StageEffect {
    /// None: the stage only evaluates.
    Nothing,
    /// A change of each tensor.
    Stage(Stage),
    /// A change of the whole model.
    ModelStage(ModelStage),
}

impl StageEffect {
    /// Returns the effect of the stage at `index`.
    fn from_raw(recipe: &RawRecipe, index: usize) -> Result<Self> {
        let raw = &recipe.stage[index];
        check_keys(raw)?;
        Ok(match &raw.keys {
            StageKeys::Prune(keys) => {
                Self::Stage(Stage::Prune(PruneStage::from_raw(keys, recipe.calibration.as_ref())?))
            }
            StageKeys::Quantize(keys) => {
                let is_trained = is_trained_before(&recipe.stage[..index]);
                Self::Stage(Stage::Quantize(QuantizeStage::from_raw(keys, recipe.calibration.as_ref(), is_trained)?))
            }
            StageKeys::Cast(keys) => Self::Stage(Stage::Cast(CastStage::from_raw(keys)?)),
            StageKeys::Factorize(keys) => Self::ModelStage(ModelStage::Transform(Box::new(TransformStage::Factorize(
                FactorizeStage::from_raw(keys)?,
            )))),
            StageKeys::Shrink(keys) => {
                let stage = ShrinkStage::from_raw(keys, recipe.calibration.as_ref())?;
                Self::ModelStage(ModelStage::Transform(Box::new(TransformStage::Shrink(stage))))
            }
            StageKeys::Fold(keys) => Self::ModelStage(ModelStage::Transform(Box::new(TransformStage::Fold(
                FoldStage::from_raw(keys, recipe.calibration.as_ref())?,
            )))),
            StageKeys::Distill(keys) => {
                let around = Around {
                    model: &recipe.model,
                    data: recipe.data.as_ref(),
                    memory: recipe.memory.as_ref(),
                    calibration: recipe.calibration.as_ref(),
                };
                let next = if keys.quantization_aware { next_quantize(&recipe.stage[index + 1..])? } else { None };
                Self::ModelStage(ModelStage::Distill(Box::new(DistillStage::from_raw(keys, around, next)?)))
            }
            StageKeys::Evaluate(_) => Self::Nothing,
            // This kind does not exist, so `parse` returns an error that lists the valid kinds.
            StageKeys::Unknown(name) => StageKind::parse(name).map(|_| Self::Nothing)?,
        })
    }
}

/// Returns whether a training knows the quantize stage after these stages.
fn is_trained_before(stages: &[RawStage]) -> bool {
    let aware = stages.iter().rev().find_map(|stage| match &stage.keys {
        StageKeys::Distill(keys) => Some(keys.quantization_aware),
        StageKeys::Quantize(_) => Some(false),
        _ => None,
    });
    aware.unwrap_or(false)
}

/// Returns the first quantize stage.
fn next_quantize(stages: &[RawStage]) -> Result<Option<&RawQuantize>> {
    for stage in stages {
        if let StageKeys::Quantize(keys) = &stage.keys {
            return check_keys(stage).map(|()| Some(keys));
        }
    }
    Ok(None)
}

/// Refuses a key that only stages of other kinds have.
fn check_keys(raw: &RawStage) -> Result<()> {
    match (raw.foreign_key(), raw.kind()) {
        (Some(_), Some(StageKind::Evaluate)) => Err(Error::config(
            "an evaluate stage has no key except kind; set its data in [data], and its bounds in [gate]",
        )),
        (Some(key), Some(kind)) => {
            let message =
                format!("a {kind} stage has no such key; remove it, or use one of {}", keys_of(kind).join(", "));
            Err(Error::config(message).at(key))
        }
        _ => Ok(()),
    }
}

/// Refuses stages that are out of order.
pub(crate) fn check_order(kinds: &[StageKind]) -> Result<()> {
    for (i, after) in kinds.iter().enumerate() {
        if let Some(before) = kinds[..i].iter().find(|before| after.comes_before(**before)) {
            return Err(Error::config(format!(
                "found a {after} stage after a {before} stage; put the {after} stage first"
            )));
        }
    }
    Ok(())
}

impl Stage {
    /// Returns the selection of tensors.
    pub fn selection(&self) -> &Selection {
        match self {
            Self::Prune(stage) => &stage.selection,
            Self::Quantize(stage) => &stage.selection,
            Self::Cast(stage) => &stage.selection,
        }
    }

    /// Returns the kind of the stage.
    pub fn kind(&self) -> StageKind {
        match self {
            Self::Prune(_) => StageKind::Prune,
            Self::Quantize(_) => StageKind::Quantize,
            Self::Cast(_) => StageKind::Cast,
        }
    }

    /// Returns the statistics file, if the stage uses one and it is known.
    pub fn statistics(&self) -> Option<&Path> {
        match self {
            Self::Prune(stage) => stage.statistics.as_deref(),
            Self::Quantize(stage) => stage.statistics.as_deref(),
            Self::Cast(_) => None,
        }
    }

    /// Sets the statistics file, if the stage uses one and has none.
    pub fn look_at(&mut self, path: &Path) {
        let (statistics, looks) = match self {
            Self::Prune(stage) => {
                let looks = stage.score.needs_inputs() || stage.reconstruction.is_some();
                (&mut stage.statistics, looks)
            }
            Self::Quantize(stage) => {
                let looks = stage.scheme.weights.range.needs_inputs() || stage.updates_weights();
                let looks = looks || stage.scales_columns() || stage.corrects_biases;
                (&mut stage.statistics, looks)
            }
            Self::Cast(_) => return,
        };
        if looks {
            statistics.get_or_insert_with(|| path.to_path_buf());
        }
    }

    /// Returns whether the stage prunes blocks with fewer outliers more.
    pub fn shares_by_outliers(&self) -> bool {
        matches!(self, Self::Prune(PruneStage { target: PruneTarget::Owl(_), .. }))
    }

    /// Returns whether the stage gives scales to columns.
    pub fn scales_columns(&self) -> bool {
        matches!(self, Self::Quantize(stage) if stage.scales_columns())
    }

    /// Returns whether biases take up the mean error of the stage's new weights.
    pub fn corrects_biases(&self) -> bool {
        matches!(self, Self::Quantize(stage) if stage.corrects_biases)
    }

    /// Returns whether the stage updates weights to preserve layer outputs.
    pub fn updates_weights(&self) -> bool {
        match self {
            Self::Prune(stage) => stage.reconstruction.is_some(),
            Self::Quantize(stage) => stage.updates_weights(),
            Self::Cast(_) => false,
        }
    }

    /// Returns the patterns of tensors with other values.
    pub fn overrides(&self) -> Vec<&Patterns> {
        match self {
            Self::Prune(stage) => stage.overrides.iter().map(|(patterns, _)| patterns).collect(),
            Self::Quantize(stage) => stage.overrides.iter().map(|(patterns, _)| patterns).collect(),
            Self::Cast(_) => Vec::new(),
        }
    }
}

//! The TOML structure of a recipe.

use super::budget::RawBudget;
use super::calibration::RawCalibration;
use super::data::{RawData, RawGate};
use super::memory::RawMemory;
use super::model::{RawModel, RawOutput};
use super::stage::{RawStage, StageKeys};
use crate::parse::kind::StageKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A recipe: a model, stages and an output directory. Paths are relative to the recipe's file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawRecipe {
    /// The model to compress.
    #[serde(default)]
    pub model: RawModel,
    /// The directory to write.
    #[serde(default)]
    pub output: RawOutput,
    /// The stages, in order: shrink, fold, factorize, prune and distill, then quantize, then cast; evaluate is last.
    #[serde(default)]
    pub stage: Vec<RawStage>,
    /// Data for training and evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RawData>,
    /// The source of input statistics, for methods that need layer inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<RawCalibration>,
    /// The size or quality budget of the weight files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<RawBudget>,
    /// Memory limits and batch size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<RawMemory>,
    /// Bounds that the metrics of an evaluate stage must meet; otherwise nothing is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<RawGate>,
}

impl RawRecipe {
    /// Returns whether a stage needs input statistics.
    pub fn needs_statistics(&self) -> bool {
        self.stage.iter().any(RawStage::needs_statistics)
    }

    /// Returns whether a stage that changes each tensor by itself needs input statistics. Stages that change the network use their own.
    pub fn tensors_need_statistics(&self) -> bool {
        let changes_network = |stage: &&RawStage| matches!(stage.kind(), Some(StageKind::Shrink | StageKind::Fold));
        self.stage.iter().filter(|stage| !changes_network(stage)).any(RawStage::needs_statistics)
    }

    /// Returns whether layers get static int8 activations.
    pub fn has_static_activations(&self) -> bool {
        let is_static = |stage: &RawStage| matches!(&stage.keys, StageKeys::Quantize(keys) if keys.is_static());
        self.stage.iter().any(is_static)
    }

    /// Returns whether a stage runs the model on calibration data, or needs statistics of such a run.
    pub fn uses_calibration(&self) -> bool {
        self.needs_statistics() || self.has_static_activations()
    }

    /// Returns whether the recipe has a stage of this kind.
    pub fn has(&self, kind: StageKind) -> bool {
        self.stage.iter().any(|stage| stage.kind() == Some(kind))
    }
}

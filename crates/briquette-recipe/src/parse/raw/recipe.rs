//! The whole of a recipe, as TOML has it.

use super::budget::RawBudget;
use super::calibration::RawCalibration;
use super::data::{RawData, RawGate};
use super::memory::RawMemory;
use super::model::{RawModel, RawOutput};
use super::stage::RawStage;
use crate::parse::kind::StageKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A recipe: one model in, one directory out, stages in between. Paths are relative to the recipe's file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawRecipe {
    /// The model to compress.
    #[serde(default)]
    pub model: RawModel,
    /// The directory to write.
    #[serde(default)]
    pub output: RawOutput,
    /// What to do, in order: factorize, prune and distill, then quantize, then cast, evaluate last.
    #[serde(default)]
    pub stage: Vec<RawStage>,
    /// What an evaluate stage runs the model on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RawData>,
    /// What methods that look at the inputs of layers learn them from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<RawCalibration>,
    /// How many bytes the weights may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<RawBudget>,
    /// What running the model may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<RawMemory>,
    /// What the metrics of an evaluate stage must reach, or nothing is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<RawGate>,
}

impl RawRecipe {
    /// Whether a stage looks at statistics of inputs.
    pub fn needs_statistics(&self) -> bool {
        self.stage.iter().any(RawStage::needs_statistics)
    }

    /// Whether it has a stage of this kind.
    pub fn has(&self, kind: StageKind) -> bool {
        self.stage.iter().any(|stage| stage.kind() == Some(kind))
    }
}

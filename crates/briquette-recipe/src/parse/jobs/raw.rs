//! The jobs file as TOML has it: no behaviour, every key spelled out.

use crate::parse::raw::{RawBudget, RawCalibration, RawData, RawGate, RawMemory, RawModel, RawOutput, RawStage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A jobs file: `[[job]]` tables, a `[matrix]` that multiplies a `[base]`, or both. Paths are relative to the file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawJobs {
    /// Jobs, in the order they run.
    #[serde(default)]
    pub job: Vec<RawJob>,
    /// The job that the matrix multiplies; its `output.path` names the axes: `"out/p{stage.0.sparsity}"`.
    pub base: Option<RawJob>,
    /// Dotted paths of the base's recipe, each with a list of values: every combination is a job, after all `[[job]]`s.
    #[serde(default)]
    pub matrix: BTreeMap<String, Value>,
    /// Outputs that were made elsewhere, which the page of all jobs shows beside them.
    #[serde(default)]
    pub also: Vec<PathBuf>,
}

/// One job: a recipe from a file or written out here, and changes to it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawJob {
    /// What tables and the journal call it; the last part of its output's path when absent. A matrix fills in `{axis}`.
    pub name: Option<String>,
    /// A recipe file, whose own paths stay relative to it; instead of `model`, `output` and `stage`.
    pub recipe: Option<PathBuf>,
    /// Values to put into the recipe, by dotted path: `"stage.0.sparsity" = 0.5`. Stages count from 0.
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    /// The model to compress.
    pub model: Option<RawModel>,
    /// The directory to write.
    pub output: Option<RawOutput>,
    /// What to do, in order: prune before quantize.
    pub stage: Option<Vec<RawStage>>,
    /// What an evaluate stage runs the model on.
    pub data: Option<RawData>,
    /// What running the model may use.
    pub memory: Option<RawMemory>,
    /// What methods that look at the inputs of layers learn them from.
    pub calibration: Option<RawCalibration>,
    /// How many bytes the weights may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<RawBudget>,
    /// What the metrics of an evaluate stage must reach.
    pub gate: Option<RawGate>,
}

//! The TOML structure of a jobs file, without checks.

use crate::parse::raw::{RawBudget, RawCalibration, RawData, RawGate, RawMemory, RawModel, RawOutput, RawStage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A jobs file: `[[job]]` tables, a `[base]` with a `[matrix]`, or both. Paths are relative to the file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawJobs {
    /// The jobs, in the order in which they run.
    #[serde(default)]
    pub job: Vec<RawJob>,
    /// The job that the matrix varies; its `output.path` has the axes as placeholders:
    /// `"out/p{stage.0.sparsity}"`.
    pub base: Option<RawJob>,
    /// Lists of values by dotted path into the base's recipe. Every combination is a job; these run after all
    /// `[[job]]` tables.
    #[serde(default)]
    pub matrix: BTreeMap<String, Value>,
    /// Existing outputs of other runs, shown in the batch report.
    #[serde(default)]
    pub also: Vec<PathBuf>,
}

/// A job: a recipe from a file or inline, and changes to it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawJob {
    /// The name in tables and in the journal; the last part of the output's path by default. A matrix fills in
    /// `{axis}`.
    pub name: Option<String>,
    /// A recipe file, instead of `model`, `output` and `stage`. Paths in it stay relative to it.
    pub recipe: Option<PathBuf>,
    /// Values to change in the recipe, by dotted path: `"stage.0.sparsity" = 0.5`. Stages count from 0.
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    /// The model to compress.
    pub model: Option<RawModel>,
    /// The directory to write.
    pub output: Option<RawOutput>,
    /// The stages, in the order in which they run: prune before quantize.
    pub stage: Option<Vec<RawStage>>,
    /// Data for training and evaluation.
    pub data: Option<RawData>,
    /// Memory limits and batch size.
    pub memory: Option<RawMemory>,
    /// The source of input statistics, for methods that need layer inputs.
    pub calibration: Option<RawCalibration>,
    /// The size or quality budget of the weight files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<RawBudget>,
    /// Bounds that the metrics of an evaluate stage must meet.
    pub gate: Option<RawGate>,
}

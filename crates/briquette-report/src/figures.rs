//! The figures of a report as plain data, for report.json. Whoever measured them fills them in; pages and terminal only read them.

mod allocation;
mod batch;
mod calibration;
mod evaluation;
mod factors;
mod sensitivity;
mod solved;
mod training;

pub use allocation::{AllocatedTensor, AllocationReport};
pub use batch::{BatchReport, BatchStatus, JobResult, JobStatus, OtherOutput};
use briquette_core::Role;
use briquette_core::stats::ErrorFigures;
pub use calibration::{CalibratedLayer, CalibrationReport};
pub(crate) use evaluation::REFERENCE;
pub use evaluation::{ContinuationFigures, EvaluationReport, HeldFigures, MemoryFigures, RunFigures};
pub use factors::FactorReport;
use schemars::JsonSchema;
pub use sensitivity::{SensitivityReport, TensorSensitivity};
use serde::{Deserialize, Serialize};
pub use solved::SolvedLayer;
pub use training::{CurvePoint, DistillReport, EpochPoint, LayersKept};

/// The version of report.json.
pub const VERSION: u32 = 1;

/// Everything a run has to say for itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Version of this structure.
    pub version: u32,
    /// The program that wrote it.
    pub producer: String,
    /// The model that was read.
    pub model: String,
    /// What it is made of.
    pub model_format: String,
    /// The directory that was written.
    pub output: String,
    /// Its format.
    pub format: String,
    /// The stages, in words.
    pub stages: Vec<String>,
    /// The original.
    pub before: Footprint,
    /// The output.
    pub after: Footprint,
    /// Bytes of the output's weight files, as the plan predicted them.
    pub predicted_bytes: u64,
    /// Whether the plan said exactly that, or at most that.
    pub prediction_is_exact: bool,
    /// Bytes of the output's weight files as the search of a budget estimated them, where it searched for the fewest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_bytes: Option<u64>,
    /// The tensors, in the order of the model.
    pub tensors: Vec<TensorReport>,
    /// What the original had and the output has not: a smaller student, or factors, have other tensors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<GoneTensor>,
    /// Weights of the tensors with the largest error, before and after.
    pub histograms: Vec<WeightHistogram>,
    /// What running it showed, where that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationReport>,
    /// The trainings, where there were any; tensors and errors are then against the last student, not the original.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<DistillReport>,
    /// The linear layers that became two factors, where any did; tensors and errors are then against the factors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub factorized: Vec<FactorReport>,
    /// Bytes of the weight files after each part of a recipe that trains or factorizes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stage_bytes: Vec<StageBytes>,
    /// Warnings.
    pub remarks: Vec<String>,
    /// Neutral notes: requested steps, and other entries of the model's files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Which steps tensors have for the sake of a budget, where one was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationReport>,
    /// Seconds of each phase.
    pub seconds: Vec<(String, f64)>,
    /// Seconds from the start of the run to the writing of this report. Trainings count from before a kill too.
    pub total_seconds: f64,
    /// Threads that worked.
    pub threads: usize,
    /// The most memory this process used so far, and how that was measured.
    pub peak_bytes: Option<u64>,
    /// The meter of `peak_bytes`.
    pub peak_meter: String,
}

impl Report {
    /// What errors of tensors and their histograms are against.
    pub(super) fn what_errors_are_against(&self) -> &'static str {
        match (self.trained.is_empty(), self.factorized.is_empty()) {
            (false, _) => "the trained student",
            (true, false) => "the factors",
            (true, true) => "the original",
        }
    }
}

/// How much room a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Footprint {
    /// Bytes of the weight files, as the file system reports them.
    pub file_bytes: u64,
    /// Bytes of the tensors in them, without headers: what holding them in memory as stored takes.
    pub tensor_bytes: u64,
    /// Elements of all tensors.
    pub n_elements: u64,
    /// Elements that are zero; of the original only where it was read for that.
    pub n_zeros: Option<u64>,
}

/// Bytes of the weight files after a part of a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageBytes {
    /// Which part.
    pub stage: String,
    /// The bytes, as the file system reports them.
    pub file_bytes: u64,
}

/// What became of a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// What it is in its network.
    pub role: Role,
    /// Its original type.
    pub dtype: String,
    /// Its original shape.
    pub shape: Vec<usize>,
    /// How it is kept, in words.
    pub encoding: String,
    /// Why that, where there was a choice or nothing was done.
    pub why: String,
    /// Bytes of the original's tensor of this name and shape; 0 where it has none.
    pub before_bytes: u64,
    /// Whether it has none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_new: bool,
    /// Bytes after, all parts.
    pub after_bytes: u64,
    /// Bits for each element after, all parts counted.
    pub bits_per_weight: f64,
    /// Share of elements that are zero after, as read back.
    pub sparsity: f64,
    /// How far it is from the original; none where nothing was done.
    pub error: Option<ErrorReport>,
    /// The square error of the layer's outputs over their square, `Σ E[x²]·e² / Σ E[x²]·w²`, where its inputs were seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<f64>,
    /// How moving its weights went, where they were moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved: Option<Box<SolvedLayer>>,
}

/// How far a tensor is from the original.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    /// Signal to noise in dB; none where they are equal.
    pub sqnr_db: Option<f64>,
    /// Cosine of the angle between them; none where one is all zeros.
    pub cosine: Option<f64>,
    /// Norm of the difference over the norm of the original.
    pub relative: f64,
}

impl From<ErrorFigures> for ErrorReport {
    fn from(figures: ErrorFigures) -> Self {
        Self { sqnr_db: figures.sqnr_db, cosine: figures.cosine, relative: figures.relative }
    }
}

/// A tensor of the original that the output does not have, by its name and shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoneTensor {
    /// Its name.
    pub name: String,
    /// What it was in its network.
    pub role: Role,
    /// Its type.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The bytes it took.
    pub bytes: u64,
}

/// Counts of weights over a range, before and after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WeightHistogram {
    /// Whose.
    pub name: String,
    /// The range runs from `-limit` to `limit`.
    pub limit: f32,
    /// Counts of the original.
    pub before: Vec<u32>,
    /// Counts of the fake_quantized values.
    pub after: Vec<u32>,
}

/// A row beside those of the output: kept as nothing.
impl From<&GoneTensor> for TensorReport {
    fn from(gone: &GoneTensor) -> Self {
        Self {
            name: gone.name.clone(),
            role: gone.role,
            dtype: gone.dtype.clone(),
            shape: gone.shape.clone(),
            encoding: String::new(),
            why: String::new(),
            before_bytes: gone.bytes,
            is_new: false,
            after_bytes: 0,
            bits_per_weight: 0.0,
            sparsity: 0.0,
            error: None,
            output_error: None,
            solved: None,
        }
    }
}

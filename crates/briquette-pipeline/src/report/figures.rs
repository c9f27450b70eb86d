//! The figures of a report as plain data, for report.json. Runs fill them in; pages and terminal output only
//! read them.

mod allocation;
mod batch;
mod calibration;
mod evaluation;
mod factors;
mod folded;
mod graph;
mod sensitivity;
mod shrunk;
mod solved;
mod tensor;
mod training;

pub use allocation::{AllocatedTensor, AllocationReport};
pub use batch::{BatchReport, BatchStatus, JobResult, JobStatus, OtherOutput};
pub use calibration::{CalibratedLayer, CalibrationReport};
pub(crate) use evaluation::REFERENCE;
pub use evaluation::{ContinuationFigures, EvaluationReport, HeldFigures, MemoryFigures, RunFigures};
pub use factors::FactorReport;
pub use folded::{FoldExponent, FoldReport};
pub use graph::{
    CouplingReport, DiagramNode, DiagramSection, DiagramWeight, GraphBlock, GraphDiagram, GraphNode, GraphOperand,
    GraphPrimitive, GraphReport, GraphTotals, GraphValue, GraphWeight, GroupFigures, GroupPlace,
};
use schemars::JsonSchema;
pub use sensitivity::{SensitivityReport, TensorSensitivity};
use serde::{Deserialize, Serialize};
pub use shrunk::{ShrinkReport, ShrunkGroup};
pub use solved::SolvedLayer;
pub use tensor::{ErrorReport, GoneTensor, TensorReport, TensorTraits};
pub use training::{CurvePoint, DistillReport, EpochPoint, LayersKept};

/// The version of report.json.
pub const VERSION: u32 = 1;

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Version of this structure.
    pub version: u32,
    /// The program that wrote the report.
    pub producer: String,
    /// The path of the original model.
    pub model: String,
    /// The format of the original model.
    pub model_format: String,
    /// The path of the output.
    pub output: String,
    /// The format of the output.
    pub format: String,
    /// The stages as short text.
    pub stages: Vec<String>,
    /// Size of the original model.
    pub before: Footprint,
    /// Size of the output.
    pub after: Footprint,
    /// Predicted bytes of the output's weight files.
    pub predicted_bytes: u64,
    /// Whether the prediction is exact; otherwise it is an upper bound.
    pub prediction_is_exact: bool,
    /// Estimated bytes of the output's weight files, if a budget searched for the smallest size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_bytes: Option<u64>,
    /// The tensors, in the order of the model.
    pub tensors: Vec<TensorReport>,
    /// Tensors of the original without a counterpart in the output, because a smaller student, factors or
    /// a shrunk model have other tensors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<GoneTensor>,
    /// Weight histograms of the tensors with the largest errors, before and after.
    pub histograms: Vec<WeightHistogram>,
    /// Results of the evaluation, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationReport>,
    /// The trainings. After a training, tensors and errors are compared with the last student instead of the
    /// original.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<DistillReport>,
    /// The factorized linear layers. After a factorization, tensors and errors are compared with the factors
    /// instead of the original.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub factorized: Vec<FactorReport>,
    /// The channels, heads and blocks that were removed. Tensors and errors are then compared with the smaller
    /// model instead of the original.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shrunk: Vec<ShrinkReport>,
    /// The folds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folded: Vec<FoldReport>,
    /// Bytes of the weight files after each part of a recipe that trains, factorizes, shrinks or folds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stage_bytes: Vec<StageBytes>,
    /// Warnings.
    pub remarks: Vec<String>,
    /// Notes that are not warnings: what ran as requested, and other entries of the model's files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The network of the model that the stages read, if its family is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphDiagram>,
    /// The step sizes that a budget chose, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationReport>,
    /// Seconds of each phase.
    pub seconds: Vec<(String, f64)>,
    /// Seconds from the start of the run to the writing of this report. Training before a kill counts too.
    pub total_seconds: f64,
    /// Number of worker threads.
    pub threads: usize,
    /// Peak memory of this process so far, in bytes.
    pub peak_bytes: Option<u64>,
    /// How `peak_bytes` was measured.
    pub peak_meter: String,
}

impl Report {
    /// Returns the model that errors and histograms are compared with.
    pub(super) fn what_errors_are_against(&self) -> &'static str {
        match (self.trained.is_empty(), self.factorized.is_empty(), self.shrunk.is_empty()) {
            (false, ..) => "the trained student",
            (true, false, _) => "the factors",
            (true, true, false) => "the shrunk model",
            (true, true, true) if !self.folded.is_empty() => "the folded model",
            (true, true, true) => "the original",
        }
    }
}

/// The size of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Footprint {
    /// Bytes of the weight files, as the file system reports them.
    pub file_bytes: u64,
    /// Bytes of their tensors without headers: the memory that they need as stored.
    pub tensor_bytes: u64,
    /// Elements of all tensors.
    pub n_elements: u64,
    /// Elements that are zero; for the original only if they were counted.
    pub n_zeros: Option<u64>,
}

/// Bytes of the weight files after a part of a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageBytes {
    /// The part.
    pub stage: String,
    /// The bytes, as the file system reports them.
    pub file_bytes: u64,
}

/// Counts of weights over a range, before and after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WeightHistogram {
    /// The name of the tensor.
    pub name: String,
    /// The range is `-limit` to `limit`.
    pub limit: f32,
    /// Counts of the original.
    pub before: Vec<u32>,
    /// Counts of the dequantized values.
    pub after: Vec<u32>,
}

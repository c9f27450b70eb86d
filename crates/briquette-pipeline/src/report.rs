//! Reports: the predicted and the measured figures of a run, as JSON, as a page and for a terminal.
//!
//! Figures are plain data. A run of file stages gathers its results in an [`Evidence`], from which [`make()`]
//! creates a [`Report`].

mod batch_result;
pub mod columns;
pub mod diff;
mod evidence;
mod figures;
mod first;
pub mod graph;
pub mod groups;
mod histogram;
pub mod html;
pub mod inspect;
mod json;
mod make;
pub mod metrics;
mod notes;
pub mod numbers;
mod origin;
mod original;
mod remarks;
mod running;
#[cfg(test)]
mod sample;
mod tensors;
pub mod terminal;
mod trace;
mod unused_budget;
mod usual_loss;
pub mod width;

use briquette_core::memory::{MemoryMeter, ResidentSet};
use briquette_core::{Error, Result};
use briquette_formats::Draft;
pub use evidence::{Evidence, Timing};
pub use figures::{
    AllocatedTensor, AllocationReport, BatchReport, BatchStatus, CalibratedLayer, CalibrationReport,
    ContinuationFigures, CouplingReport, CurvePoint, DiagramNode, DiagramSection, DiagramWeight, DistillReport,
    EpochPoint, ErrorReport, EvaluationReport, FactorReport, FoldExponent, FoldReport, Footprint, GoneTensor,
    GraphBlock, GraphDiagram, GraphNode, GraphOperand, GraphPrimitive, GraphReport, GraphTotals, GraphValue,
    GraphWeight, GroupFigures, GroupPlace, HeldFigures, JobResult, JobStatus, LayersKept, MemoryFigures, OtherOutput,
    Report, RunFigures, SensitivityReport, ShrinkReport, ShrunkGroup, SolvedLayer, StageBytes, TensorReport,
    TensorSensitivity, TensorTraits, VERSION, WeightHistogram,
};
pub use histogram::worst_tensors;
pub use make::make;
pub use origin::Origin;
pub use original::Original;
pub use remarks::untested_text;
use serde::Serialize;
use std::path::Path;
pub use trace::Trace;

impl Report {
    /// Sets the time and the peak memory of the run, and writes `report.json` and `report.html` to its draft.
    ///
    /// No checksum covers these files.
    ///
    /// # Errors
    /// * Bug: the report cannot be written as JSON.
    /// * Io: a file cannot be written.
    pub fn finish(&mut self, origin: &Origin, draft: &Draft) -> Result<()> {
        self.total_seconds = origin.total_seconds();
        (self.peak_bytes, self.peak_meter) = (ResidentSet.peak_bytes(), ResidentSet.name().to_string());
        draft.write_with(Path::new("report.json"), |out| json::write(self, out))?;
        draft.write_file(Path::new("report.html"), html::to_html(self).as_bytes())
    }
}

/// Returns the report as it is written.
///
/// # Errors
/// Bug: the report cannot be written as JSON.
pub fn to_json(report: &impl Serialize) -> Result<Vec<u8>> {
    let mut json = Vec::new();
    json::write(report, &mut json).map_err(|error| Error::bug(format!("the report: {error}")))?;
    Ok(json)
}

/// Returns the JSON Schema of report.json.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Report).to_value()
}

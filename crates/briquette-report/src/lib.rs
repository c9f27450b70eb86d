//! What a run claims and what it measured, side by side: as JSON, as a page and for a terminal.
//!
//! Figures are plain data, whoever measured them. What a run of file stages shows is gathered in an [`Evidence`], from which [`make()`]
//! puts a [`Report`] together.

pub mod diff;
mod evidence;
mod figures;
mod first;
mod histogram;
pub mod html;
pub mod inspect;
mod json;
mod make;
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
mod width;

use briquette_core::{Error, Result};
use briquette_formats::Draft;
pub use evidence::{Evidence, Timing};
pub use figures::{
    AllocatedTensor, AllocationReport, BatchReport, BatchStatus, CalibratedLayer, CalibrationReport,
    ContinuationFigures, CurvePoint, DistillReport, EpochPoint, ErrorReport, EvaluationReport, FactorReport, Footprint,
    GoneTensor, HeldFigures, JobResult, JobStatus, LayersKept, MemoryFigures, OtherOutput, Report, RunFigures,
    SensitivityReport, SolvedLayer, StageBytes, TensorReport, TensorSensitivity, VERSION, WeightHistogram,
};
pub use make::make;
pub use origin::Origin;
pub use original::Original;
pub use remarks::untested_text;
use serde::Serialize;
use std::path::Path;
pub use trace::Trace;

impl Report {
    /// Writes it into a draft for programs and for people: `report.json` and `report.html`. No sum covers either.
    ///
    /// # Errors
    /// Bug, where it cannot be written as JSON; Io.
    pub fn write(&self, draft: &Draft) -> Result<()> {
        draft.write_with(Path::new("report.json"), |out| json::write(self, out))?;
        draft.write_file(Path::new("report.html"), html::to_html(self).as_bytes())
    }
}

/// The report as it is written.
///
/// # Errors
/// Bug, where it cannot be written as JSON.
pub fn to_json(report: &impl Serialize) -> Result<Vec<u8>> {
    let mut json = Vec::new();
    json::write(report, &mut json).map_err(|error| Error::bug(format!("the report: {error}")))?;
    Ok(json)
}

/// The JSON Schema of report.json.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Report).to_value()
}

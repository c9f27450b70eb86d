//! What a run claims and what it measured, side by side.

pub mod html;
mod running;
pub mod terminal;

use crate::context::Workers;
use crate::distill::{DistillReport, LayersKept};
use crate::encode::Outcome;
use crate::evaluate::EvaluationReport;
use crate::factorize::FactorReport;
use crate::layout::Layout;
use crate::plan::{Plan, Prediction, TensorPlan};
use crate::recipe::{Recipe, StageKind, raw::RawStage};
use crate::run::Origin;
use crate::verify::Found;
use briquette_core::memory::{MemoryMeter, ResidentSet};
use briquette_core::printable::printable_json;
use briquette_core::stats::ErrorFigures;
use briquette_core::{Error, Result, Shape, Storage};
use briquette_formats::Checkpoint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Instant;

mod histogram;
pub mod numbers;
mod original;
mod remarks;
#[cfg(test)]
mod sample;

pub use histogram::WeightHistogram;
pub use original::GoneTensor;
pub(crate) use original::Original;
pub use remarks::untested_text;

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
    /// Bytes of the output's weight files, as the plan foretold them.
    pub predicted_bytes: u64,
    /// Whether the plan said exactly that, or at most that.
    pub prediction_is_exact: bool,
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
    /// What a reader should know.
    pub remarks: Vec<String>,
    /// Seconds of each phase.
    pub seconds: Vec<(String, f64)>,
    /// Seconds in all, trainings too, up to the report itself.
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
    fn what_errors_are_against(&self) -> &'static str {
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
    pub role: crate::Role,
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

/// Seconds of each phase so far.
#[derive(Debug, Clone, Default)]
pub struct Timing(Vec<(String, f64)>);

impl Timing {
    /// A phase that began at `since` is over.
    pub fn mark(&mut self, phase: &str, since: Instant) {
        self.0.push((phase.to_string(), since.elapsed().as_secs_f64()));
    }
}

/// All that a report is made of.
#[derive(Debug)]
pub struct Made<'a> {
    /// What was asked.
    pub recipe: &'a Recipe,
    /// Where the model comes from.
    pub(crate) origin: &'a Origin,
    /// The original.
    pub checkpoint: &'a Checkpoint,
    /// What was planned.
    pub plan: &'a Plan<'a>,
    /// Where it was put.
    pub layout: &'a Layout,
    /// What encoding showed.
    pub outcomes: &'a [Outcome],
    /// What was read back, by the order of names.
    pub found: &'a [Found],
    /// The draft, open for reading.
    pub written: &'a Checkpoint,
    /// What was foretold.
    pub prediction: Prediction,
    /// What running it showed.
    pub evaluation: Option<EvaluationReport>,
}

/// Puts a report together.
///
/// # Errors
/// Those of reading a few tensors once more for their histograms.
pub fn make(made: &Made, workers: &Workers, timing: Timing, started: Instant) -> Result<Report> {
    let mut tensors = tensors_of(made);
    let original = made.origin.original.as_ref();
    let gone = original.map_or(Vec::new(), |original| original.put_before(&mut tensors));
    let n_elements = made.plan.tensors.iter().map(|tensor| tensor.info.n_elements() as u64).sum();
    let mut report = Report {
        version: VERSION,
        producer: concat!("briquette ", env!("CARGO_PKG_VERSION")).into(),
        model: made.origin.model.display().to_string(),
        model_format: original.map_or_else(|| made.checkpoint.format().to_string(), |original| original.format.clone()),
        output: made.recipe.output.display().to_string(),
        format: made.plan.profile.name().to_string(),
        stages: stages_in_words(made),
        before: original.map_or_else(|| of_what_is_read(made, n_elements), |original| original.footprint),
        after: Footprint {
            file_bytes: made.written.weight_bytes(),
            tensor_bytes: tensors.iter().map(|tensor| tensor.after_bytes).sum(),
            n_elements,
            n_zeros: Some(made.found.iter().map(|found| found.n_zeros as u64).sum()),
        },
        predicted_bytes: made.prediction.n_bytes,
        prediction_is_exact: made.prediction.is_exact,
        histograms: histogram::of_worst(made, &tensors, workers)?,
        tensors,
        gone,
        evaluation: made.evaluation.clone(),
        trained: made.origin.trained.clone(),
        factorized: made.origin.factorized.clone(),
        stage_bytes: stage_bytes(made),
        remarks: Vec::new(),
        seconds: made.origin.seconds.iter().cloned().chain(timing.0).collect(),
        total_seconds: made.origin.spent + started.elapsed().as_secs_f64(),
        threads: workers.n_threads(),
        peak_bytes: ResidentSet.peak_bytes(),
        peak_meter: ResidentSet.name().to_string(),
    };
    report.remarks = remarks::of(&report, made);
    Ok(report)
}

fn of_what_is_read(made: &Made, n_elements: u64) -> Footprint {
    Footprint {
        file_bytes: made.checkpoint.weight_bytes(),
        tensor_bytes: made.plan.tensors.iter().map(|tensor| tensor.info.n_bytes() as u64).sum(),
        n_elements,
        n_zeros: None,
    }
}

/// The stages in words: of a student of fewer layers, how many of how many.
fn stages_in_words(made: &Made) -> Vec<String> {
    let mut trained = made.origin.trained.iter();
    let words = |stage: &RawStage| {
        let layers =
            if stage.kind() == Some(StageKind::Distill) { trained.next().and_then(|found| found.layers) } else { None };
        let words = stage.in_words();
        layers.map_or(words.clone(), |LayersKept { n, of }| words.replacen("layers", &format!("layers {n} of {of}"), 1))
    };
    made.recipe.asked.stage.iter().map(words).collect()
}

/// Bytes after each part, the output's last; none where there was one part only.
fn stage_bytes(made: &Made) -> Vec<StageBytes> {
    let mut bytes = made.origin.bytes.clone();
    if !bytes.is_empty() {
        bytes.push(StageBytes { stage: "output".into(), file_bytes: made.written.weight_bytes() });
    }
    bytes
}

fn tensors_of(made: &Made) -> Vec<TensorReport> {
    let mut by_name: Vec<&str> = made.plan.tensors.iter().map(|tensor| tensor.info.name.as_str()).collect();
    by_name.sort_unstable();
    let one = |tensor: &TensorPlan| {
        let placed = &made.layout.tensors[tensor.index];
        let parts = placed.coding.parts(tensor.value_dtype(), tensor.rows.n_rows, tensor.rows.n_cols, placed.n_kept);
        let n = tensor.info.n_elements().max(1) as f64;
        let after_bytes =
            if tensor.tied_to.is_some() { 0 } else { parts.iter().map(|part| part.n_bytes() as u64).sum::<u64>() };
        let found = by_name.binary_search(&tensor.info.name.as_str()).ok().and_then(|place| made.found.get(place));
        let error = tensor.is_changed().then(|| ErrorReport::from(made.outcomes[tensor.index].stats.figures()));
        TensorReport {
            name: tensor.info.name.clone(),
            role: tensor.role,
            dtype: tensor.info.dtype.to_string(),
            shape: tensor.info.shape.0.clone(),
            encoding: encoding_of(made, tensor),
            why: why_of(made, tensor),
            before_bytes: tensor.info.n_bytes() as u64,
            is_new: false,
            after_bytes,
            bits_per_weight: after_bytes as f64 * 8.0 / n,
            sparsity: found.map_or(0.0, |found| found.n_zeros as f64 / n),
            error,
        }
    };
    made.plan.tensors.iter().map(one).collect()
}

/// `int8 per channel, bitmask`.
fn encoding_of(made: &Made, tensor: &TensorPlan) -> String {
    if let Some(main) = tensor.tied_to {
        return format!("tied to {}", made.plan.tensors[main].info.name);
    }
    let coding = made.layout.tensors[tensor.index].coding;
    let values = match coding.codes {
        Some(codes) => {
            let sign = if codes.grid == briquette_core::GridKind::Asymmetric { " asymmetric" } else { "" };
            format!("int{}{sign} {}", codes.bits, codes.grouping)
        }
        None => tensor.stored_dtype().to_string().to_lowercase(),
    };
    match coding.storage {
        Storage::Dense => values,
        Storage::Bitmask => format!("{values}, bitmask"),
    }
}

fn why_of(made: &Made, tensor: &TensorPlan) -> String {
    if let Some(skipped) = &tensor.skipped {
        return skipped.clone();
    }
    let placed = &made.layout.tensors[tensor.index];
    if tensor.prune.is_none() || made.plan.profile != briquette_formats::Profile::Briquette {
        return String::new();
    }
    match placed.coding.storage {
        Storage::Bitmask => "bitmask is smaller than dense".into(),
        Storage::Dense => "too few zeros for a bitmask to save anything".into(),
    }
}

/// The report as it is written.
///
/// # Errors
/// Bug, where it cannot be written as JSON.
pub fn to_json(report: &Report) -> Result<Vec<u8>> {
    let json = serde_json::to_string_pretty(report).map_err(|error| Error::bug(format!("the report: {error}")))?;
    Ok((printable_json(&json) + "\n").into_bytes())
}

/// The JSON Schema of report.json.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Report).to_value()
}

/// A shape as text: `[768, 3072]`.
pub fn shape_text(shape: &[usize]) -> String {
    Shape::from(shape).to_string()
}

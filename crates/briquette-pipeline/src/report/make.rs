//! Creates a report from the results of a run.

use super::evidence::{Evidence, Timing};
use super::figures::{Footprint, GraphDiagram, LayersKept, Report, StageBytes, VERSION};
use super::{graph, histogram, notes, remarks, tensors};
use briquette_core::{Result, shown_path};
use briquette_recipe::StageKind;
use briquette_recipe::plan::topology_of;
use briquette_recipe::raw::RawStage;
use briquette_writer::context::Workers;

/// Largest number of nodes of a graph in a report.
const MAX_GRAPH_NODES: usize = 500;

/// Creates a report. [`Report::finish`] adds the time and the memory of the whole run.
///
/// # Errors
/// Input or Io: a tensor cannot be read for its histogram.
pub fn make(evidence: &Evidence, workers: &Workers, timing: Timing) -> Result<Report> {
    let mut tensors = tensors::of(evidence);
    let original = evidence.origin.original.as_ref();
    let gone = original.map_or(Vec::new(), |original| original.put_before(&mut tensors));
    let n_elements = evidence.plan.tensors.iter().map(|tensor| tensor.info.n_elements() as u64).sum();
    let mut report = Report {
        version: VERSION,
        producer: concat!("briquette ", env!("CARGO_PKG_VERSION")).into(),
        model: shown_path(&evidence.origin.model),
        model_format: original
            .map_or_else(|| evidence.checkpoint.format().to_string(), |original| original.format.clone()),
        output: shown_path(&evidence.recipe.output),
        format: evidence.plan.profile.name().to_string(),
        stages: stages_in_words(evidence),
        before: original.map_or_else(|| of_what_is_read(evidence, n_elements), |original| original.footprint),
        after: Footprint {
            file_bytes: evidence.written_bytes(),
            tensor_bytes: tensors.iter().map(|tensor| tensor.after_bytes).sum(),
            n_elements,
            n_zeros: Some(evidence.n_zeros.iter().sum()),
        },
        predicted_bytes: evidence.prediction.n_bytes,
        prediction_is_exact: evidence.prediction.is_exact,
        estimated_bytes: evidence.origin.estimated_bytes.filter(|_| !evidence.prediction.is_exact),
        histograms: histogram::of_worst(evidence, workers)?,
        tensors,
        gone,
        evaluation: evidence.evaluation.clone(),
        trained: evidence.origin.trained.clone(),
        factorized: evidence.origin.factorized.clone(),
        shrunk: evidence.origin.shrunk.clone(),
        folded: evidence.origin.folded.clone(),
        stage_bytes: stage_bytes(evidence),
        remarks: Vec::new(),
        notes: Vec::new(),
        graph: graph_of(evidence)?,
        allocation: evidence.origin.allocation.clone(),
        seconds: evidence.origin.seconds.iter().cloned().chain(timing.0).collect(),
        total_seconds: evidence.origin.total_seconds(),
        threads: workers.n_threads(),
        peak_bytes: None,
        peak_meter: String::new(),
    };
    (report.remarks, report.notes) = (remarks::of(&report, evidence), notes::of(&report, evidence));
    Ok(report)
}

/// Returns the network of the model that the stages read; none if its family is not known.
fn graph_of(evidence: &Evidence) -> Result<Option<GraphDiagram>> {
    let topology = topology_of(evidence.recipe, evidence.checkpoint)?;
    let diagram = topology.graph().map(graph::diagram).transpose()?;
    Ok(diagram.filter(|diagram| diagram.nodes.len() <= MAX_GRAPH_NODES))
}

fn of_what_is_read(evidence: &Evidence, n_elements: u64) -> Footprint {
    Footprint {
        file_bytes: evidence.checkpoint.weight_bytes(),
        tensor_bytes: evidence.plan.tensors.iter().map(|tensor| tensor.info.n_bytes() as u64).sum(),
        n_elements,
        n_zeros: None,
    }
}

/// Returns the stages as text; a student with fewer layers has both numbers of layers.
fn stages_in_words(evidence: &Evidence) -> Vec<String> {
    let mut trained = evidence.origin.trained.iter();
    let words = |stage: &RawStage| {
        let layers =
            if stage.kind() == Some(StageKind::Distill) { trained.next().and_then(|found| found.layers) } else { None };
        let words = stage.in_words();
        layers.map_or(words.clone(), |LayersKept { n, of }| words.replacen("layers", &format!("layers {n} of {of}"), 1))
    };
    evidence.recipe.asked.stage.iter().map(words).collect()
}

/// Returns the bytes after each part, with the output last; empty if there was only one part.
fn stage_bytes(evidence: &Evidence) -> Vec<StageBytes> {
    let mut bytes = evidence.origin.bytes.clone();
    if !bytes.is_empty() {
        bytes.push(StageBytes { stage: "output".into(), file_bytes: evidence.written_bytes() });
    }
    bytes
}

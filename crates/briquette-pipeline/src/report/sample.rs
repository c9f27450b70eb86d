//! Reports for tests.

use super::figures::{
    BatchReport, ContinuationFigures, CurvePoint, DistillReport, EpochPoint, ErrorReport, EvaluationReport, Footprint,
    GoneTensor, HeldFigures, JobResult, JobStatus, MemoryFigures, Report, RunFigures, StageBytes, TensorReport,
    TensorTraits, VERSION, WeightHistogram,
};
use briquette_core::Role;
use std::collections::BTreeMap;

/// Returns an empty report: no tensors, no bytes, no figures.
pub(super) fn empty() -> Report {
    let nothing = Footprint { file_bytes: 0, tensor_bytes: 0, n_elements: 0, n_zeros: None };
    Report {
        version: VERSION,
        producer: "briquette 0.0.0".into(),
        model: String::new(),
        model_format: String::new(),
        output: String::new(),
        format: String::new(),
        stages: Vec::new(),
        before: nothing,
        after: nothing,
        predicted_bytes: 0,
        prediction_is_exact: true,
        estimated_bytes: None,
        tensors: Vec::new(),
        gone: Vec::new(),
        histograms: Vec::new(),
        evaluation: None,
        trained: Vec::new(),
        factorized: Vec::new(),
        shrunk: Vec::new(),
        folded: Vec::new(),
        stage_bytes: Vec::new(),
        remarks: Vec::new(),
        notes: Vec::new(),
        graph: None,
        allocation: None,
        seconds: Vec::new(),
        total_seconds: 0.0,
        threads: 0,
        peak_bytes: None,
        peak_meter: String::new(),
    }
}

/// Returns a report of some tensors of a transformer.
pub(super) fn of_layers(n_layers: usize) -> Report {
    let kinds = ["attention.query.weight", "mlp.up.weight", "norm.weight"];
    let names = (0..n_layers).flat_map(|layer| kinds.map(|kind| format!("encoder.layer.{layer}.{kind}")));
    let tensors: Vec<TensorReport> = names.enumerate().map(|(place, name)| tensor(name, place)).collect();
    let sum = |of: fn(&TensorReport) -> u64| tensors.iter().map(of).sum::<u64>();
    let n_elements = 64 * 32 * tensors.len() as u64;
    let (before, after) = (sum(|tensor| tensor.before_bytes), sum(|tensor| tensor.after_bytes));
    Report {
        model: "models/a transformer/model.safetensors".into(),
        output: "out/small".into(),
        format: "briquette".into(),
        stages: vec!["prune magnitude, sparsity 0.4".into(), "quantize int8".into()],
        before: Footprint { file_bytes: before + 512, tensor_bytes: before, n_elements, n_zeros: None },
        after: Footprint { file_bytes: after + 512, tensor_bytes: after, n_elements, n_zeros: Some(n_elements / 3) },
        predicted_bytes: after + 600,
        prediction_is_exact: false,
        histograms: vec![WeightHistogram {
            name: "encoder.layer.0.mlp.up.weight".into(),
            limit: 0.25,
            before: vec![0, 10, 100, 10, 0],
            after: vec![0, 5, 110, 5, 0],
        }],
        tensors,
        evaluation: Some(evaluation()),
        trained: vec![training()],
        stage_bytes: vec![StageBytes { stage: "distill 1".into(), file_bytes: 12_000 }],
        remarks: vec!["Pruned without retraining: accuracy usually drops well before size does. ".repeat(3)],
        notes: vec!["Calibrated on sentences.txt: at most 512 items.".into()],
        seconds: vec![("plan".into(), 0.01), ("encode".into(), 2.5)],
        total_seconds: 2.6,
        threads: 2,
        peak_bytes: Some(123_456_789),
        peak_meter: "resident set of the process".into(),
        ..empty()
    }
}

fn training() -> DistillReport {
    let point = |step: usize| CurvePoint { step, loss: 1.0 / step as f64 };
    let metrics = BTreeMap::from([("cosine".to_string(), 0.97)]);
    DistillReport {
        student: "the model itself".into(),
        layers: None,
        teacher: Some("models/teacher".into()),
        losses: vec!["1 x embedding".into()],
        n_items: 640,
        n_steps: 20,
        batch_size: 32,
        at_once: 16,
        n_weights: 1000,
        curve: (1..=20).map(point).collect(),
        epochs: vec![EpochPoint { epoch: 1, step: 20, loss: Some(0.18), metrics }],
        epochs_on: Some("sentences.txt".into()),
        best_epoch: Some(1),
        chosen_by: Some("cosine".into()),
        peak_bytes: Some(5_000_000),
        peak_meter: "bytes that this program holds".into(),
        predicted_peak_bytes: Some(9_000_000),
        seconds: 3.5,
        wall_seconds: 4.5,
    }
}

fn evaluation() -> EvaluationReport {
    let memory = |weights_bytes: u64| MemoryFigures {
        meter: "bytes allocated by this process, counted".into(),
        predicted_bytes: Some(1000),
        weights_bytes: Some(weights_bytes),
        peak_bytes: Some(2 * weights_bytes),
        after_bytes: None,
    };
    let run = |weights_bytes: u64| RunFigures {
        p50_ms: 1.5,
        p90_ms: 2.0,
        p99_ms: 2.5,
        items_per_s: 1e4,
        memory: vec![memory(weights_bytes)],
        held: [("int8".to_string(), HeldFigures { n_tensors: 3, n_weights: 1000, n_bytes: 1010 })].into(),
    };
    EvaluationReport {
        arch: "bert".into(),
        device: "cpu".into(),
        data: "sentences.txt".into(),
        n_items: 40,
        n_skipped: 0,
        batch_size: 32,
        batch_size_before: Some(32),
        is_batch_auto: false,
        metrics: [("cosine".to_string(), 0.9995), ("pair_spearman".to_string(), 0.999)].into(),
        input_difference: None,
        continuation: Some(ContinuationFigures {
            prompt: "It had begun to snow, and".into(),
            before: Some(" the street was white.".into()),
            after: " the street was wet.".into(),
        }),
        before: Some(run(4000)),
        after: run(1000),
    }
}

/// Returns a report of a student with other sizes: one tensor is unchanged, one has another shape, one is gone.
pub(super) fn of_student() -> Report {
    let new = |name: &str, after_bytes: u64| {
        let mut new = TensorReport { after_bytes, ..tensor(name.into(), 0) };
        (new.shape, new.before_bytes, new.is_new) = (vec![8, 16], 0, true);
        new
    };
    let gone = |name: &str, role: Role, bytes: u64| GoneTensor {
        name: name.into(),
        role,
        dtype: "F32".into(),
        shape: vec![64, 256],
        bytes,
    };
    Report {
        before: Footprint { file_bytes: 140_000, tensor_bytes: 139_264, n_elements: 34_816, n_zeros: None },
        after: Footprint { file_bytes: 9_000, tensor_bytes: 8_704, n_elements: 2_176, n_zeros: Some(0) },
        tensors: vec![tensor("norm.weight".into(), 2), new("up.weight", 512)],
        gone: vec![gone("up.weight", Role::Linear, 65_536), gone("down.weight", Role::Linear, 65_536)],
        ..of_layers(1)
    }
}

/// Returns a job of a batch: 4000 bytes became 1000.
pub(super) fn job(name: &str, status: JobStatus) -> JobResult {
    let is_done = status != JobStatus::Failed;
    JobResult {
        job: name.into(),
        status,
        output: Some(format!("/out/{name}").into()),
        before_bytes: is_done.then_some(4000),
        after_bytes: is_done.then_some(1000),
        ratio: is_done.then_some(4.0),
        metrics: BTreeMap::new(),
        note: None,
        seconds: 0.25,
        seconds_before: None,
        trained_with: None,
        redone: None,
        error: (!is_done).then(|| "model: no such file".to_string()),
        exit_code: (!is_done).then_some(4),
    }
}

/// Returns a batch of these jobs, with its page beside their outputs.
pub(super) fn batch(jobs: Vec<JobResult>) -> BatchReport {
    let count = |status: JobStatus| jobs.iter().filter(|job| job.status == status).count();
    BatchReport {
        jobs_file: "configs/sweep.toml".into(),
        journal: "/out/sweep.journal.jsonl".into(),
        page: "/out/sweep.report.html".into(),
        shard: None,
        n_done: count(JobStatus::Done),
        n_skipped: count(JobStatus::Skipped),
        n_failed: count(JobStatus::Failed),
        seconds: 75.5,
        jobs,
        also: Vec::new(),
    }
}

/// Returns one tensor; every third is unchanged.
pub(super) fn tensor(name: String, place: usize) -> TensorReport {
    let is_changed = place % 3 != 2;
    let db = 10.0 + place as f64;
    let error = ErrorReport { sqnr_db: Some(db), cosine: Some(0.999), relative: 10.0_f64.powf(-db / 20.0) };
    let traits = TensorTraits {
        role: if is_changed { Role::Linear } else { Role::Norm },
        dtype: "F32".into(),
        shape: vec![64, 32],
        encoding: if is_changed { "int8 per channel, bitmask".into() } else { "f32".into() },
        why: if is_changed { "bitmask is smaller than dense".into() } else { "norm is not in the roles".into() },
        before_bytes: 8192,
        is_new: false,
    };
    TensorReport {
        name: name.into(),
        traits: traits.into(),
        after_bytes: if is_changed { 1500 } else { 8192 },
        bits_per_weight: if is_changed { 5.86 } else { 32.0 },
        sparsity: if is_changed { 0.4 } else { 0.0 },
        error: is_changed.then_some(error),
        output_error: None,
        solved: None,
    }
}

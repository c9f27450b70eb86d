//! The outcome of a training: its report, and the student on disk.

use super::dense_module;
use crate::onnx_network;
use crate::report::{CurvePoint, DistillReport, EpochPoint, LayersKept};
use crate::trained_scales;
use crate::training::learner::Learner;
use crate::training::setup::TrainingSetup;
use crate::training::watch::data_to_choose_by;
use briquette_core::{Error, Result, shown_path};
use briquette_distill::history::{EpochRecord, HistoryRecord, StepRecord};
use briquette_distill::{TrainingData, TrainingOutcome};
use briquette_formats::{activation_grids, limits, model_config};
use briquette_nn::{Export, NameMap, Parameter, scale_factors};
use briquette_recipe::{Student, TrainingJob};
use burn::module::Module;
use std::collections::BTreeMap;
use std::path::Path;

/// The number of points of a curve.
const N_POINTS: usize = 400;

/// Returns the report of a training, without memory and wall time.
pub(crate) fn report(
    job: &TrainingJob,
    training: &TrainingSetup,
    finished: &TrainingOutcome<Learner>,
) -> DistillReport {
    let steps: Vec<&StepRecord> = steps(&finished.history).collect();
    let stage = job.stage;
    let teacher = stage.teacher.as_deref().unwrap_or(job.original);
    let epochs_on = data_to_choose_by(&stage.data).and_then(|data| data.eval);
    let best_epoch = finished.best.map(|best| best.epoch);
    let layers = layers_of(training, &stage.student);
    DistillReport {
        student: match (&stage.student, layers) {
            (Student::Same, _) if stage.trains_scales => "the scales of the model's codes".into(),
            (Student::Same, _) => "the model itself".into(),
            (Student::Layers(..), Some(LayersKept { n, of })) => format!("{n} of its {of} layers"),
            (Student::Layers(..), None) => "some of its layers".into(),
            (Student::Sizes(_), _) => "the same family at other sizes".into(),
        },
        layers,
        teacher: training.teacher.as_ref().map(|_| shown_path(teacher)),
        losses: training.words(),
        n_items: training.examples.len(),
        n_steps: steps.len(),
        batch_size: training.settings.batch_size,
        at_once: training.settings.at_once,
        n_weights: training.student.network.num_params(),
        curve: curve_of(&steps),
        epochs: finished.history.iter().filter_map(epoch_of).collect(),
        epochs_on: epochs_on.as_ref().map(|path| shown_path(path)),
        best_epoch,
        chosen_by: stage.training.metric.clone().filter(|_| best_epoch.is_some()),
        peak_bytes: None,
        peak_meter: String::new(),
        predicted_peak_bytes: None,
        seconds: seconds_until(&finished.history, usize::MAX),
        wall_seconds: 0.0,
    }
}

fn layers_of(training: &TrainingSetup, student: &Student) -> Option<LayersKept> {
    let kept = training.student.network.n_layers().zip(training.n_layers_before);
    kept.filter(|_| matches!(student, Student::Layers(..))).map(|(n, of)| LayersKept { n, of })
}

fn steps(history: &[HistoryRecord]) -> impl Iterator<Item = &StepRecord> {
    history.iter().filter_map(|line| match line {
        HistoryRecord::Step(record) => Some(record),
        HistoryRecord::Epoch(_) => None,
    })
}

fn epoch_of(line: &HistoryRecord) -> Option<EpochPoint> {
    match line {
        HistoryRecord::Epoch(EpochRecord { epoch, step, loss, metrics, .. }) => {
            Some(EpochPoint { epoch: *epoch, step: *step, loss: Some(*loss), metrics: metrics.clone() })
        }
        HistoryRecord::Step(_) => None,
    }
}

/// Returns the loss by step, as means over neighbours if there are many steps.
fn curve_of(steps: &[&StepRecord]) -> Vec<CurvePoint> {
    let point = |near: &[&StepRecord]| CurvePoint {
        step: near.last().map_or(0, |record| record.step),
        loss: near.iter().map(|record| record.loss).sum::<f64>() / near.len() as f64,
    };
    steps.chunks(steps.len().div_ceil(N_POINTS).max(1)).map(point).collect()
}

/// Returns the duration in seconds of the steps up to `last`.
pub(crate) fn seconds_until(history: &[HistoryRecord], last: usize) -> f64 {
    steps(history).filter(|record| record.step <= last).map(|record| record.seconds).sum()
}

/// Writes the student as an output directory, with companion files and report, in the layout that the recipe
/// names.
///
/// # Errors
/// See [`Export::write`].
pub(crate) fn write(
    job: &TrainingJob,
    training: &TrainingSetup,
    student: Learner,
    report: &DistillReport,
) -> Result<()> {
    let json = serde_json::to_vec_pretty(report).map_err(|error| Error::bug(format!("the report: {error}")))?;
    if job.stage.trains_scales {
        return trained_scales::write(job.output, &factors(training, &student)?, (DistillReport::FILE, json));
    }
    let names = training.student.names.clone();
    let names = job.stage.choice.layout.into_iter().fold(names, NameMap::with_weights_in);
    let mut export = Export::to(job.output).names(names);
    let is_written = |name: &Path| {
        let is_config = name == Path::new(model_config::FILE_NAME) && training.config.is_some();
        is_config || name == Path::new(dense_module::MODULES) && student.dense.is_some()
    };
    for name in training.start.companions() {
        if !is_written(name) {
            let found = training.start.model_dir().read(name, limits::MAX_COMPANION_BYTES)?;
            export = found.into_iter().fold(export, |export, bytes| export.file(name, bytes));
        }
    }
    if let Some(dense) = &student.dense {
        let files = dense_module::files(dense, training.start.model_dir())?;
        export = files.into_iter().fold(export, |export, (name, bytes)| export.file(name, bytes));
    }
    if let Some(network) = onnx_network::of(&training.start)? {
        let files = onnx_network::files(&training.start, network)?;
        export = files.into_iter().fold(export, |export, (name, bytes)| export.file(name, bytes));
    }
    if let Some(grids) = &training.grids {
        export = export.file(activation_grids::FILE_NAME, grids.to_bytes());
    }
    if let Some(config) = &training.config {
        export = export.file(model_config::FILE_NAME, config.clone());
    }
    export.file(DistillReport::FILE, json).write(&student.network)?;
    Ok(())
}

/// Returns the factors of trained scales, by the name of the tensor.
fn factors(training: &TrainingSetup, student: &Learner) -> Result<BTreeMap<String, Vec<f32>>> {
    let names = &training.student.names;
    let found = scale_factors(&student.network)?;
    let parameters = names.parameters(&student.network)?;
    let of = |parameter: &Parameter| Some((names.file_name(parameter), found.get(&parameter.path)?.clone()));
    Ok(parameters.iter().filter_map(of).collect())
}

//! Runs one training, from models and data on disk to a student on disk.

use crate::memory::limit_of_host;
use crate::training::devices::devices;
use crate::training::learner::{Inputs, Learner};
use crate::training::outcome;
use crate::training::setup::TrainingSetup;
use crate::training::shown::TrainingDisplay;
use crate::training::translate::half;
use crate::training::watch::{Watcher, data_to_choose_by};
use briquette_core::memory::{KeptMemory, MemoryMeter};
use briquette_core::{Error, ErrorKind, Result};
use briquette_distill::{
    Cached, Checkpoints, Distiller, EachStep, Fit, Frozen, Several, SharedTeacher, Teacher, Trained, TrainingData,
    TrainingOutcome,
};
use briquette_formats::presence;
use briquette_models::memory::{device_meters, peak_meter};
use briquette_nn::without_grids;
use briquette_recipe::TrainingJob;
use briquette_writer::context::RunOptions;
use burn::module::Module;
use burn::tensor::Device;
use std::sync::Arc;
use std::time::Instant;

/// The number of logits per item that a cached teacher keeps.
const N_SCORES: usize = 64;

/// Trains, and writes the student with its report as an output directory.
///
/// With `force`, a training whose checkpoint is damaged starts anew.
///
/// # Errors
/// - Config: student, teacher and data do not match.
/// - Input: one of them is damaged.
/// - Refused: a loss or a weight is not finite.
/// - Io: a file cannot be read or written.
/// - Interrupted: a stop was requested.
pub(crate) fn train(job: &TrainingJob, options: &RunOptions) -> Result<()> {
    match resume_or_start(job, options) {
        // The student is created anew too, because it may have values of a damaged checkpoint.
        Err(error) if options.force && Checkpoints::is_damage(&error) => {
            options.progress.line(&format!("starting anew because of --force: {error}"));
            Checkpoints::at(job.work)?.clear()?;
            resume_or_start(job, options)
        }
        done => done,
    }
}

/// Trains from the last checkpoint, or from the start.
fn resume_or_start(job: &TrainingJob, options: &RunOptions) -> Result<()> {
    let started = Instant::now();
    let _kept = job.stage.memory.limit.is_none().then(|| KeptMemory::of(options.meter.as_ref()));
    let plain = devices(options)?;
    options.progress.runs_on(plain.iter().flat_map(device_meters).collect());
    let of_device = peak_meter(&plain[0]);
    let meter = of_device.as_deref().unwrap_or(options.meter.as_ref());
    let before = meter.live_bytes();
    // On a GPU, the limit is one of its memory.
    let limit = limit_of_host(job.stage.memory.limit.filter(|_| of_device.is_none()), options);
    let training = TrainingSetup::open(job, &plain[0], plain.len(), options, limit)?;
    let shown = TrainingDisplay::new(options, training.settings.epochs, training.examples.len(), training.n_steps);
    let shown = Arc::new(shown);
    if training.teacher.is_some() && data_to_choose_by(&job.stage.data).is_some() {
        begin_phase(options, "run teacher");
    }
    let mut watcher = Watcher::new(job.stage, &training.student, training.teacher.as_ref(), shown.clone(), limit)?;
    begin_phase(options, "train");
    meter.reset_peak();
    let made = match plain.len() {
        1 => run(job, &training, &mut watcher, options, meter),
        _ => run_on_several(job, &training, &mut watcher, shown.clone(), &plain),
    };
    shown.end();
    let (finished, at_once, fit) = made?;
    if finished.resumed_at > 0 {
        options.progress.line(&format!("resumed from step {}", finished.resumed_at));
    }
    let peak = meter.peak_bytes().zip(before).map(|(peak, before)| peak.saturating_sub(before));
    begin_phase(options, "write student");
    let mut report = outcome::report(job, &training, &finished);
    (report.at_once, report.peak_bytes, report.peak_meter) = (at_once, peak, meter.name().to_string());
    report.predicted_peak_bytes = fit.map(|fit| fit.predicted_bytes_of_batch);
    report.wall_seconds =
        started.elapsed().as_secs_f64() + outcome::seconds_until(&finished.history, finished.resumed_at);
    outcome::write(job, &training, without_grids(finished.student)?, &report)
}

/// Begins a phase. A training in full screen shows no phases.
fn begin_phase(options: &RunOptions, phase: &str) {
    match options.screen {
        true => options.meter.begin_phase(phase),
        false => options.progress.begin(phase, 0),
    }
}

/// Trains to the end. Returns the f32 student, the items in memory at once, and the predicted memory.
fn run(
    job: &TrainingJob,
    training: &TrainingSetup,
    watcher: &mut Watcher,
    options: &RunOptions,
    meter: &dyn MemoryMeter,
) -> Result<(TrainingOutcome<Learner>, usize, Option<Fit>)> {
    let stage = job.stage;
    let compute = half(stage.memory.dtype);
    let rules = compute.map_or(training.rules.clone(), |dtype| training.rules.clone().compute_in(dtype));
    let plain = training.student.network.devices().into_iter().next().unwrap_or_default().without_autodiff();
    let teacher = training.teacher_network();
    let teacher = teacher.map(|teacher| teacher_of(job, training, teacher, &plain, options)).transpose()?;
    let teacher = teacher.as_deref();
    let sample = training.examples.batch(&[0], &plain)?;
    let learner = training.student_network(compute, stage.max_new_tokens);
    let checkpoints = Checkpoints::at(job.work)?;
    // A checkpoint has the masks that had begun by its step, so the student must have them too.
    let step = checkpoints.state()?.map_or(0, |state| state.step);
    let made = Distiller::at(step, learner, rules, training.settings.clone(), teacher, &sample, training.n_steps)?;
    let (mut distiller, mut model): (Distiller, Trained<Learner>) = made;
    let mut fit = None;
    if let Some(limit) = stage.memory.limit {
        let live = meter.live_bytes().unwrap_or(0);
        let found;
        (model, found) = distiller.fit(model, teacher, training.examples.as_ref(), limit, meter)?;
        options.progress.line(&format!(
            "{} items in memory at once, with {live} bytes in use and a limit of {limit}",
            found.at_once
        ));
        fit = Some(found);
        meter.reset_peak();
    }
    let finished = distiller.run(model, teacher, training.examples.as_ref(), &checkpoints, watcher)?;
    let at_once = checkpoints.state()?.map_or(training.settings.at_once, |state| state.at_once);
    Ok((finished, at_once, fit))
}

/// Trains like [`run`] in burn's own loop, on several devices.
fn run_on_several(
    job: &TrainingJob,
    training: &TrainingSetup,
    watcher: &mut Watcher,
    shown: Arc<TrainingDisplay>,
    devices: &[Device],
) -> Result<(TrainingOutcome<Learner>, usize, Option<Fit>)> {
    let each: EachStep = Arc::new(move |record| shown.step(record));
    let several = Several {
        student: training.student_network(None, None),
        teacher: training.teacher_network().map(|teacher| SharedTeacher::of(&teacher)),
        rules: training.rules.clone(),
        settings: training.settings.clone(),
        devices: devices.iter().map(|device| device.clone().autodiff()).collect(),
        data: training.examples.clone(),
        each,
    };
    let finished = several.run(&Checkpoints::at(job.work)?, watcher)?;
    Ok((finished, training.settings.at_once, None))
}

/// Returns the teacher of a training: a network, or its cached outputs.
fn teacher_of(
    job: &TrainingJob,
    training: &TrainingSetup,
    teacher: Learner,
    plain: &Device,
    options: &RunOptions,
) -> Result<Box<dyn Teacher<Inputs>>> {
    let network = Frozen::new(&teacher);
    if !job.stage.memory.cache_teacher {
        return Ok(Box::new(network));
    }
    if teacher.network.classifies_text() && teacher.network.classifies_tokens() {
        let message = "found a classifier of tokens, whose texts have different numbers of logits; remove it";
        return Err(Error::config(message).at("memory.cache_teacher"));
    }
    Checkpoints::at(job.work)?;
    let path = job.work.join("teacher.safetensors");
    let read = || Cached::read(&path, training.examples.len(), plain);
    match presence::exists(&path)?.then(read) {
        Some(Err(error)) if error.kind == ErrorKind::Input => {
            options.progress.line(&format!("{error}; running the teacher again"));
        }
        Some(found) => return Ok(Box::new(found?)),
        None => {}
    }
    Cached::of::<Inputs>(&network, training.examples.as_ref(), N_SCORES, training.settings.at_once, plain)?
        .write(&path)?;
    Ok(Box::new(read()?))
}

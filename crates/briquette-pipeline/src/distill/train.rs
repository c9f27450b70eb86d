//! One training, from models and data on disk to a student on disk.

use super::examples::Examples;
use super::learner::{Inputs, Learner};
use super::shown::Shown;
use super::watch::{Watcher, data_to_choose_by};
use super::{Asked, devices, held, outcome, settings, student};
use crate::context::RunOptions;
use crate::memory;
use crate::plan::heads;
use crate::recipe::{DistillStage, QuantizeStage};
use briquette_core::memory::MemoryMeter;
use briquette_core::{Error, ErrorKind, Result};
use briquette_distill::{
    Cached, Checkpoints, Distiller, EachStep, Fit, Frozen, Settings, Several, Teacher, Term, Trained, TrainingData,
    TrainingOutcome, n_steps, steps_of_epoch,
};
use briquette_formats::Checkpoint;
use briquette_models::memory::{device_meters, peak_meter};
use briquette_models::{Arch, Input, LoadedModel, ModelTask, smaller};
use briquette_nn::{Compression, without_grids};
use burn::module::Module;
use burn::tensor::Device;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Texts that two tokenizers are held against each other on.
const N_PROBES: usize = 64;

/// Class scores of an item that are kept of a teacher.
const N_SCORES: usize = 64;

/// All that a training works on.
pub(super) struct Training {
    pub(super) start: Checkpoint,
    /// The student as it begins.
    pub(super) student: LoadedModel,
    /// Its config.json, where it is not that of `start`.
    pub(super) config: Option<Vec<u8>>,
    /// Layers of what it starts from, where those can be counted.
    pub(super) n_layers_before: Option<usize>,
    pub(super) teacher: Option<LoadedModel>,
    pub(super) examples: Arc<Examples>,
    pub(super) settings: Settings,
    rules: Compression,
    /// Steps in all.
    n_steps: usize,
}

/// Trains, and writes the student with its report as an output directory. Where a checkpoint cannot be gone on from and that is
/// wished for, it begins anew.
pub(super) fn train(asked: &Asked, options: &RunOptions) -> Result<()> {
    match go_on(asked, options) {
        // The student too is made anew: what it was filled with may have been damaged.
        Err(error) if options.force && Checkpoints::is_damage(&error) => {
            options.progress.line(&format!("begun anew, as --force asks: {error}"));
            Checkpoints::at(asked.work)?.clear()?;
            go_on(asked, options)
        }
        done => done,
    }
}

/// Trains from where it stood, or from the start.
fn go_on(asked: &Asked, options: &RunOptions) -> Result<()> {
    let started = Instant::now();
    let plain = match options.devices.is_empty() {
        true => vec![briquette_models::device(&options.device)?],
        false => devices::of(&options.devices)?,
    };
    if let Some(limit) = asked.stage.memory.limit {
        memory::to_train(asked.stage, asked.model, asked.original, &plain[0])?.check(limit)?;
    }
    options.progress.runs_on(plain.iter().flat_map(device_meters).collect());
    let of_device = peak_meter(&plain[0]);
    let meter = of_device.as_deref().unwrap_or(options.meter.as_ref());
    let before = meter.live_bytes();
    let training = Training::open(asked, &plain[0], plain.len(), options.meter.as_ref())?;
    let shown = Shown::new(options, training.settings.epochs, training.examples.len(), training.n_steps);
    let shown = Arc::new(shown);
    if training.teacher.is_some() && data_to_choose_by(&asked.stage.data).is_some() {
        options.meter.begin_phase("run teacher");
    }
    let mut watcher = Watcher::new(asked.stage, &training.student, training.teacher.as_ref(), shown.clone())?;
    options.meter.begin_phase("train");
    meter.reset_peak();
    let made = match plain.len() {
        1 => run(asked, &training, &mut watcher, options, meter),
        _ => run_on_several(asked, &training, &mut watcher, shown.clone(), &plain),
    };
    shown.end();
    let (finished, at_once, fit) = made?;
    if finished.resumed_at > 0 {
        options.progress.line(&format!("went on from step {}", finished.resumed_at));
    }
    let peak = meter.peak_bytes().zip(before).map(|(peak, before)| peak.saturating_sub(before));
    options.meter.begin_phase("write student");
    let mut report = outcome::report(asked, &training, &finished);
    (report.at_once, report.peak_bytes, report.peak_meter) = (at_once, peak, meter.name().to_string());
    report.predicted_peak_bytes = fit.map(|fit| fit.predicted_bytes_of_batch);
    report.wall_seconds =
        started.elapsed().as_secs_f64() + outcome::seconds_until(&finished.history, finished.resumed_at);
    outcome::write(asked, &training, without_grids(finished.student), &report)
}

impl Training {
    fn open(asked: &Asked, plain: &Device, n_devices: usize, meter: &dyn MemoryMeter) -> Result<Self> {
        let stage = asked.stage;
        let mut settings = settings::of(stage)?;
        let arch = stage.arch.as_deref().map(str::parse::<Arch>).transpose()?;
        let start = Checkpoint::open_as(asked.model, &stage.choice)?;
        settings.by_layer = is_by_layer(stage, &settings, arch.map_or_else(|| Arch::detect(&start), Ok)?);
        let device = match stage.memory.gradient_checkpointing && !settings.by_layer {
            true => plain.clone().autodiff().gradient_checkpointing(),
            false => plain.clone().autodiff(),
        };
        plain.seed(settings.seed);
        meter.begin_phase(&format!("load student {}", asked.model.display()));
        let (mut student, config, n_layers_before) = student_of(stage, &start, arch, &device)?;
        let teacher = settings.blend.needs_teacher().then(|| {
            let path = stage.teacher.as_deref().unwrap_or(asked.original);
            meter.begin_phase(&format!("load teacher {}", path.display()));
            LoadedModel::load(&stage.open_teacher(asked.original)?, arch.filter(|_| stage.teacher.is_none()), plain)
        });
        let mut teacher = teacher.transpose()?;
        if let (Some(max_length), Input::Text { .. }) = (stage.data.max_length, &student.input) {
            student.set_max_length(max_length)?;
            teacher.iter_mut().try_for_each(|teacher| teacher.set_max_length(max_length))?;
        }
        if let Some(teacher) = &teacher {
            check_together(asked, &student, teacher)?;
        }
        let learner = Learner::of(&student, None);
        let n_classes = n_classes(&learner, &student);
        meter.begin_phase("read data");
        let examples = Examples::open(&stage.data, &student, n_classes, settings.seed)?;
        let named = held::named(&learner, &student.names, asked.roles)?;
        settings.frozen = held::frozen(stage, &named)?;
        let (n_steps, prefix) = match n_devices {
            1 => (n_steps(examples.len(), settings.batch_size, settings.epochs), ""),
            n => {
                settings.batch_size *= n;
                let n_turns = stage.memory.accumulate;
                (settings.epochs * steps_of_epoch(examples.len(), n, settings.at_once, n_turns), "student.")
            }
        };
        let rules = held::rules(stage, asked.pruned, &named, &heads_of(stage, asked, &start)?, n_steps, prefix)?;
        settings.settled_at = stage.gradual.as_ref().map_or(0, |gradual| gradual.steps(n_steps).end);
        let examples = Arc::new(examples);
        Ok(Self { start, student, config, n_layers_before, teacher, examples, settings, rules, n_steps })
    }

    /// What goes down, in words.
    pub(super) fn words(&self) -> Vec<String> {
        let word = |term: &Term| format!("{} x {}", term.weight, term.loss.name());
        self.settings.blend.terms().iter().map(word).collect()
    }
}

/// Names of embeddings that are the head too, where a rounding in place has to know.
fn heads_of(stage: &DistillStage, asked: &Asked, start: &Checkpoint) -> Result<BTreeSet<String>> {
    match stage.quantize.as_ref().is_some_and(QuantizeStage::spares_heads) {
        true => heads::names(start, asked.roles),
        false => Ok(BTreeSet::new()),
    }
}

/// Whether each layer runs again in the backward pass. Other networks, and losses that compare attention, leave it to burn which
/// operations do.
fn is_by_layer(stage: &DistillStage, settings: &Settings, arch: Arch) -> bool {
    let wanted = settings.blend.wanted();
    let is_layered = arch.task() != ModelTask::Classifier;
    stage.memory.gradient_checkpointing && is_layered && !(wanted.attention || wanted.values)
}

/// The student as it begins, its config.json where that is new, and the layers that its model has.
fn student_of(
    stage: &DistillStage,
    start: &Checkpoint,
    arch: Option<Arch>,
    device: &Device,
) -> Result<(LoadedModel, Option<Vec<u8>>, Option<usize>)> {
    let model = LoadedModel::load(start, arch, device)?;
    let n_layers = model.network.n_layers();
    let Some(how) = student::how(stage, model.arch, n_layers)? else { return Ok((model, None, n_layers)) };
    let (student, config) = smaller(&model, start, &how, device)?;
    Ok((student, Some(config), n_layers))
}

/// Classes that a classifier tells apart.
fn n_classes(learner: &Learner, student: &LoadedModel) -> Option<usize> {
    let Input::Images(input) = &student.input else { return None };
    use briquette_distill::{Traced, Wanted};
    let plain = learner.valid();
    let device = plain.devices().into_iter().next()?;
    let one = burn::tensor::Tensor::<4>::zeros([1, input.channels, input.crop[0], input.crop[1]], &device);
    plain.outputs(&Inputs::Images(one), Wanted::default()).logits.map(|scores| scores.dims()[1])
}

/// Refuses two that read the same text in different ways.
fn check_together(asked: &Asked, student: &LoadedModel, teacher: &LoadedModel) -> Result<()> {
    let (ours, theirs) = (asked.model.display(), asked.stage.teacher.as_deref().unwrap_or(asked.original).display());
    if student.arch.task() != teacher.arch.task() {
        let message = format!("the student ({ours}) is {} and the teacher ({theirs}) {}", student.arch, teacher.arch);
        return Err(Error::config(format!("{message}; they must take and give the same")).at("teacher"));
    }
    if !matches!(student.input, Input::Text { .. }) {
        return Ok(());
    }
    let (student, teacher) = (student.tokenizer()?, teacher.tokenizer()?);
    for text in Examples::first_texts(&asked.stage.data, N_PROBES)? {
        let [found, expected] = [student.encode(&text)?, teacher.encode(&text)?];
        if found != expected {
            let message = format!(
                "the tokenizers of the student ({ours}) and the teacher ({theirs}) differ: of {text:?} they make {} and \
                 {} tokens; they must be the same",
                found.0.len(),
                expected.0.len()
            );
            return Err(Error::config(message).at("teacher"));
        }
    }
    Ok(())
}

/// Trains to the end. Returns the student as it computes in f32, items at once, and what was foretold of memory.
fn run(
    asked: &Asked,
    training: &Training,
    watcher: &mut Watcher,
    options: &RunOptions,
    meter: &dyn MemoryMeter,
) -> Result<(TrainingOutcome<Learner>, usize, Option<Fit>)> {
    let stage = asked.stage;
    let compute = stage.memory.dtype.half();
    let rules = compute.map_or(training.rules.clone(), |dtype| training.rules.clone().compute_in(dtype));
    let plain = training.student.network.devices().into_iter().next().unwrap_or_default().without_autodiff();
    let teacher =
        training.teacher.as_ref().map(|teacher| teacher_of(asked, training, teacher, &plain, options)).transpose()?;
    let teacher = teacher.as_deref();
    let sample = training.examples.batch(&[0], &plain)?;
    let learner = Learner::of(&training.student, compute);
    let checkpoints = Checkpoints::at(asked.work)?;
    // Masks that have begun by then have room in what a checkpoint is loaded into.
    let step = checkpoints.state()?.map_or(0, |state| state.step);
    let made = Distiller::at(step, learner, rules, training.settings.clone(), teacher, &sample, training.n_steps)?;
    let (mut distiller, mut model): (Distiller, Trained<Learner>) = made;
    let mut fit = None;
    if let Some(limit) = stage.memory.limit {
        let live = meter.live_bytes().unwrap_or(0);
        let found;
        (model, found) = distiller.fit(model, teacher, training.examples.as_ref(), limit, meter)?;
        options
            .progress
            .line(&format!("{} items at once, for {live} bytes in use now and {limit} at most", found.at_once));
        fit = Some(found);
        meter.reset_peak();
    }
    let finished = distiller.run(model, teacher, training.examples.as_ref(), &checkpoints, watcher)?;
    let at_once = checkpoints.state()?.map_or(training.settings.at_once, |state| state.at_once);
    Ok((finished, at_once, fit))
}

/// As [`run`], by burn's own loop on several devices.
fn run_on_several(
    asked: &Asked,
    training: &Training,
    watcher: &mut Watcher,
    shown: Arc<Shown>,
    devices: &[Device],
) -> Result<(TrainingOutcome<Learner>, usize, Option<Fit>)> {
    let each: EachStep = Arc::new(move |record| shown.step(record));
    let several = Several {
        student: Learner::of(&training.student, None),
        teacher: training.teacher.as_ref().map(|teacher| Learner::of(teacher, None)),
        rules: training.rules.clone(),
        settings: training.settings.clone(),
        devices: devices.iter().map(|device| device.clone().autodiff()).collect(),
        data: training.examples.clone(),
        each,
    };
    let finished = several.run(&Checkpoints::at(asked.work)?, watcher)?;
    Ok((finished, training.settings.at_once, None))
}

/// The teacher as the student asks it: a network, or what one said before.
fn teacher_of(
    asked: &Asked,
    training: &Training,
    teacher: &LoadedModel,
    plain: &Device,
    options: &RunOptions,
) -> Result<Box<dyn Teacher<Inputs>>> {
    let network = Frozen::new(&Learner::of(teacher, None));
    if !asked.stage.memory.cache_teacher {
        return Ok(Box::new(network));
    }
    let path = Checkpoints::at(asked.work)?.directory().join("teacher.safetensors");
    let read = || Cached::read(&path, training.examples.len(), plain);
    match path.exists().then(read) {
        Some(Err(error)) if error.kind == ErrorKind::Input => {
            options.progress.line(&format!("{error}; the teacher is asked again"));
        }
        Some(found) => return Ok(Box::new(found?)),
        None => {}
    }
    Cached::of::<Inputs>(&network, training.examples.as_ref(), N_SCORES, training.settings.at_once, plain)?
        .write(&path)?;
    Ok(Box::new(read()?))
}

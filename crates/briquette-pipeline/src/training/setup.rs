//! The setup of a training: opens student, teacher, data and rules, and checks that they match.

use crate::training::examples::Examples;
use crate::training::learner::{Inputs, Learner, text_classes};
use crate::training::pixel_map::PixelMap;
use crate::training::translate::{spec_of, teacher_of};
use crate::training::{dense_module, held, settings, student};
use briquette_core::memory::MemoryLimit;
use briquette_core::{Error, Result, shown_path};
use briquette_distill::{Settings, Term, Traced, TrainingData, Wanted, n_steps, steps_of_epoch};
use briquette_formats::{ActivationGrids, Checkpoint};
use briquette_graph::fixed_values::FixedGrids;
use briquette_models::{
    Arch, GraphNet, Input, LoadedModel, ModelTask, smaller, with_stored_statistics, without_dropout,
};
use briquette_nn::layers::Linear;
use briquette_nn::{Compression, train_scales};
use briquette_recipe::plan::heads;
use briquette_recipe::{DistillStage, QuantizeStage, TrainingJob};
use briquette_writer::RunOptions;
use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The number of texts on which two tokenizers are compared.
const N_PROBES: usize = 64;

/// Models, data and settings of a training before its first step.
pub(crate) struct TrainingSetup {
    pub(crate) start: Checkpoint,
    /// The initial student.
    pub(crate) student: LoadedModel,
    /// Its config.json, if it differs from that of `start`.
    pub(crate) config: Option<Vec<u8>>,
    /// The number of layers of `start`, if known.
    pub(crate) n_layers_before: Option<usize>,
    pub(crate) teacher: Option<LoadedModel>,
    /// The student's layer after pooling, if its embeddings are narrower or wider than the teacher's.
    dense: Option<Linear>,
    /// The map from the student's images to the teacher's.
    pixels: Option<PixelMap>,
    /// The grids of activations that are rounded during the training.
    pub(crate) grids: Option<ActivationGrids>,
    pub(crate) examples: Arc<Examples>,
    pub(crate) settings: Settings,
    /// Masks and grids that stay in place.
    pub(crate) rules: Compression,
    /// The total number of steps.
    pub(crate) n_steps: usize,
}

impl TrainingSetup {
    /// Opens everything for training on `n_devices` devices, within a limit on the memory of the host.
    pub(crate) fn open(
        job: &TrainingJob,
        plain: &Device,
        n_devices: usize,
        options: &RunOptions,
        limit: Option<MemoryLimit>,
    ) -> Result<Self> {
        let meter = options.meter.as_ref();
        let stage = job.stage;
        let mut settings = settings::of(stage)?;
        let arch = stage.arch.as_deref().map(str::parse::<Arch>).transpose()?;
        let start = Checkpoint::open_as(job.model, &stage.choice)?;
        settings.by_layer = is_by_layer(stage, &settings, arch.map_or_else(|| Arch::detect(&start), Ok)?);
        let device = match stage.memory.gradient_checkpointing && !settings.by_layer {
            true => plain.clone().autodiff().gradient_checkpointing(),
            false => plain.clone().autodiff(),
        };
        plain.seed(settings.seed);
        meter.begin_phase(&format!("load student {}", shown_path(job.model)));
        let (mut student, config, n_layers_before) = student_of(stage, &start, arch, &device)?;
        student.network = as_trained(stage, student.network);
        let teacher = settings.blend.needs_teacher().then(|| {
            let path = stage.teacher.as_deref().unwrap_or(job.original);
            meter.begin_phase(&format!("load teacher {}", shown_path(path)));
            LoadedModel::load(&teacher_of(stage, job.original)?, arch.filter(|_| stage.teacher.is_none()), plain)
        });
        let mut teacher = teacher.transpose()?;
        if let (Some(max_length), Input::Text { .. }) = (stage.data.max_length, &student.input) {
            student.set_max_length(max_length)?;
            teacher.iter_mut().try_for_each(|teacher| teacher.set_max_length(max_length))?;
        }
        if let Some(teacher) = &teacher {
            check_together(job, &student, teacher)?;
        }
        if stage.on_policy > 0.0 && student.arch.task() != ModelTask::Decoder {
            let message = format!("the student is {}, which samples no text; remove it", student.arch);
            return Err(Error::config(message).at("on_policy"));
        }
        let pixels = teacher.as_ref().map(|teacher| pixels_between(stage, &student, teacher)).transpose()?.flatten();
        let dense =
            teacher.as_ref().and_then(|teacher| dense_module::layer(&settings.blend, &student, teacher, &device));
        let learner = Learner::of(&student, None);
        let named = held::named(&learner, &student.names, job.roles)?;
        let grids = held::activation_grids(job, &named, &start, options)?;
        if let Some(grids) = &grids {
            let grids = FixedGrids::of_training(grids, held::static_weights(stage, &named));
            student.network = student.network.with_rounded_activations(&grids)?;
        }
        student = with_trained_scales(stage, student, &start)?;
        let learner = Learner::of(&student, None);
        let n_classes = n_classes(&learner, &student);
        meter.begin_phase("read data");
        let examples = Examples::open(&stage.data, &student, n_classes, settings.seed, limit)?;
        settings.frozen = held::frozen(stage, &named)?;
        let n_steps = steps_of(stage, &mut settings, examples.len(), n_devices);
        let prefix = if n_devices == 1 { "" } else { "student." };
        let heads = heads_of(stage, job, &start)?;
        let rules = held::rules(stage, job.pruned, &named, (&heads, grids.as_ref()), n_steps, prefix)?;
        settings.rate = held::rate(stage, &named, &heads)?;
        if settings.rate.is_some() && n_devices > 1 {
            return Err(Error::config("rate: not supported on several devices; train on one device, or remove it"));
        }
        settings.settled_at = stage.gradual.as_ref().map_or(0, |gradual| gradual.steps(n_steps).end);
        let examples = Arc::new(examples);
        Ok(Self {
            start,
            student,
            config,
            n_layers_before,
            teacher,
            dense,
            pixels,
            grids,
            examples,
            settings,
            rules,
            n_steps,
        })
    }

    /// Returns the student before training. `compute` is the type in which its parameters are used.
    pub(crate) fn student_network(&self, compute: Option<FloatDType>, max_new_tokens: Option<usize>) -> Learner {
        Learner::of(&self.student, compute).mapped(self.dense.clone()).sampling(max_new_tokens)
    }

    /// Returns the teacher's network, which reads the student's batches.
    pub(crate) fn teacher_network(&self) -> Option<Learner> {
        self.teacher.as_ref().map(|teacher| Learner::of(teacher, None).seeing(self.pixels.clone()))
    }

    /// Returns the losses with their weights in words: `1 x logits`.
    pub(crate) fn words(&self) -> Vec<String> {
        let word = |term: &Term| format!("{} x {}", term.weight, term.loss.name());
        self.settings.blend.terms().iter().map(word).collect()
    }
}

/// Returns a network without the behaviour in training that the stage turns off.
fn as_trained(stage: &DistillStage, network: GraphNet) -> GraphNet {
    let network = if stage.has_dropout { network } else { without_dropout(network) };
    if stage.keeps_statistics { with_stored_statistics(network) } else { network }
}

/// Attaches trained scales, if the stage trains them.
fn with_trained_scales(stage: &DistillStage, student: LoadedModel, start: &Checkpoint) -> Result<LoadedModel> {
    if !stage.trains_scales {
        return Ok(student);
    }
    let network = train_scales(student.network, start, &student.names, &stage.freeze)?;
    Ok(LoadedModel { network, ..student })
}

/// Returns the number of steps of a training over `n_items` items.
///
/// With several devices, a step takes a batch on each, so the batch size in `settings` is multiplied.
fn steps_of(stage: &DistillStage, settings: &mut Settings, n_items: usize, n_devices: usize) -> usize {
    if n_devices == 1 {
        return n_steps(n_items, settings.batch_size, settings.epochs);
    }
    settings.batch_size *= n_devices;
    settings.epochs * steps_of_epoch(n_items, n_devices, settings.at_once, stage.memory.accumulate)
}

/// Returns the names of embeddings that are also the head, if quantization treats them differently.
fn heads_of(stage: &DistillStage, job: &TrainingJob, start: &Checkpoint) -> Result<BTreeSet<String>> {
    match stage.quantize.as_ref().is_some_and(QuantizeStage::spares_heads) {
        true => heads::names(start, job.roles),
        false => Ok(BTreeSet::new()),
    }
}

/// Returns whether gradient checkpointing works by layer. For other networks, and losses that compare
/// attention, burn decides by operation.
fn is_by_layer(stage: &DistillStage, settings: &Settings, arch: Arch) -> bool {
    let wanted = settings.blend.wanted();
    let is_layered = arch.task() != ModelTask::Classifier;
    stage.memory.gradient_checkpointing && is_layered && !(wanted.attention || wanted.values)
}

/// Returns the initial student, its config.json if it is new, and the number of layers of its model.
fn student_of(
    stage: &DistillStage,
    start: &Checkpoint,
    arch: Option<Arch>,
    device: &Device,
) -> Result<(LoadedModel, Option<Vec<u8>>, Option<usize>)> {
    let model = LoadedModel::load(start, arch, device)?;
    if model.arch.task() == ModelTask::EncoderDecoder {
        let message =
            format!("{} is an encoder-decoder, and training supports encoders, decoders and classifiers", model.arch);
        return Err(Error::config(format!("{message}; use methods without training")).at(start.path().display()));
    }
    let n_layers = model.network.n_layers();
    let Some(how) = student::how(stage, model.arch, n_layers)? else { return Ok((model, None, n_layers)) };
    let (student, config) = smaller(&model, start, &how, device)?;
    Ok((student, Some(config), n_layers))
}

/// Returns the number of classes of a classifier.
fn n_classes(learner: &Learner, student: &LoadedModel) -> Option<usize> {
    let Input::Images(input) = &student.input else { return text_classes(&student.network) };
    let plain = learner.valid();
    let device = plain.devices().into_iter().next()?;
    let one = Tensor::<4>::zeros([1, input.channels, input.crop[0], input.crop[1]], &device);
    plain.outputs(&Inputs::Images(one), Wanted::default()).logits.map(|scores| scores.dims()[1])
}

/// Returns the map from the student's images to the teacher's, if they are normalized differently.
fn pixels_between(stage: &DistillStage, student: &LoadedModel, teacher: &LoadedModel) -> Result<Option<PixelMap>> {
    let (Input::Images(ours), Input::Images(theirs)) = (&student.input, &teacher.input) else { return Ok(None) };
    let spec = spec_of(&stage.data);
    PixelMap::between(&spec.image_input(ours)?, &spec.image_input(theirs)?)
}

/// Refuses a student and a teacher that read the same text in different ways.
fn check_together(job: &TrainingJob, student: &LoadedModel, teacher: &LoadedModel) -> Result<()> {
    let (ours, theirs) = (shown_path(job.model), shown_path(job.stage.teacher.as_deref().unwrap_or(job.original)));
    if student.arch.task() != teacher.arch.task() {
        let message = format!("the student ({ours}) is {} and the teacher ({theirs}) {}", student.arch, teacher.arch);
        return Err(Error::config(format!("{message}; use models with the same task")).at("teacher"));
    }
    if !matches!(student.input, Input::Text { .. }) {
        return Ok(());
    }
    let (student, teacher) = (student.tokenizer()?, teacher.tokenizer()?);
    for text in Examples::first_texts(&job.stage.data, N_PROBES)? {
        let [found, expected] = [student.encode(&text)?, teacher.encode(&text)?];
        if found != expected {
            let message = format!(
                "the tokenizers of the student ({ours}) and the teacher ({theirs}) differ: they encode {text:?} as {} and \
                 {} tokens; use a teacher with the same tokenizer",
                found.len(),
                expected.len()
            );
            return Err(Error::config(message).at("teacher"));
        }
    }
    Ok(())
}

//! A configured training. Its steps share the loss of a batch, its scale and its seeds.

use crate::grads::read;
use crate::traced::{DynTeacher, Frozen, Traced, TrainingBatch};
use crate::trained::{Trained, TrainedProjections};
use crate::try_out::{check_learns, freeze, try_out};
use crate::{Outputs, Settings, Targets, average, moments};
use briquette_core::random::mixed;
use briquette_core::{Error, Result};
use briquette_nn::{Compression, LossScaler};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};

/// Trains a student with a teacher, with labels, or with both.
///
/// Masks and grids that are attached to the student stay attached, and are updated on their schedule. The
/// student is on an autodiff device; the teacher and the data are on its inner device.
///
/// With custom modules, loss, optimizer, learning rates and data, and without a directory:
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use briquette_distill::{Blend, Checkpoints, Distiller, Divergence, Foreign, Frozen, Loss, Outputs, Settings, Targets};
/// use briquette_distill::{TrainingBatch, first_batch, training_batches};
/// use briquette_nn::{Compression, Prune};
/// use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
/// use burn::data::dataset::InMemDataset;
/// use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::RmsPropConfig;
/// use burn::tensor::{Device, Tensor, TensorData};
///
/// struct Line;
///
/// impl Batcher<usize, Tensor<2>> for Line {
///     fn batch(&self, rows: Vec<usize>, device: &Device) -> Tensor<2> {
///         let values: Vec<f32> = rows.iter().flat_map(|&row| [row as f32 / 32.0 - 1.0, 1.0]).collect();
///         Tensor::from_data(TensorData::new(values, [rows.len(), 2]), device)
///     }
/// }
///
/// let device = Device::flex();
/// let scores = |net: &Linear, x: &Tensor<2>| Outputs::of_logits(net.forward(x.clone()));
/// let teacher = Frozen::new(&Foreign::new(LinearConfig::new(2, 3).init(&device), scores));
/// let student = Foreign::new(LinearConfig::new(2, 3).init(&device.clone().autodiff()), scores);
///
/// let rows = InMemDataset::new((0..64).collect::<Vec<usize>>());
/// let loader = DataLoaderBuilder::new(Line).batch_size(16).shuffle(1).set_device(device).build(rows);
/// let batches = training_batches(loader, TrainingBatch::new);
///
/// let apart = Loss::custom("apart", |student: &Outputs, targets: Targets| {
///     Ok((student.need_logits()? - targets.need_teacher()?.need_logits()?).abs().mean())
/// });
/// let blend = Blend::new(vec![Loss::Logits(Divergence::Kl, 2.0).times(1.0), apart.times(0.1)])?;
/// let settings = Settings::new(blend, 3, 1e-2)
///     .with_optimizer(RmsPropConfig::new().init())
///     .with_schedule(ExponentialLrSchedulerConfig::new(1e-2, 0.9).init().map_err(briquette_core::Error::config)?);
/// let rules = Compression::new().prune(Prune::new("weight", 0.5)?);
///
/// let (distiller, model) = Distiller::new(student, rules, settings, Some(&teacher), &first_batch(&batches)?, 12)?;
/// let done = distiller.run_loader(model, Some(&teacher), &batches, &Checkpoints::in_memory(), &mut ())?;
/// assert_eq!(briquette_nn::sparsity(&done.student.network)?["weight"].n_zeros, 3);
/// # }
/// # Ok::<(), briquette_core::Error>(())
/// ```
pub struct Distiller {
    pub(crate) settings: Settings,
    pub(crate) rules: Compression,
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) schedule: ModuleLrScheduler,
    pub(crate) scaler: Option<LossScaler>,
    pub(crate) device: Device,
    /// The number of steps that the learning rate schedule covers.
    pub(crate) n_steps: usize,
    pub(crate) step: usize,
    pub(crate) at_once: usize,
}

impl Distiller {
    /// Attaches `rules` to a student, freezes parameters that are not trained, and prepares `n_steps` steps.
    ///
    /// `sample` is any batch. If the hidden widths of student and teacher differ, it determines the widths of
    /// the projections.
    ///
    /// # Errors
    /// - Config: settings or rules are invalid, or student, teacher and data do not match; the message names
    ///   both sides.
    /// - See [`Compression::attach`].
    pub fn new<N: Traced>(
        student: N,
        rules: Compression,
        settings: Settings,
        teacher: Option<DynTeacher<N>>,
        sample: &TrainingBatch<N::Input>,
        n_steps: usize,
    ) -> Result<(Self, Trained<N>)> {
        Self::at(0, student, rules, settings, teacher, sample, n_steps)
    }

    /// Implements [`new`](Self::new) for a training that has reached this step.
    ///
    /// Rules that have begun by then are attached in their state of that step, so that its checkpoint fits.
    /// [`run`](Self::run) loads it.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn at<N: Traced>(
        step: usize,
        student: N,
        rules: Compression,
        settings: Settings,
        teacher: Option<DynTeacher<N>>,
        sample: &TrainingBatch<N::Input>,
        n_steps: usize,
    ) -> Result<(Self, Trained<N>)> {
        settings.check()?;
        let device = check_learns(&student)?;
        let schedule = settings.schedule(n_steps)?;
        if settings.mean_teacher.is_some() && teacher.is_some() {
            return Err(Error::config(
                "mean_teacher: the student's average is the teacher, but another teacher is given; remove one",
            ));
        }
        let average = settings.mean_teacher.map(|_| average::started(&student)).transpose()?;
        let projections = {
            let average = average.as_ref().map(Frozen::new);
            let of_average = average.as_ref().map(|average| average as DynTeacher<N>);
            try_out(&student, teacher.or(of_average), &settings.blend, sample, &device)?
        };
        let student = rules.attach_at(student, step)?;
        let model = freeze(Trained { student, projections, average }, &settings)?;
        let optimizer = settings.optimizer.init();
        let scaler = settings.scale_loss.then(LossScaler::default);
        let (device, at_once) = (device.without_autodiff(), settings.at_once.min(settings.batch_size));
        Ok((Self { settings, rules, optimizer, schedule, scaler, device, n_steps, step: 0, at_once }, model))
    }

    /// Returns the number of steps so far.
    pub fn step_count(&self) -> usize {
        self.step
    }

    /// Returns the number of items in memory at once. It is reduced if they did not fit on the device.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    pub(crate) fn scaler(&self) -> Option<&LossScaler> {
        self.scaler.as_ref()
    }

    /// Sets the step, schedule and loss scale to those of a checkpoint.
    pub(crate) fn stand_at(&mut self, step: usize, at_once: usize, scaler: Option<LossScaler>) {
        for _ in self.step..step {
            self.schedule.step();
        }
        (self.step, self.at_once, self.scaler) = (step, at_once, scaler);
    }

    /// Returns the size of the optimizer state of a model in bytes.
    pub(crate) fn bytes_of_moments<N: Traced>(&self, model: &Trained<N>) -> Result<u64> {
        let beside = TrainedProjections { projections: model.projections.clone() };
        Ok(moments::bytes(&self.optimizer, &model.student)? + moments::bytes(&self.optimizer, &beside)?)
    }

    /// Seeds the device for a part of the network: 0 is the part before the layers, `n + 1` is layer `n`.
    pub(crate) fn seed(&self, seed: u64, piece: usize) {
        self.device.seed(mixed(seed, piece as u64));
    }

    /// Returns a loss times the loss scale, if there is one.
    pub(crate) fn scaled(&self, loss: Tensor<1>) -> Tensor<1> {
        self.scaler.as_ref().map_or(loss.clone(), |scaler| scaler.scale(loss))
    }

    /// Returns the loss of a batch, and its value with those of its terms. All of them are finite.
    pub(crate) fn judged<N: Traced>(
        &self,
        model: &Trained<N>,
        found: &Outputs,
        of_teacher: Option<&Outputs>,
        batch: &TrainingBatch<N::Input>,
    ) -> Result<(Tensor<1>, Vec<f32>)> {
        let (labels, projections) = (batch.labels.as_ref(), Some(&model.projections));
        let targets = Targets { teacher: of_teacher, labels, projections };
        let blended = self.settings.blend.loss(found, targets)?;
        if !blended.total.is_tracked() {
            let message = "it does not depend on any trainable parameter: all are frozen, or its gradient was cut off";
            return Err(Error::config(message).at("loss"));
        }
        let all = std::iter::once(blended.total.clone()).chain(blended.terms).map(Tensor::without_autodiff);
        let values = read(Tensor::cat(all.collect(), 0))?;
        let terms = self.settings.blend.terms().iter().map(|term| term.loss.name());
        let broken =
            values.iter().zip(std::iter::once("total").chain(terms)).filter(|(value, _)| !value.is_finite()).last();
        match broken {
            None => Ok((blended.total, values)),
            Some((value, name)) => {
                let first = batch.rows.first().map(|row| format!(", in the batch that begins with item {row}"));
                let message = format!(
                    "the loss {name:?} is {value} at step {}{}; lower the learning rate, or check that data",
                    self.step + 1,
                    first.unwrap_or_default()
                );
                Err(Error::refused(message))
            }
        }
    }
}

//! One step of training: a student moves a little towards its targets.

use crate::grads::{self, is_out_of_memory, read};
use crate::history::StepRecord;
use crate::items::Items;
use crate::traced::{Frozen, Teacher, Traced, TrainingBatch, TrainingData};
use crate::try_out::{check_learns, freeze, try_out};
use crate::{Outputs, Projections, Settings, Targets, average, moments};
use briquette_core::{Error, Result};
use briquette_nn::{Compression, LossScaler};
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use std::time::Instant;

/// A student, and what is trained along with it and thrown away at the end.
#[derive(Module, Debug)]
pub struct Trained<N: Module> {
    /// The student, with what is attached to it.
    pub student: N,
    pub(crate) projections: Projections,
    /// The student's average over time, on the plain device and without what is attached to it, where it is the teacher.
    pub average: Option<N>,
}

/// The projections as a field: optimizers name their parameters by paths that begin with `projections.`.
#[derive(Module, Debug)]
struct Beside {
    projections: Projections,
}

/// Trains a student: on a teacher, on labels, or both. What is attached to it (masks, grids) stays attached, and is decided
/// anew on its schedule.
///
/// The student lies on an autodiff device, the teacher and the data on the plain one beneath it.
///
/// Modules, loss, optimizer, learning rates and data of one's own, without a directory:
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
    rules: Compression,
    pub(crate) optimizer: ModuleOptimizer,
    schedule: ModuleLrScheduler,
    scaler: Option<LossScaler>,
    device: Device,
    /// The steps that the learning rate is planned for.
    n_steps: usize,
    pub(crate) step: usize,
    pub(crate) at_once: usize,
}

/// A teacher of the inputs of a network.
pub type DynTeacher<'a, N> = &'a dyn Teacher<<N as Traced>::Input>;

/// Data of the inputs of a network.
pub type DynTrainingData<'a, N> = &'a dyn TrainingData<Input = <N as Traced>::Input>;

impl Distiller {
    /// Attaches `rules` to a student, freezes what does not learn, and makes ready for `n_steps` steps. `sample` is any batch:
    /// where widths of hidden states differ, it shows what the projections have to bridge.
    ///
    /// # Errors
    /// Config where settings or rules cannot be, or student, teacher and data do not go together: what differs is named, of
    /// both; those of [`Compression::attach`].
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

    /// As [`new`](Self::new), for a training that had reached this step: rules that have begun by then are attached as they stand
    /// there, so that its checkpoint fits. [`run`](Self::run) loads it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
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
                "mean_teacher: the student's average is the teacher, and another is given; remove either",
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

    /// Steps so far.
    pub fn step_count(&self) -> usize {
        self.step
    }

    /// Items in memory at once: fewer than asked for where a device had no room for those.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    pub(crate) fn scaler(&self) -> Option<&LossScaler> {
        self.scaler.as_ref()
    }

    /// Sets step, schedule and loss scale to what they were at a checkpoint.
    pub(crate) fn stand_at(&mut self, step: usize, at_once: usize, scaler: Option<LossScaler>) {
        for _ in self.step..step {
            self.schedule.step();
        }
        (self.step, self.at_once, self.scaler) = (step, at_once, scaler);
    }

    /// One step over these rows: the mean of their losses goes down. Where the device has no room for as many rows at once,
    /// half as many are taken, and the step is made again.
    ///
    /// # Errors
    /// Refused where a loss or a gradient is not finite, with the term; Config where outputs do not compare, nothing learns, or
    /// there were as many steps as were said at first; those of reading data and of refreshing rules.
    pub fn step<N: Traced>(
        &mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        data: DynTrainingData<N>,
        rows: &[usize],
    ) -> Result<(Trained<N>, StepRecord)> {
        self.step_over(model, teacher, Items::Rows(data, rows))
    }

    /// As [`step`](Self::step), over a batch that somebody else made, on the plain device. It is taken at once: where memory ends, the
    /// step fails.
    ///
    /// # Errors
    /// As [`step`](Self::step); Io where the device has no room for it.
    pub fn step_batch<N: Traced>(
        &mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        batch: &TrainingBatch<N::Input>,
    ) -> Result<(Trained<N>, StepRecord)> {
        self.step_over(model, teacher, Items::Batch(batch))
    }

    pub(crate) fn step_over<N: Traced>(
        &mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        items: Items<N::Input>,
    ) -> Result<(Trained<N>, StepRecord)> {
        let started = Instant::now();
        self.check_planned()?;
        let (grads, losses) = loop {
            match self.gradients(&model, teacher, items) {
                Err(error) if is_out_of_memory(&error) && self.at_once > 1 && matches!(items, Items::Rows(..)) => {
                    self.device.memory_cleanup();
                    self.at_once = self.at_once.div_ceil(2);
                }
                found => break found?,
            }
        };
        let learning_rate = self.schedule.step();
        let mut record = self.record(&losses, learning_rate.base(), items);
        self.step += 1;
        let Some((grads, norm)) = self.tamed(grads, &model)? else {
            record.seconds = started.elapsed().as_secs_f64();
            return Ok((model, record));
        };
        let model = self.moved(model, learning_rate, grads)?;
        (record.grad_norm, record.seconds) = (Some(norm), started.elapsed().as_secs_f64());
        Ok((model, record))
    }

    /// burn's cosine begins again after its last step, and the learning rate would be at its highest at the end.
    fn check_planned(&self) -> Result<()> {
        if self.step < self.n_steps || self.settings.schedule.is_some() {
            return Ok(());
        }
        let message =
            format!("the learning rate is planned for {} steps, and there are more; say how many", self.n_steps);
        Err(Error::config(message).at("n_steps"))
    }

    fn record<I>(&self, losses: &[f64], learning_rate: f64, items: Items<I>) -> StepRecord {
        StepRecord {
            step: self.step + 1,
            epoch: 0,
            loss: losses[0],
            terms: losses[1..].to_vec(),
            names: self.settings.blend.terms().iter().map(|term| term.loss.name().to_string()).collect(),
            learning_rate,
            grad_norm: None,
            at_once: match items {
                Items::Rows(..) => self.at_once,
                Items::Batch(batch) => batch.rows.len(),
            },
            seconds: 0.0,
        }
    }

    /// The student after the optimizer, its rules and its average. The optimizer sees its paths as they are, so that groups of
    /// parameters match them.
    fn moved<N: Traced>(
        &mut self,
        model: Trained<N>,
        learning_rate: ModuleLearningRate,
        mut grads: GradientsParams,
    ) -> Result<Trained<N>> {
        let Trained { student, projections, average } = model;
        let of_projections = grads::taken(&mut grads, &projections);
        let student = self.optimizer.step(learning_rate.clone(), student, grads);
        let beside = self.optimizer.step(learning_rate, Beside { projections }, of_projections);
        let student = self.rules.refresh(student, self.step)?;
        let average = match (average, self.settings.mean_teacher) {
            (Some(average), Some(decay)) => Some(average::moved(average, &student, decay, self.step)?),
            _ => None,
        };
        Ok(Trained { student, projections: beside.projections, average })
    }

    /// What the optimizer will remember of a model, in bytes.
    pub(crate) fn bytes_of_moments<N: Traced>(&self, model: &Trained<N>) -> Result<u64> {
        let beside = Beside { projections: model.projections.clone() };
        Ok(moments::bytes(&self.optimizer, &model.student)? + moments::bytes(&self.optimizer, &beside)?)
    }

    /// The gradient of the mean loss over these items, and the loss and its terms. Rows come in turns of `at_once`, each loss
    /// counting by its share of rows.
    pub(crate) fn gradients<N: Traced>(
        &self,
        model: &Trained<N>,
        teacher: Option<DynTeacher<N>>,
        items: Items<N::Input>,
    ) -> Result<(GradientsParams, Vec<f64>)> {
        let wanted = self.settings.blend.wanted();
        let mut sum = GradientsAccumulator::new();
        let mut losses = vec![0.0; 1 + self.settings.blend.terms().len()];
        for index in 0..items.n_turns(self.at_once) {
            // Dropout is drawn from a seed that follows from the step alone: a run that goes on from a checkpoint draws the same.
            let seed = mixed(mixed(self.settings.seed, self.step), index);
            let (batch, share) = items.turn(index, self.at_once, &self.device)?;
            let of_teacher = match &model.average {
                Some(average) => Some(average.outputs(&batch.input, wanted)),
                None => teacher.map(|teacher| teacher.outputs(&batch, wanted)).transpose()?,
            };
            let values;
            if self.settings.by_layer && model.student.layered().is_some() {
                (sum, values) = self.by_layer(model, of_teacher.as_ref(), &batch, (share, seed), sum)?;
            } else {
                self.seed(seed, 0);
                let found = model.student.outputs(&batch.input, wanted);
                let loss;
                (loss, values) = self.judged(model, &found, of_teacher.as_ref(), &batch)?;
                let grads = self.scaled(loss * share).backward();
                sum.accumulate(model, GradientsParams::from_grads(grads, model));
            }
            losses.iter_mut().zip(values).for_each(|(sum, value)| *sum += share * f64::from(value));
        }
        Ok((sum.grads(), losses))
    }

    /// Seeds the device for a piece of the network: 0 is what comes before the layers, `n + 1` is layer `n`.
    pub(crate) fn seed(&self, seed: u64, piece: usize) {
        self.device.seed(mixed(seed, piece));
    }

    /// A loss as gradients are taken of it: times the loss scale, where there is one.
    pub(crate) fn scaled(&self, loss: Tensor<1>) -> Tensor<1> {
        self.scaler.as_ref().map_or(loss.clone(), |scaler| scaler.scale(loss))
    }

    /// The loss of a batch, and its value with those of its terms. All of them are finite.
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
            let message =
                "it does not depend on any parameter that learns: all are frozen, or its gradient was cut off";
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
                    "the loss {name:?} is {value} at step {}{}; lower the learning rate, or look at that data",
                    self.step + 1,
                    first.unwrap_or_default()
                );
                Err(Error::refused(message))
            }
        }
    }

    /// Gradients without the loss scale, clipped, and their norm before that; `None` where they overflowed in f16.
    fn tamed<N: Traced>(
        &mut self,
        grads: GradientsParams,
        model: &Trained<N>,
    ) -> Result<Option<(GradientsParams, f64)>> {
        let grads = match &mut self.scaler {
            None => grads,
            Some(scaler) => match scaler.unscale(grads, model)? {
                Some(grads) => grads,
                None => return Ok(None),
            },
        };
        // A device that ran out of memory says so when a value is read: reading the norm here keeps such gradients from the optimizer.
        let norm = grads::norm(&grads, model)?;
        if !norm.is_finite() {
            let message = format!("the gradient is {norm} at step {}; lower the learning rate", self.step);
            return Err(Error::refused(message));
        }
        // burn clips each parameter by itself; together they keep their direction, as torch's `clip_grad_norm_` has it.
        match self.settings.clip {
            Some(most) if norm > most => Ok(Some((grads::scaled(grads, model, most / norm), norm))),
            _ => Ok(Some((grads, norm))),
        }
    }
}

/// Another seed for each number (the finalizer of SplitMix64).
const fn mixed(seed: u64, number: usize) -> u64 {
    let mut z = seed.wrapping_add((number as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl<N: Traced> Trained<N> {
    /// The student with what is attached to it.
    pub fn into_student(self) -> N {
        self.student
    }
}

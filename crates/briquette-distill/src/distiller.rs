//! One step of training: a student moves a little towards its targets.

use crate::grads::{self, is_out_of_memory, read};
use crate::history::StepRecord;
use crate::traced::{Frozen, Teacher, Traced, TrainingBatch, TrainingData};
use crate::{Blend, Loss, Outputs, Projections, Settings, Targets, average, moments};
use briquette_core::{Error, Result};
use briquette_nn::{Compression, LossScaler, parameters};
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::{Module, ParamGroup};
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use std::time::Instant;

/// A student, and what is trained along with it and thrown away at the end.
#[derive(Module, Debug)]
pub struct Trained<N: Module> {
    /// The student, with what is attached to it.
    pub student: N,
    projections: Projections,
    /// The student's average over time, on the plain device and without what is attached to it, where it is the teacher.
    pub average: Option<N>,
}

/// The projections as a field: optimizers name their parameters by paths that begin with `projections.`.
#[derive(Module, Debug)]
struct Beside {
    projections: Projections,
}

/// What a step is made of.
pub(crate) enum Items<'a, I> {
    /// Rows of the data, as many at once as there is room for.
    Rows(&'a dyn TrainingData<Input = I>, &'a [usize]),
    /// A batch that somebody else made, all of it at once.
    Batch(&'a TrainingBatch<I>),
}

impl<I> Clone for Items<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Items<'_, I> {}

impl<I: Clone> Items<'_, I> {
    /// How many turns it takes with so many items at once.
    fn n_turns(self, at_once: usize) -> usize {
        match self {
            Self::Rows(_, rows) => rows.len().div_ceil(at_once),
            Self::Batch(_) => 1,
        }
    }

    /// The batch of a turn, and its share of all items.
    fn turn(self, index: usize, at_once: usize, device: &Device) -> Result<(TrainingBatch<I>, f64)> {
        let (data, rows) = match self {
            Self::Batch(batch) => return Ok((batch.clone(), 1.0)),
            Self::Rows(data, rows) => (data, rows),
        };
        let turn = &rows[index * at_once..rows.len().min((index + 1) * at_once)];
        let batch = data.batch(turn, device)?;
        if batch.rows.len() != turn.len() {
            let message = format!("the data ended early: found {} items of {}", batch.rows.len(), turn.len());
            return Err(Error::input(message));
        }
        Ok((batch, turn.len() as f64 / rows.len() as f64))
    }
}

/// Trains a student: on a teacher, on labels, or both. What is attached to it (masks, grids) stays attached, and is decided
/// anew on its schedule.
///
/// The student lies on an autodiff device, the teacher and the data on the plain one beneath it.
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

/// The device of a student that can learn.
///
/// # Errors
/// Config where it is a plain one.
pub(crate) fn check_learns<M: Module>(student: &M) -> Result<Device> {
    let device = student.devices().into_iter().next().unwrap_or_default();
    match device.is_autodiff() {
        true => Ok(device),
        false => Err(Error::config(
            "the student is on a plain device, where nothing learns; make it on `device.autodiff()`, or hand over `model.train()`",
        )),
    }
}

/// Runs student and teacher once, so that what does not go together shows before any work, and makes the projections.
fn try_out<N: Traced>(
    student: &N,
    teacher: Option<DynTeacher<N>>,
    blend: &Blend,
    sample: &TrainingBatch<N::Input>,
    device: &Device,
) -> Result<Projections> {
    if blend.needs_teacher() && teacher.is_none() {
        return Err(Error::config("there is no teacher, and a loss compares with one; name one"));
    }
    let wanted = blend.wanted();
    let found = student.valid().outputs(&sample.input, wanted);
    let of_teacher = teacher.map(|teacher| teacher.outputs(sample, wanted)).transpose()?;
    let hidden = blend.terms().iter().any(|term| matches!(term.loss, Loss::Hidden(..)));
    let widths = |teacher: &Outputs| Some([found.hidden.first()?.dims()[2], teacher.hidden.first()?.dims()[2]]);
    let widths = of_teacher.as_ref().filter(|_| hidden).and_then(widths).unwrap_or([0, 0]);
    let projections = Projections::new(found.hidden.len(), widths, device);
    let plain = projections.valid();
    let targets = Targets { teacher: of_teacher.as_ref(), labels: sample.labels.as_ref(), projections: Some(&plain) };
    blend.loss(&found, targets)?;
    Ok(projections)
}

/// Stops the gradients of what does not learn.
pub(crate) fn freeze<N: Traced>(model: Trained<N>, settings: &Settings) -> Result<Trained<N>> {
    if settings.frozen.is_empty() {
        return Ok(model);
    }
    let paths: Vec<String> = parameters(&model.student).into_iter().map(|parameter| parameter.path).collect();
    settings.frozen.check_used("parameter", paths.iter().map(String::as_str)).map_err(|error| error.at("freeze"))?;
    let frozen: Vec<String> = paths.into_iter().filter(|path| settings.frozen.matches(path)).collect();
    let student = model.student.set_require_grad_group(ParamGroup::from_paths(frozen), false);
    Ok(Trained { student, ..model })
}

impl<N: Traced> Trained<N> {
    /// The student with what is attached to it.
    pub fn into_student(self) -> N {
        self.student
    }
}

//! One step of training: a student moves a little towards its targets.

use crate::grads::{self, is_out_of_memory, read};
use crate::history::StepRecord;
use crate::traced::{Teacher, Traced, TrainingBatch, TrainingData};
use crate::{Blend, Loss, Outputs, Projections, Settings, Targets};
use briquette_core::{Error, Result};
use briquette_nn::{Compression, LossScaler, parameters};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
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
        let device = student.devices().into_iter().next().unwrap_or_default();
        if !device.is_autodiff() {
            return Err(Error::bug("the student is not on an autodiff device"));
        }
        let schedule = settings.schedule(n_steps)?;
        let projections = try_out(&student, teacher, &settings.blend, sample, &device)?;
        let student = rules.attach_at(student, step)?;
        let model = freeze(Trained { student, projections }, &settings)?;
        let optimizer = settings.optimizer.init();
        let scaler = settings.scale_loss.then(LossScaler::default);
        let (device, at_once) = (device.without_autodiff(), settings.at_once.min(settings.batch_size));
        Ok((Self { settings, rules, optimizer, schedule, scaler, device, step: 0, at_once }, model))
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
    /// Refused where a loss or a gradient is not finite, with the term; Config where outputs do not compare; those of reading
    /// data and of refreshing rules.
    pub fn step<N: Traced>(
        &mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        data: DynTrainingData<N>,
        rows: &[usize],
    ) -> Result<(Trained<N>, StepRecord)> {
        let started = Instant::now();
        let (grads, losses) = loop {
            match self.gradients(&model, teacher, data, rows) {
                Err(error) if is_out_of_memory(&error) && self.at_once > 1 => {
                    self.device.memory_cleanup();
                    self.at_once = self.at_once.div_ceil(2);
                }
                found => break found?,
            }
        };
        let learning_rate = self.schedule.step();
        let mut record = StepRecord {
            step: self.step + 1,
            epoch: 0,
            loss: losses[0],
            terms: losses[1..].to_vec(),
            learning_rate: learning_rate.base(),
            grad_norm: None,
            at_once: self.at_once,
            seconds: 0.0,
        };
        self.step += 1;
        let Some((grads, norm)) = self.tamed(grads, &model)? else {
            record.seconds = started.elapsed().as_secs_f64();
            return Ok((model, record));
        };
        let Trained { student, projections } = self.optimizer.step(learning_rate, model, grads);
        let model = Trained { student: self.rules.refresh(student, self.step)?, projections };
        (record.grad_norm, record.seconds) = (Some(norm), started.elapsed().as_secs_f64());
        Ok((model, record))
    }

    /// The gradient of the mean loss over these rows, and the loss and its terms. Rows come in turns of `at_once`, each loss
    /// counting by its share of rows.
    pub(crate) fn gradients<N: Traced>(
        &self,
        model: &Trained<N>,
        teacher: Option<DynTeacher<N>>,
        data: DynTrainingData<N>,
        rows: &[usize],
    ) -> Result<(GradientsParams, Vec<f64>)> {
        let mut sum = GradientsAccumulator::new();
        let mut losses = vec![0.0; 1 + self.settings.blend.terms().len()];
        for (index, turn) in rows.chunks(self.at_once).enumerate() {
            // Dropout is drawn from a seed that follows from the step alone: a run that goes on from a checkpoint draws the same.
            let seed = mixed(mixed(self.settings.seed, self.step), index);
            let share = turn.len() as f64 / rows.len() as f64;
            let batch = data.batch(turn, &self.device)?;
            if batch.rows.len() != turn.len() {
                let message = format!("the data ended early: found {} items of {}", batch.rows.len(), turn.len());
                return Err(Error::input(message));
            }
            let of_teacher =
                teacher.map(|teacher| teacher.outputs(&batch, self.settings.blend.wanted())).transpose()?;
            let values;
            if self.settings.by_layer && model.student.layered().is_some() {
                (sum, values) = self.by_layer(model, of_teacher.as_ref(), &batch, (share, seed), sum)?;
            } else {
                self.seed(seed, 0);
                let found = model.student.outputs(&batch.input, self.settings.blend.wanted());
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
        let all = std::iter::once(blended.total.clone()).chain(blended.terms).map(Tensor::without_autodiff);
        let values = read(Tensor::cat(all.collect(), 0))?;
        let terms = self.settings.blend.terms().iter().map(|term| term.loss.name());
        let broken =
            values.iter().zip(std::iter::once("total").chain(terms)).filter(|(value, _)| !value.is_finite()).last();
        match broken {
            None => Ok((blended.total, values)),
            Some((value, name)) => {
                let first = batch.rows.first().copied().unwrap_or(0);
                let message = format!(
                    "the loss {name:?} is {value} at step {}, in the batch that begins with item {first}; lower the \
                     learning rate, or look at that data",
                    self.step + 1
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
    let Trained { student, projections } = model;
    Ok(Trained { student: student.set_require_grad_group(ParamGroup::from_paths(frozen), false), projections })
}

impl<N: Traced> Trained<N> {
    /// The student with what is attached to it.
    pub fn into_student(self) -> N {
        self.student
    }
}

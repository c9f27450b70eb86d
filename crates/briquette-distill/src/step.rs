//! One step of training: a student moves a little towards its targets.

use crate::average;
use crate::distiller::Distiller;
use crate::grads::{self, is_out_of_memory, read};
use crate::history::StepRecord;
use crate::items::Items;
use crate::rate;
use crate::traced::{DynTeacher, DynTrainingData, Traced, TrainingBatch};
use crate::trained::{Trained, TrainedProjections};
use briquette_core::random::mixed;
use briquette_core::{Error, Result};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsAccumulator, GradientsParams};
use std::time::Instant;

impl Distiller {
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
        let model = self.updated(model, learning_rate, grads)?;
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
    fn updated<N: Traced>(
        &mut self,
        model: Trained<N>,
        learning_rate: ModuleLearningRate,
        mut grads: GradientsParams,
    ) -> Result<Trained<N>> {
        let Trained { student, projections, average } = model;
        let of_projections = grads::taken(&mut grads, &projections);
        let student = self.optimizer.step(learning_rate.clone(), student, grads);
        let beside = self.optimizer.step(learning_rate, TrainedProjections { projections }, of_projections);
        let student = self.rules.refresh(student, self.step)?;
        let average = match (average, self.settings.mean_teacher) {
            (Some(average), Some(decay)) => Some(average::updated(average, &student, decay, self.step)?),
            _ => None,
        };
        Ok(Trained { student, projections: beside.projections, average })
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
            let seed = mixed(mixed(self.settings.seed, self.step as u64), index as u64);
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
        if let Some((rate, bits)) =
            self.settings.rate.as_ref().and_then(|rate| Some((rate, rate::bits(&model.student, rate)?)))
        {
            let loss = bits * rate.weight;
            losses[0] += f64::from(read(loss.clone())?.first().copied().unwrap_or(0.0));
            sum.accumulate(model, GradientsParams::from_grads(self.scaled(loss).backward(), model));
        }
        Ok((sum.grads(), losses))
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

//! One training step: an update of the student towards its targets.

use crate::average;
use crate::distiller::Distiller;
use crate::grads::{self, is_out_of_memory, read};
use crate::history::StepRecord;
use crate::items::Items;
use crate::on_policy;
use crate::rate;
use crate::traced::{DynTeacher, DynTrainingData, Traced, TrainingBatch};
use crate::trained::{Trained, TrainedProjections};
use briquette_core::random::mixed;
use briquette_core::{Error, Result};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsAccumulator, GradientsParams};
use std::time::Instant;

impl Distiller {
    /// Makes one step over these rows, which reduces their mean loss.
    ///
    /// If the rows do not fit on the device at once, it halves their number and repeats the step.
    ///
    /// # Errors
    /// - Refused: a loss or a gradient is not finite; the message names the term.
    /// - Config: outputs do not match, no parameter is trained, or there are more steps than planned.
    /// - The first error of reading data or updating rules.
    pub fn step<N: Traced>(
        &mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        data: DynTrainingData<N>,
        rows: &[usize],
    ) -> Result<(Trained<N>, StepRecord)> {
        self.step_over(model, teacher, Items::Rows(data, rows))
    }

    /// Makes one step over a ready batch on the plain device.
    ///
    /// The batch runs in one pass; if it does not fit in memory, the step fails.
    ///
    /// # Errors
    /// - See [`step`](Self::step).
    /// - Io: the batch does not fit on the device.
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

    /// Checks that steps remain: burn's cosine schedule restarts after its last step, at the maximum learning
    /// rate.
    fn check_planned(&self) -> Result<()> {
        if self.step < self.n_steps || self.settings.schedule.is_some() {
            return Ok(());
        }
        let message = format!(
            "the learning rate is planned for {} steps, but there are more; set the number of steps",
            self.n_steps
        );
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

    /// Returns the student after the optimizer, its rules and its average are updated.
    ///
    /// The optimizer sees the student's paths without a prefix, so that parameter groups match them.
    fn updated<N: Traced>(
        &mut self,
        model: Trained<N>,
        learning_rate: ModuleLearningRate,
        mut grads: GradientsParams,
    ) -> Result<Trained<N>> {
        let Trained { student, projections, average } = model;
        let of_projections = grads::split_off(&mut grads, &projections);
        let student = self.optimizer.step(learning_rate.clone(), student, grads);
        let beside = self.optimizer.step(learning_rate, TrainedProjections { projections }, of_projections);
        let student = self.rules.refresh(student, self.step)?;
        let average = match (average, self.settings.mean_teacher) {
            (Some(average), Some(decay)) => Some(average::updated(average, &student, decay, self.step)?),
            _ => None,
        };
        Ok(Trained { student, projections: beside.projections, average })
    }

    /// Returns the gradient of the mean loss over these items, and the loss and its terms.
    ///
    /// Rows run in micro-batches of `at_once`, each weighted by its share of the rows.
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
            // The dropout seed depends only on the step, so a resumed run has the same dropout.
            let seed = mixed(mixed(self.settings.seed, self.step as u64), index as u64);
            let (batch, share) = items.turn(index, self.at_once, &self.device)?;
            let batch = on_policy::chosen(&model.student, batch, self.settings.on_policy, seed)?;
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

    /// Returns unscaled, clipped gradients and their norm before clipping; `None` if they overflowed in f16.
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
        // A device that ran out of memory fails when a value is read: reading the norm here keeps such
        // gradients from the optimizer.
        let norm = grads::norm(&grads, model)?;
        if !norm.is_finite() {
            let message = format!("the gradient is {norm} at step {}; lower the learning rate", self.step);
            return Err(Error::refused(message));
        }
        // burn clips each parameter separately; clipping all together keeps their direction, as torch's
        // `clip_grad_norm_` does.
        match self.settings.clip {
            Some(most) if norm > most => Ok(Some((grads::scaled(grads, model, most / norm), norm))),
            _ => Ok(Some((grads, norm))),
        }
    }
}

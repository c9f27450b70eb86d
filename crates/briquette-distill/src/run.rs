//! A complete training: epochs, evaluation, checkpoints and resuming.

use crate::checkpoints::{Best, Checkpoints, TrainingState};
use crate::finite::check_finite;
use crate::history::{EpochRecord, HistoryRecord, StepRecord};
use crate::items::Items;
use crate::order::{gathered, order};
use crate::traced::{DynTeacher, DynTrainingData};
use crate::trained::TrainedProjections;
use crate::try_out::freeze;
use crate::{BatchLoader, Distiller, Settings, Traced, Trained, loader};
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

/// Follows a training: evaluates its students, and may stop it.
pub trait Watch<N> {
    /// Evaluates a student at the end of an epoch, and returns its metrics by name.
    ///
    /// The student is passed in training mode.
    ///
    /// # Errors
    /// An error ends the training.
    fn evaluate(&mut self, _student: &N) -> Result<BTreeMap<String, f64>> {
        Ok(BTreeMap::new())
    }

    /// Receives each step.
    ///
    /// # Errors
    /// - An error ends the training.
    /// - Interrupted: the user requested the stop.
    fn stepped(&mut self, _record: &StepRecord) -> Result<()> {
        Ok(())
    }

    /// Receives the end of each epoch.
    ///
    /// # Errors
    /// See [`Watch::stepped`].
    fn epoch(&mut self, _record: &EpochRecord) -> Result<()> {
        Ok(())
    }
}

/// Evaluates nothing, and never stops the training.
impl<N> Watch<N> for () {}

/// The outcome of a training.
#[derive(Debug)]
pub struct TrainingOutcome<N> {
    /// The best student by the goal's metric, or else the last, with its masks and grids attached.
    pub student: N,
    /// The average of the last student over time, if it was the teacher. It has no masks or grids attached.
    pub average: Option<N>,
    /// Every step and epoch, including those before a kill.
    pub history: Vec<HistoryRecord>,
    /// The best epoch.
    pub best: Option<Best>,
    /// The number of completed steps when the training was resumed.
    pub resumed_at: usize,
}

/// Returns the number of steps of a training.
pub fn n_steps(n_items: usize, batch_size: usize, epochs: usize) -> usize {
    n_items.div_ceil(batch_size.max(1)) * epochs
}

impl Distiller {
    /// Trains to the end, resuming from the last checkpoint in `checkpoints` if there is one.
    ///
    /// The same seed, data and device give the same student, even if a run was killed in between.
    ///
    /// # Errors
    /// - Input: there is no data, or a checkpoint does not fit.
    /// - Config: the evaluation does not return the goal's metric.
    /// - Refused: a weight is not finite; the last checkpoint is preserved.
    /// - The first error of `watch`.
    /// - See [`Distiller::step`]; the last checkpoint is preserved.
    pub fn run<N: Traced>(
        mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        data: DynTrainingData<N>,
        checkpoints: &Checkpoints,
        watch: &mut dyn Watch<N>,
    ) -> Result<TrainingOutcome<N>> {
        if data.is_empty() {
            return Err(Error::input("the data is empty; there is nothing to train on"));
        }
        let (mut model, mut state) = self.take_up(model, checkpoints)?;
        let resumed_at = state.step;
        while !state.is_done {
            model = self.epoch(model, teacher, data, &mut state, checkpoints, watch)?;
            self.end_of_epoch(&model, &mut state, checkpoints, watch)?;
        }
        finished(model, state, resumed_at, checkpoints)
    }

    /// Trains like [`run`](Self::run) on the batches of one of burn's loaders.
    ///
    /// One batch is one step, independent of `batch_size`, and the loader sets the order. If its order depends
    /// only on a seed, with one worker, the same start gives the same student.
    ///
    /// A loader cannot resume within an epoch, so a training resumes from the end of its last complete epoch,
    /// and `save_every` has no effect. The orders of earlier epochs are requested from the loader and
    /// discarded, so that a burn loader with the same seed continues identically.
    ///
    /// # Errors
    /// - See [`run`](Self::run).
    /// - Input: the loader has no batches or fails.
    /// - Config: a checkpoint is in the middle of an epoch.
    pub fn run_loader<N: Traced>(
        mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        batches: &BatchLoader<N::Input>,
        checkpoints: &Checkpoints,
        watch: &mut dyn Watch<N>,
    ) -> Result<TrainingOutcome<N>> {
        let (mut model, mut state) = self.take_up(model, checkpoints)?;
        if state.step_of_epoch > 0 {
            let message = "the checkpoint is in the middle of an epoch, where no data loader can resume; train on the data itself";
            return Err(Error::config(message));
        }
        (0..state.epoch).for_each(|_| drop(batches.iter()));
        let resumed_at = state.step;
        while !state.is_done {
            model = self.epoch_of_loader(model, teacher, batches, &mut state, checkpoints, watch)?;
            self.end_of_epoch(&model, &mut state, checkpoints, watch)?;
        }
        finished(model, state, resumed_at, checkpoints)
    }

    /// Returns the state of the last checkpoint, or the initial state if there is none.
    fn take_up<N: Traced>(
        &mut self,
        model: Trained<N>,
        checkpoints: &Checkpoints,
    ) -> Result<(Trained<N>, TrainingState)> {
        let Some(state) = checkpoints.state()? else {
            checkpoints.forget_after(0, 0)?;
            return Ok((model, TrainingState::at_start(self.at_once, self.scaler().cloned())));
        };
        checkpoints.forget_after(state.step, state.epoch)?;
        let (model, optimizer) = checkpoints.load(model, self.optimizer.clone(), &state)?;
        self.optimizer = optimizer;
        self.stand_at(state.step, state.at_once, state.scaler.clone());
        Ok((freeze(model, &self.settings)?, state))
    }

    /// Trains the rest of an epoch.
    fn epoch<N: Traced>(
        &mut self,
        mut model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        data: DynTrainingData<N>,
        state: &mut TrainingState,
        checkpoints: &Checkpoints,
        watch: &mut dyn Watch<N>,
    ) -> Result<Trained<N>> {
        let rows = order(data.len(), self.settings.seed, state.epoch)?;
        let Settings { seed, batch_size, .. } = self.settings;
        let rows = gathered(rows, batch_size, seed, state.epoch, |row| data.cost(row))?;
        for rows in rows.chunks(self.settings.batch_size).skip(state.step_of_epoch) {
            let record;
            (model, record) = self.next_step(model, teacher, Items::Rows(data, rows), state, checkpoints)?;
            if self.step.is_multiple_of(self.settings.save_every) {
                self.check_finite(&model)?;
                self.save(&model, state, checkpoints)?;
            }
            watch.stepped(&record)?;
        }
        Ok(model)
    }

    /// Trains an epoch on a loader's batches.
    fn epoch_of_loader<N: Traced>(
        &mut self,
        mut model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        batches: &BatchLoader<N::Input>,
        state: &mut TrainingState,
        checkpoints: &Checkpoints,
        watch: &mut dyn Watch<N>,
    ) -> Result<Trained<N>> {
        for batch in batches.iter() {
            let batch = loader::read(batch).map_err(|error| kept(error, state))?;
            let record;
            (model, record) = self.next_step(model, teacher, Items::Batch(&batch), state, checkpoints)?;
            watch.stepped(&record)?;
        }
        match state.step_of_epoch {
            0 => Err(Error::input("the data loader has no batches; there is nothing to train on")),
            _ => Ok(model),
        }
    }

    /// Makes and logs one step.
    fn next_step<N: Traced>(
        &mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        items: Items<N::Input>,
        state: &mut TrainingState,
        checkpoints: &Checkpoints,
    ) -> Result<(Trained<N>, StepRecord)> {
        let (model, record) = self.step_over(model, teacher, items).map_err(|error| kept(error, state))?;
        let record = StepRecord { epoch: state.epoch + 1, ..record };
        state.count(self.step, record.loss);
        checkpoints.log(&HistoryRecord::Step(record.clone()))?;
        Ok((model, record))
    }

    /// Evaluates, stores the student if it is the best, and decides whether training is finished.
    fn end_of_epoch<N: Traced>(
        &self,
        model: &Trained<N>,
        state: &mut TrainingState,
        checkpoints: &Checkpoints,
        watch: &mut dyn Watch<N>,
    ) -> Result<()> {
        self.check_finite(model)?;
        let metrics = watch.evaluate(&model.student)?;
        let is_best = judge(&self.settings, &metrics, state)?;
        let (epoch, loss) = (state.epoch + 1, state.mean_loss());
        if is_best {
            checkpoints.save_best(model, epoch, state)?;
        }
        let record = EpochRecord { epoch, step: self.step, loss, metrics, is_best };
        checkpoints.log(&HistoryRecord::Epoch(record.clone()))?;
        watch.epoch(&record)?;
        let best = state.best.map_or(state.epoch, |best| best.epoch - 1);
        let is_stale = self.settings.patience.is_some_and(|patience| state.epoch - best >= patience);
        state.end_epoch();
        state.is_done = is_stale || state.epoch == self.settings.epochs;
        self.save(model, state, checkpoints)
    }

    /// Refuses weights that are not finite, so that the last checkpoint stays.
    fn check_finite<N: Traced>(&self, model: &Trained<N>) -> Result<()> {
        check_finite(&model.student, self.step)?;
        check_finite(&TrainedProjections { projections: model.projections.clone() }, self.step)
    }

    fn save<N: Traced>(&self, model: &Trained<N>, state: &mut TrainingState, checkpoints: &Checkpoints) -> Result<()> {
        (state.at_once, state.scaler) = (self.at_once, self.scaler().cloned());
        checkpoints.save(model, &self.optimizer, state)
    }
}

/// Returns the outcome of a finished training.
fn finished<N: Traced>(
    model: Trained<N>,
    state: TrainingState,
    resumed_at: usize,
    checkpoints: &Checkpoints,
) -> Result<TrainingOutcome<N>> {
    let average = model.average.clone();
    let student = match &state.best {
        Some(best) => checkpoints.load_best(model, best.epoch, &state)?.into_student(),
        None => model.into_student(),
    };
    Ok(TrainingOutcome { student, average, history: checkpoints.lines()?, best: state.best, resumed_at })
}

/// Returns whether this epoch's student is the best so far.
pub(crate) fn judge(settings: &Settings, metrics: &BTreeMap<String, f64>, state: &mut TrainingState) -> Result<bool> {
    let Some(goal) = &settings.goal else { return Ok(false) };
    let Some(&value) = metrics.get(&goal.metric) else {
        let known: Vec<&str> = metrics.keys().map(String::as_str).collect();
        let message = format!("the metric {:?} is not measured here, only {}", goal.metric, known.join(", "));
        return Err(Error::config(message).at("metric"));
    };
    let is_better = |than: f64| if goal.is_more_better { value > than } else { value < than };
    let is_best = state.step >= settings.settled_at && state.best.is_none_or(|best| is_better(best.value));
    if is_best {
        state.best = Some(Best { epoch: state.epoch + 1, value });
    }
    Ok(is_best)
}

/// Adds the position in the data to the error of a step.
fn kept(error: Error, state: &TrainingState) -> Error {
    error.at(format_args!("epoch {}, batch {}", state.epoch + 1, state.step_of_epoch + 1))
}

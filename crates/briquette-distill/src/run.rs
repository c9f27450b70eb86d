//! A whole training: epochs, evaluation, checkpoints, and going on after a kill.

use crate::checkpoints::{Best, Checkpoints, TrainingState};
use crate::history::{EpochRecord, HistoryRecord, StepRecord};
use crate::items::Items;
use crate::order::{gathered, order};
use crate::traced::{DynTeacher, DynTrainingData};
use crate::try_out::freeze;
use crate::{BatchLoader, Distiller, Settings, Traced, Trained, loader};
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

/// Follows a training: evaluates its students, and may end it.
pub trait Watch<N> {
    /// What a student is worth, by the names of metrics; it comes as it trains. Called at the end of each epoch.
    ///
    /// # Errors
    /// Those of evaluating.
    fn evaluate(&mut self, _student: &N) -> Result<BTreeMap<String, f64>> {
        Ok(BTreeMap::new())
    }

    /// A step is done.
    ///
    /// # Errors
    /// One here ends the training: Interrupted where somebody wishes so.
    fn stepped(&mut self, _record: &StepRecord) -> Result<()> {
        Ok(())
    }

    /// An epoch is done.
    ///
    /// # Errors
    /// As [`Watch::stepped`].
    fn epoch(&mut self, _record: &EpochRecord) -> Result<()> {
        Ok(())
    }
}

/// Evaluates nothing, and lets the training go on.
impl<N> Watch<N> for () {}

/// What a training came to.
#[derive(Debug)]
pub struct TrainingOutcome<N> {
    /// The best student where a metric says so, else the last; what is attached to it still is.
    pub student: N,
    /// The average of the last student over time, where it was the teacher; nothing is attached to it.
    pub average: Option<N>,
    /// Every step and epoch, those before a kill too.
    pub history: Vec<HistoryRecord>,
    /// The best epoch.
    pub best: Option<Best>,
    /// Steps that had been made when it was taken up.
    pub resumed_at: usize,
}

/// How many steps a training takes.
pub fn n_steps(n_items: usize, batch_size: usize, epochs: usize) -> usize {
    n_items.div_ceil(batch_size.max(1)) * epochs
}

impl Distiller {
    /// Trains to the end, or from the last checkpoint in `checkpoints` to the end. The same seed, data and device give the
    /// same student, whether or not a run was killed in between.
    ///
    /// # Errors
    /// Input where there is no data or a checkpoint does not fit; Config where the evaluation does not give the metric that
    /// is watched; those of [`Distiller::step`] (the last checkpoint stays) and of `watch`.
    pub fn run<N: Traced>(
        mut self,
        model: Trained<N>,
        teacher: Option<DynTeacher<N>>,
        data: DynTrainingData<N>,
        checkpoints: &Checkpoints,
        watch: &mut dyn Watch<N>,
    ) -> Result<TrainingOutcome<N>> {
        if data.is_empty() {
            return Err(Error::input("there is nothing to train on; the data is empty"));
        }
        let (mut model, mut state) = self.take_up(model, checkpoints)?;
        let resumed_at = state.step;
        while !state.is_done {
            model = self.epoch(model, teacher, data, &mut state, checkpoints, watch)?;
            self.end_of_epoch(&model, &mut state, checkpoints, watch)?;
        }
        finished(model, state, resumed_at, checkpoints)
    }

    /// As [`run`](Self::run), over the batches of one of burn's loaders: one batch is one step, whatever `batch_size` says, and its
    /// order is the loader's. Where that is drawn from a seed, by one worker, the same start gives the same student.
    ///
    /// Nothing tells how to go on within the order of a loader, so a training goes on from the end of its last whole epoch, and
    /// `save_every` does not count. The loader is asked for the orders of the epochs before, which are not used: a loader of burn's with
    /// the same seed then goes on as it would have.
    ///
    /// # Errors
    /// As [`run`](Self::run); Input where the loader has no batches or fails; Config where a checkpoint is in the middle of an epoch.
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
            let message = "the checkpoint is in the middle of an epoch, where no data loader can go on; train from the data itself";
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

    /// Where an earlier run stood; at the start where there was none.
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

    /// The rest of an epoch.
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
                self.save(&model, state, checkpoints)?;
            }
            watch.stepped(&record)?;
        }
        Ok(model)
    }

    /// An epoch over a loader's batches.
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
            0 => Err(Error::input("there is nothing to train on; the data loader has no batches")),
            _ => Ok(model),
        }
    }

    /// One step, counted and written down.
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

    /// Evaluates, keeps the student where it is the best, and says whether training goes on.
    fn end_of_epoch<N: Traced>(
        &self,
        model: &Trained<N>,
        state: &mut TrainingState,
        checkpoints: &Checkpoints,
        watch: &mut dyn Watch<N>,
    ) -> Result<()> {
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

    fn save<N: Traced>(&self, model: &Trained<N>, state: &mut TrainingState, checkpoints: &Checkpoints) -> Result<()> {
        (state.at_once, state.scaler) = (self.at_once, self.scaler().cloned());
        checkpoints.save(model, &self.optimizer, state)
    }
}

/// What a training that is done came to.
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

/// Whether this epoch's student is the best so far.
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

/// Where in the data a step failed, and what is left of the work before.
fn kept(error: Error, state: &TrainingState) -> Error {
    error.at(format_args!("epoch {}, batch {}", state.epoch + 1, state.step_of_epoch + 1))
}

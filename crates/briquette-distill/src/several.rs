//! A complete training on several devices, in burn's own loop.
//!
//! The loop starts anew for each epoch. Between epochs, this module evaluates, writes checkpoints and selects
//! the best student, as on a single device.

use crate::checkpoints::{BURN, Checkpoints, TrainingState, student_of};
use crate::finite::check_finite;
use crate::history::{EpochRecord, HistoryRecord, StepRecord};
use crate::order::{gathered, order};
use crate::run::judge;
use crate::traced::{Traced, TrainingBatch, TrainingData};
use crate::train_step::{StepHook, StepHookInner};
use crate::try_out::check_learns;
use crate::{Distilling, Settings, SharedTeacher, TrainingOutcome, Watch};
use briquette_core::{Error, Result};
use briquette_nn::{Compressing, Compression, Quiet};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::tensor::Device;
use burn::tensor::distributed::{DistributedConfig, ReduceOperation};
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn::train::{ExecutionStrategy, Interrupter, Learner, MultiDeviceOptim, SupervisedTraining, TrainingStrategy};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Training data that threads share.
pub type SharedTrainingData<N> = Arc<dyn TrainingData<Input = <N as Traced>::Input> + Send + Sync>;

/// A callback for each step; an error ends the training.
pub type EachStep = Arc<dyn Fn(&StepRecord) -> Result<()> + Send + Sync>;

/// A data-parallel training on several devices.
///
/// Each device has a copy of student and teacher and a share of the data. It takes `settings.at_once` items at
/// a time, and the gradients of all devices are summed for each optimizer step.
pub struct Several<N: Traced> {
    /// The student on the first device, with autodiff.
    pub student: N,
    /// The teacher, a network of any type; `None` if there are only labels.
    pub teacher: Option<SharedTeacher<N::Input>>,
    /// Masks and grids that stay attached, by paths that begin with `student.`.
    pub rules: Compression,
    /// The settings. `batch_size` is per step: items at once, times micro-batches, times devices.
    pub settings: Settings,
    /// The devices, with autodiff. GPUs exchange gradients through NCCL; with CPUs the first device gathers
    /// them.
    pub devices: Vec<Device>,
    /// The data.
    pub data: SharedTrainingData<N>,
    /// A callback for each step.
    pub each: EachStep,
}

/// Returns the number of steps per epoch on several devices. The last device also takes the remaining items.
pub fn steps_of_epoch(n_items: usize, n_devices: usize, at_once: usize, n_turns: usize) -> usize {
    let largest = n_items - n_items / n_devices.max(1) * n_devices.saturating_sub(1);
    largest.div_ceil(at_once.max(1)).div_ceil(n_turns.max(1))
}

impl<N: Traced + 'static> Several<N>
where
    N::Input: Send + std::fmt::Debug + 'static,
{
    /// Trains to the end, resuming from the last complete epoch in `checkpoints` if there is one.
    ///
    /// # Errors
    /// - Config: student, teacher, blend and settings do not match, or burn's loop does not support a setting.
    /// - Refused: a loss, a gradient or a weight is not finite; the last checkpoint is preserved.
    /// - Input: there are fewer items than devices.
    /// - Io: a file cannot be read or written.
    /// - The first error of `watch`.
    pub fn run(&self, checkpoints: &Checkpoints, watch: &mut dyn Watch<N>) -> Result<TrainingOutcome<N>> {
        self.check()?;
        directory_of(checkpoints)?;
        let mut state = checkpoints.state()?.unwrap_or_else(|| TrainingState::at_start(self.settings.at_once, None));
        // burn reads most of these files without checking hashes, so check them first.
        checkpoints.check_files(&state)?;
        checkpoints.forget_after(state.step, state.epoch)?;
        let resumed_at = state.step;
        while !state.is_done {
            let (student, loss) = self.epoch(&mut state, checkpoints)?;
            self.end_of_epoch(&student, loss, &mut state, checkpoints, watch)?;
        }
        let StudentField { student } =
            self.rules.attach_at(StudentField { student: self.student.clone() }, state.step)?;
        let epoch = state.best.map_or(state.epoch, |best| best.epoch);
        let student = checkpoints.load_student(student, epoch, &state)?;
        Ok(TrainingOutcome { student, average: None, history: checkpoints.lines()?, best: state.best, resumed_at })
    }

    fn check(&self) -> Result<()> {
        self.settings.check()?;
        check_learns(&self.student)?;
        let n_devices = self.devices.len();
        if self.data.len() < n_devices {
            let message =
                format!("found {} items, expected at least one for each of {n_devices} devices", self.data.len());
            return Err(Error::input(message));
        }
        let refused = [
            ("freeze", !self.settings.frozen.is_empty()),
            ("dtype = \"f16\"", self.settings.scale_loss),
            ("mean_teacher", self.settings.mean_teacher.is_some()),
            ("on_policy", self.settings.on_policy > 0.0),
        ];
        match refused.iter().find(|(_, is_requested)| *is_requested) {
            Some((key, _)) => Err(Error::config(format!(
                "{key}: not supported on several devices; remove it, or train on one device"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the number of optimizer steps per epoch.
    fn n_steps(&self) -> usize {
        steps_of_epoch(self.data.len(), self.devices.len(), self.settings.at_once, self.n_turns())
    }

    /// Returns the number of batches that each device takes per optimizer step (gradient accumulation).
    fn n_turns(&self) -> usize {
        (self.settings.batch_size / (self.settings.at_once * self.devices.len()).max(1)).max(1)
    }

    /// Trains one epoch. Returns the student, and the mean of its losses.
    fn epoch(&self, state: &mut TrainingState, checkpoints: &Checkpoints) -> Result<(N, f64)> {
        let Settings { seed, at_once, .. } = self.settings;
        let (plain, interrupter) = (self.devices[0].clone().without_autodiff(), Interrupter::new());
        let records = Arc::new(Mutex::new(Vec::new()));
        let steps = self.steps(state, records.clone(), &interrupter);
        let sample = self.data.batch(&[0], &plain)?;
        let blend = self.settings.blend.clone();
        let distilling = Distilling::new(self.student.clone(), self.teacher.clone(), blend, &sample)?;
        let distilling = distilling.with_steps(StepHook::new(steps));
        let model = Compressing::resumed(distilling, self.rules.clone(), state.step)?;
        let schedule = self.settings.schedule(self.n_steps() * self.settings.epochs)?;
        let learner = Learner::new(model, self.settings.optimizer.init(), schedule);

        let rows = order(self.data.len(), seed, state.epoch)?;
        let rows = gathered(rows, at_once, seed, state.epoch, |row| self.data.cost(row))?;
        let (directory, epoch) = (directory_of(checkpoints)?.join(BURN), state.epoch + 1);
        let training = SupervisedTraining::new(&directory, self.loader(rows), self.loader(Vec::new()))
            .with_training_strategy(TrainingStrategy::Default(self.strategy()))
            .with_application_logger(None)
            .renderer(Box::new(Quiet))
            .with_interrupter(interrupter.clone())
            .with_default_checkpointers()
            .with_checkpointing_strategy(KeepLastNCheckpoints::new(2))
            .grads_accumulation(self.n_turns())
            .num_epochs(epoch);
        let training = if epoch > 1 { training.checkpoint(epoch - 1) } else { training };
        let found = catch_unwind(AssertUnwindSafe(|| training.launch(learner)));
        let found = found.map_err(|panic| Error::refused(words_of(&*panic)))?;
        let records: Vec<StepRecord> = std::mem::take(&mut *records.lock().unwrap_or_else(PoisonError::into_inner));
        // burn's loop only reports that it was stopped. Calling the callback again returns the reason as an
        // error.
        records.last().map_or(Ok(()), |record| if interrupter.should_stop() { (self.each)(record) } else { Ok(()) })?;
        if let Some(error) = found.error {
            let words = error.to_string();
            return Err(Error::refused(words.lines().next().unwrap_or_default().to_string()));
        }
        records.iter().try_for_each(|record| checkpoints.log(&HistoryRecord::Step(record.clone())))?;
        state.step = found.model.step_count();
        let loss = records.iter().map(|record| record.loss).sum::<f64>() / records.len().max(1) as f64;
        Ok((found.model.model.student, loss))
    }

    /// Returns the hook for each of burn's steps: it scales and clips gradients, and logs the step.
    fn steps(
        &self,
        state: &TrainingState,
        records: Arc<Mutex<Vec<StepRecord>>>,
        interrupter: &Interrupter,
    ) -> StepHookInner {
        let (each, interrupter, at_once) = (self.each.clone(), interrupter.clone(), self.settings.at_once);
        let (first, epoch) = (state.step, state.epoch + 1);
        let started = Mutex::new(Instant::now());
        let on_step = move |loss: f64, learning_rate: f64, norm: f64| {
            let mut records = records.lock().unwrap_or_else(PoisonError::into_inner);
            let mut started = started.lock().unwrap_or_else(PoisonError::into_inner);
            let seconds = std::mem::replace(&mut *started, Instant::now()).elapsed().as_secs_f64();
            let (step, terms, names) = (first + records.len() + 1, Vec::new(), Vec::new());
            let grad_norm = Some(norm);
            let record = StepRecord { step, epoch, loss, terms, names, learning_rate, grad_norm, at_once, seconds };
            if let Err(error) = each(&record) {
                interrupter.stop(Some(&error.message));
            }
            records.push(record);
        };
        // NCCL averages gradients between GPUs, and burn sums them between CPUs; micro-batches are always
        // summed.
        let n_summed = if is_cpu(&self.devices[0]) { self.devices.len() * self.n_turns() } else { self.n_turns() };
        StepHookInner {
            share: 1.0 / n_summed as f64,
            clip: self.settings.clip,
            main: self.devices[0].clone(),
            losses: Mutex::default(),
            on_step: Box::new(on_step),
        }
    }

    fn strategy(&self) -> ExecutionStrategy {
        let devices = self.devices.clone();
        match is_cpu(&devices[0]) {
            true => ExecutionStrategy::multi(devices, MultiDeviceOptim::OptimMainDevice),
            false => ExecutionStrategy::ddp(devices, DistributedConfig { all_reduce_op: ReduceOperation::Mean }),
        }
    }

    fn loader(&self, rows: Vec<usize>) -> Arc<dyn DataLoader<TrainingBatch<N::Input>>> {
        let batches = DataLoaderBuilder::new(RowBatcher::<N>(self.data.clone()));
        // Without a device, burn puts batches on its default device, which may not be one of the training
        // devices.
        let plain = self.devices[0].clone().without_autodiff();
        batches.batch_size(self.settings.at_once).set_device(plain).build(InMemDataset::new(rows))
    }

    /// Evaluates, stores the student, and decides whether training is finished.
    fn end_of_epoch(
        &self,
        student: &N,
        loss: f64,
        state: &mut TrainingState,
        checkpoints: &Checkpoints,
        watch: &mut dyn Watch<N>,
    ) -> Result<()> {
        check_finite(student, state.step)?;
        let metrics = watch.evaluate(student)?;
        let is_best = judge(&self.settings, &metrics, state)?;
        let epoch = state.epoch + 1;
        let of_best = state.best.and_then(|best| state.files.remove_entry(&student_of(best.epoch)));
        state.files = of_best.into_iter().collect();
        checkpoints.save_student(student, epoch, state)?;
        ["model", "optim", "scheduler"]
            .iter()
            .try_for_each(|name| checkpoints.adopt(&format!("{BURN}/checkpoint/{name}-{epoch}.bpk"), state))?;
        let record = EpochRecord { epoch, step: state.step, loss, metrics, is_best };
        checkpoints.log(&HistoryRecord::Epoch(record.clone()))?;
        let best = state.best.map_or(state.epoch, |best| best.epoch - 1);
        let is_stale = self.settings.patience.is_some_and(|patience| state.epoch - best >= patience);
        state.end_epoch();
        state.is_done = is_stale || epoch == self.settings.epochs;
        checkpoints.save_state(state)?;
        watch.epoch(&record)
    }
}

/// Returns the directory of the checkpoints, which burn's loop requires.
fn directory_of(checkpoints: &Checkpoints) -> Result<&Path> {
    let message = "training on several devices needs a directory for checkpoints; set one";
    checkpoints.directory().ok_or_else(|| Error::config(message))
}

/// A student as a field, as in [`Distilling`]: the parameter paths of checkpoints begin with `student.`.
#[derive(Module, Debug)]
struct StudentField<N: Module> {
    student: N,
}

/// Makes batches for burn's loaders.
struct RowBatcher<N: Traced>(SharedTrainingData<N>);

impl<N: Traced> Batcher<usize, TrainingBatch<N::Input>> for RowBatcher<N> {
    fn batch(&self, rows: Vec<usize>, device: &Device) -> TrainingBatch<N::Input> {
        let found = self.0.batch(&rows, &device.clone().without_autodiff());
        // burn's loaders cannot return an error; `epoch` catches this panic and converts it back.
        found.unwrap_or_else(|error| panic!("{error}"))
    }
}

fn is_cpu(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    return device.clone().without_autodiff() == Device::flex();
    #[cfg(not(feature = "flex"))]
    return false;
}

/// Returns the first line of a panic's message.
fn words_of(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    said.and_then(|said| said.lines().next()).unwrap_or("burn's training loop failed").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_with_the_most_items_sets_the_steps() {
        assert_eq!(steps_of_epoch(64, 2, 8, 1), 4);
        assert_eq!(steps_of_epoch(65, 2, 8, 1), 5); // 32 and 33
        assert_eq!(steps_of_epoch(65, 2, 8, 2), 3);
        assert_eq!(steps_of_epoch(7, 1, 8, 1), 1);
        assert_eq!(steps_of_epoch(11, 3, 2, 1), 3); // 3, 3 and 5
    }
}

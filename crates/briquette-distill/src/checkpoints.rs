//! Where training stands, on disk: what a run that was killed goes on from.
//!
//! Each checkpoint is a pair of files named by their step, and `last.json` names the pair that counts, with a hash of each file
//! and of itself. It is replaced in one step after both are on disk, so that a kill or a full disk leaves the older one whole;
//! what it does not name is removed then. What does not hash to what was written is not gone on from.
//!
//! Where no directory is wanted, only the best student and the history are kept, in memory.

mod resume_file;
mod state;

use crate::history::HistoryRecord;
use briquette_core::{Error, ErrorKind, Hash128, Remedy, Result};
use briquette_formats::limits;
use briquette_nn::load_record;
use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use resume_file::ResumeFile;
pub use state::{Best, TrainingState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that names the checkpoint that counts.
const LAST: &str = "last.json";
/// A line for each step and epoch.
const METRICS: &str = "metrics.jsonl";
/// What files of weights and moments end in.
const RECORD: &str = ".bpk";
/// What is done about a checkpoint that cannot be gone on from.
const WAY_OUT: &str = "clear the checkpoints to start anew";

/// A directory of checkpoints, or none.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    place: ResumeFile,
}

impl Checkpoints {
    /// In this directory, which is made where it is missing.
    ///
    /// # Errors
    /// Io.
    pub fn at(directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = directory.into();
        resume_file::made(&directory)?;
        Ok(Self { place: ResumeFile::Directory(directory) })
    }

    /// In no directory: the history and the best student are kept in memory while training runs, and nothing is gone on from.
    pub fn in_memory() -> Self {
        Self { place: ResumeFile::Memory(Arc::default()) }
    }

    /// Where they are, if they are on disk.
    pub fn directory(&self) -> Option<&Path> {
        self.place.directory()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// Where training stood, if it stood anywhere.
    ///
    /// # Errors
    /// Input where the file is damaged, which [`is_damage`](Self::is_damage) tells; Io.
    pub fn state(&self) -> Result<Option<TrainingState>> {
        let bytes = self.place.read(LAST, Some(limits::MAX_JSON_BYTES)).map_err(with_way_out)?;
        bytes.map(|bytes| TrainingState::read(&bytes, &self.file(LAST))).transpose().map_err(with_way_out)
    }

    /// Whether an error means that there is no going on from a checkpoint: [`clear`](Self::clear) leads out of it.
    pub fn is_damage(error: &Error) -> bool {
        error.kind == ErrorKind::Input && error.remedy == Some(Remedy::StartAnew)
    }

    /// Removes every checkpoint, so that training begins anew.
    ///
    /// # Errors
    /// Io.
    pub fn clear(&self) -> Result<()> {
        self.place.clear()
    }

    /// Writes model and optimizer, then the state that names them, then removes the files that the state before named. In memory there
    /// is nothing to go on from, and only the best student stays.
    pub(crate) fn save<M: Module>(
        &self,
        model: &M,
        optimizer: &ModuleOptimizer,
        state: &mut TrainingState,
    ) -> Result<()> {
        if self.directory().is_none() {
            state.files.retain(|name, _| state.best.is_some_and(|best| *name == best_of(best.epoch)));
            return self.save_state(state);
        }
        let [to_model, to_optimizer] = pair(state.step);
        let bytes = optimizer.into_bytes().map_err(|error| Error::bug(format!("the optimizer's state: {error}")))?;
        let written = [
            (to_model.clone(), self.write_record(model, &to_model)?),
            (to_optimizer.clone(), self.write(&to_optimizer, &bytes)?),
        ];
        let best = state.best.and_then(|best| state.files.remove_entry(&best_of(best.epoch)));
        state.files = written.into_iter().chain(best).collect();
        self.save_state(state)
    }

    /// Writes a state, from which on the files that it names are the checkpoint, and removes all others.
    pub(crate) fn save_state(&self, state: &TrainingState) -> Result<()> {
        if self.directory().is_some() {
            self.place.write(LAST, &state.to_json()?)?;
        }
        self.place.remove(|name| name.ends_with(RECORD) && !state.files.contains_key(name));
        Ok(())
    }

    /// Writes the student of an epoch; it belongs to the checkpoint once `state` is written.
    pub(crate) fn save_student<M: Module>(&self, student: &M, epoch: usize, state: &mut TrainingState) -> Result<()> {
        self.keep(student, student_of(epoch), state)
    }

    /// The student of an epoch.
    pub(crate) fn load_student<M: Module>(&self, student: M, epoch: usize, state: &TrainingState) -> Result<M> {
        self.read_record(student, &student_of(epoch), state)
    }

    /// Puts model and optimizer back where they were at `state`.
    pub(crate) fn load<M: Module>(
        &self,
        model: M,
        optimizer: ModuleOptimizer,
        state: &TrainingState,
    ) -> Result<(M, ModuleOptimizer)> {
        let [from_model, from_optimizer] = pair(state.step);
        let model = self.read_record(model, &from_model, state)?;
        let bytes = Bytes::from_bytes_vec(self.read(&from_optimizer, state)?);
        let record = OptimizerRecord::from_bytes(bytes).map_err(|error| self.misfit(&from_optimizer, &error))?;
        // burn leaves out what it cannot use of another optimizer's record, which would train on without moments. How many tensors and
        // numbers a record has, only its debug form tells.
        let expected = format!("{record:?}");
        let optimizer = optimizer.load_record(record);
        match format!("{:?}", optimizer.to_record()) == expected {
            true => Ok((model, optimizer)),
            false => {
                let message = "the checkpoint is of another optimizer; train with that one";
                Err(with_way_out(Error::input(message).at(self.file(&from_optimizer).display())))
            }
        }
    }

    /// Writes the best model, which is that of this epoch; it belongs to the checkpoint once `state` is written.
    pub(crate) fn save_best<M: Module>(&self, model: &M, epoch: usize, state: &mut TrainingState) -> Result<()> {
        self.keep(model, best_of(epoch), state)
    }

    /// The best model, which is that of this epoch.
    pub(crate) fn load_best<M: Module>(&self, model: M, epoch: usize, state: &TrainingState) -> Result<M> {
        self.read_record(model, &best_of(epoch), state)
    }

    /// Has `state` name a file that others wrote, by its path in the directory; it belongs to the checkpoint once `state` is written.
    pub(crate) fn adopt(&self, name: &str, state: &mut TrainingState) -> Result<()> {
        let missing = || Error::bug("burn wrote no such file").at(self.file(name).display());
        let bytes = self.place.read(name, None)?.ok_or_else(missing)?;
        state.files.insert(name.to_string(), Hash128::of_block(&bytes));
        Ok(())
    }

    /// Compares every file that `state` names with its hash, for those that are not read by this.
    pub(crate) fn check_files(&self, state: &TrainingState) -> Result<()> {
        state.files.keys().try_for_each(|name| self.read(name, state).map(drop))
    }

    /// Adds a line to `metrics.jsonl`.
    pub(crate) fn log(&self, line: &HistoryRecord) -> Result<()> {
        let json = serde_json::to_string(line).map_err(|error| Error::bug(format!("a metric: {error}")))?;
        self.place.append_line(METRICS, &json)
    }

    /// Every line of `metrics.jsonl`. One that a kill cut short is left out.
    ///
    /// # Errors
    /// Io.
    pub fn lines(&self) -> Result<Vec<HistoryRecord>> {
        Ok(self.text_lines()?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Drops the lines of steps after `step` and of epochs after `epoch`: they are about to be made again.
    pub(crate) fn forget_after(&self, step: usize, epoch: usize) -> Result<()> {
        let is_kept = |line: &&str| match serde_json::from_str(line) {
            Ok(HistoryRecord::Step(record)) => record.step <= step,
            Ok(HistoryRecord::Epoch(record)) => record.epoch <= epoch,
            Err(_) => false,
        };
        let text: String = self.text_lines()?.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
        self.place.write(METRICS, text.as_bytes())
    }

    fn text_lines(&self) -> Result<String> {
        let bytes = self.place.read(METRICS, None)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn keep<M: Module>(&self, model: &M, name: String, state: &mut TrainingState) -> Result<()> {
        let hash = self.write_record(model, &name)?;
        state.files.insert(name, hash);
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<Hash128> {
        self.place.write(name, bytes)?;
        Ok(Hash128::of_block(bytes))
    }

    fn write_record<M: Module>(&self, model: &M, name: &str) -> Result<Hash128> {
        // burn applies the last update of running statistics only when they are next read, and a record is made without that;
        // `valid` reads them.
        drop(model.valid());
        let bytes = model.clone().into_record().into_bytes();
        self.write(name, &bytes.map_err(|error| Error::bug(format!("the student's record: {error}")))?)
    }

    /// The whole of a file, as it was written.
    fn read(&self, name: &str, state: &TrainingState) -> Result<Vec<u8>> {
        let path = self.file(name);
        let damaged = |message: String| with_way_out(Error::input(message).at(path.display()));
        let bytes = self.place.read(name, None).map_err(with_way_out)?;
        let bytes = bytes.ok_or_else(|| damaged("the checkpoint is damaged: this file of it is gone".into()))?;
        match (state.files.get(name), Hash128::of_block(&bytes)) {
            (Some(expected), found) if *expected == found => Ok(bytes),
            (Some(expected), found) => {
                Err(damaged(format!("the checkpoint is damaged: it hashes to {found}, expected {expected}")))
            }
            (None, _) => Err(damaged(format!("{LAST} does not know this file of the checkpoint"))),
        }
    }

    fn read_record<M: Module>(&self, model: M, name: &str, state: &TrainingState) -> Result<M> {
        let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(self.read(name, state)?));
        let record = record.map_err(|error| self.misfit(name, &error))?;
        load_record(model, record).map_err(|error| self.misfit(name, &error))
    }

    fn misfit(&self, name: &str, error: &impl std::fmt::Debug) -> Error {
        let message = format!("the checkpoint does not fit the student ({error:?})");
        with_way_out(Error::input(message).at(self.file(name).display()))
    }
}

fn pair(step: usize) -> [String; 2] {
    [format!("step-{step}.model{RECORD}"), format!("step-{step}.optimizer{RECORD}")]
}

/// The file of an epoch's student.
pub(crate) fn student_of(epoch: usize) -> String {
    format!("student-{epoch}{RECORD}")
}

fn best_of(epoch: usize) -> String {
    format!("best-{epoch}{RECORD}")
}

/// An error of damage, with what to do about it.
fn with_way_out(error: Error) -> Error {
    match error.kind {
        ErrorKind::Input if error.remedy.is_none() => {
            Error { message: format!("{}; {WAY_OUT}", error.message), ..error }.with_remedy(Remedy::StartAnew)
        }
        _ => error,
    }
}

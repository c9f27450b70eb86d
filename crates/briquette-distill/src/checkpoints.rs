//! Where training stands, on disk: what a run that was killed goes on from.
//!
//! Each checkpoint is a pair of files named by their step, and `last.json` names the pair that counts, with a hash of each file
//! and of itself. It is replaced in one step after both are on disk, so that a kill or a full disk leaves the older one whole;
//! what it does not name is removed then. What does not hash to what was written is not gone on from.

mod state;

use crate::history::HistoryRecord;
use briquette_core::{Error, ErrorKind, Hash128, Result};
use briquette_formats::{InputFile, draft, limits};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
pub use state::{Best, TrainingState};
use std::path::{Path, PathBuf};

/// The file that names the checkpoint that counts.
const LAST: &str = "last.json";
/// A line for each step and epoch.
const METRICS: &str = "metrics.jsonl";
/// What files of weights and moments end in.
const RECORD: &str = ".bpk";
/// What is done about a checkpoint that cannot be gone on from.
const WAY_OUT: &str = "start anew with --force";

/// A directory of checkpoints.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    directory: PathBuf,
}

impl Checkpoints {
    /// In this directory, which is made where it is missing.
    ///
    /// # Errors
    /// Io.
    pub fn at(directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = directory.into();
        let made = std::fs::create_dir_all(&directory);
        made.map_err(|source| Error::io("cannot create the directory", &directory, source))?;
        Ok(Self { directory })
    }

    /// Where they are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Where training stood, if it stood anywhere.
    ///
    /// # Errors
    /// Input where the file is damaged, which [`is_damage`](Self::is_damage) tells; Io.
    pub fn state(&self) -> Result<Option<TrainingState>> {
        let path = self.file(LAST);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = InputFile::open(&path)?.read_all(limits::MAX_JSON_BYTES).map_err(with_way_out)?;
        TrainingState::read(&bytes, &path).map(Some).map_err(with_way_out)
    }

    /// Whether an error means that there is no going on from a checkpoint: [`clear`](Self::clear) leads out of it.
    pub fn is_damage(error: &Error) -> bool {
        error.kind == ErrorKind::Input && error.message.contains(WAY_OUT)
    }

    /// Removes every checkpoint, so that training begins anew.
    ///
    /// # Errors
    /// Io.
    pub fn clear(&self) -> Result<()> {
        let removed = std::fs::remove_dir_all(&self.directory);
        removed.map_err(|source| Error::io("cannot remove", &self.directory, source))?;
        Self::at(&self.directory).map(drop)
    }

    /// Writes model and optimizer, then the state that names them, then removes the files that the state before named.
    pub(crate) fn save<M: Module>(
        &self,
        model: &M,
        optimizer: &ModuleOptimizer,
        state: &mut TrainingState,
    ) -> Result<()> {
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

    /// Writes a state, from which on the files that it names are the checkpoint, and removes all others. A file that cannot be
    /// removed costs room, nothing else.
    pub(crate) fn save_state(&self, state: &TrainingState) -> Result<()> {
        draft::replace_file(&self.file(LAST), &state.to_json()?)?;
        let names = std::fs::read_dir(&self.directory).into_iter().flatten();
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let is_over = |name: &String| name.ends_with(RECORD) && !state.files.contains_key(name);
        names.filter(is_over).for_each(|name| drop(std::fs::remove_file(self.file(&name))));
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
        let optimizer = optimizer.from_bytes(bytes).map_err(|error| self.misfit(&from_optimizer, &error))?;
        Ok((model, optimizer))
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
        let file = InputFile::open(&self.file(name))?;
        state.files.insert(name.to_string(), Hash128::of_block(&file.read_all(file.len())?));
        Ok(())
    }

    /// Compares every file that `state` names with its hash, for those that are not read by this.
    pub(crate) fn check_files(&self, state: &TrainingState) -> Result<()> {
        state.files.keys().try_for_each(|name| self.read(name, state).map(drop))
    }

    /// Adds a line to `metrics.jsonl`.
    pub(crate) fn log(&self, line: &HistoryRecord) -> Result<()> {
        let json = serde_json::to_string(line).map_err(|error| Error::bug(format!("a metric: {error}")))?;
        draft::append_line(&self.file(METRICS), &json)
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
        draft::replace_file(&self.file(METRICS), text.as_bytes())
    }

    fn text_lines(&self) -> Result<String> {
        let path = self.file(METRICS);
        if !path.exists() {
            return Ok(String::new());
        }
        let file = InputFile::open(&path)?;
        Ok(String::from_utf8_lossy(&file.read_all(file.len())?).into_owned())
    }

    fn keep<M: Module>(&self, model: &M, name: String, state: &mut TrainingState) -> Result<()> {
        let hash = self.write_record(model, &name)?;
        state.files.insert(name, hash);
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<Hash128> {
        draft::replace_file(&self.file(name), bytes)?;
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
        let file = InputFile::open(&path).map_err(with_way_out)?;
        let bytes = file.read_all(file.len()).map_err(with_way_out)?;
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
        model.try_load_record(record).map_err(|error| self.misfit(name, &error))
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
        ErrorKind::Input if !error.message.contains(WAY_OUT) => {
            Error { message: format!("{}; {WAY_OUT}", error.message), ..error }
        }
        _ => error,
    }
}

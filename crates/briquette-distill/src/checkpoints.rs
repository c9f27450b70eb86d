//! Checkpoints of a training on disk, from which a killed run resumes.
//!
//! Each checkpoint is a pair of files named by their step. `last.json` names the current pair, with a hash of
//! each file and of itself. It is replaced atomically after both files are on disk, so a kill or a full disk
//! leaves the previous checkpoint intact. Files that it does not name are then removed. A checkpoint with a
//! wrong hash is not resumed.
//!
//! Without a directory, only the best student and the history are stored, in memory.

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

/// The file that names the current checkpoint.
const LAST: &str = "last.json";
/// A file with one line for each step and epoch.
const METRICS: &str = "metrics.jsonl";
/// The extension of files with weights and optimizer state.
const RECORD: &str = ".bpk";
/// The subdirectory of burn's own checkpoints, of trainings on several devices.
pub(crate) const BURN: &str = "burn";
/// The remedy for a checkpoint that cannot be resumed.
const WAY_OUT: &str = "clear the checkpoints to start anew";

/// Checkpoints in a directory or in memory.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    place: ResumeFile,
}

impl Checkpoints {
    /// Opens checkpoints in a directory, and creates the directory if it is missing.
    ///
    /// # Errors
    /// Io: the directory cannot be created.
    pub fn at(directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = directory.into();
        resume_file::made(&directory)?;
        Ok(Self { place: ResumeFile::Directory(directory) })
    }

    /// Creates checkpoints in memory.
    ///
    /// The history and the best student are stored while training runs; it cannot be resumed.
    pub fn in_memory() -> Self {
        Self { place: ResumeFile::Memory(Arc::default()) }
    }

    /// Returns the directory, if the checkpoints are on disk.
    pub fn directory(&self) -> Option<&Path> {
        self.place.directory()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// Reads the state of the last checkpoint, if there is one.
    ///
    /// # Errors
    /// - Input: the file is damaged; [`is_damage`](Self::is_damage) returns true for this error.
    /// - Io: the file cannot be read.
    pub fn state(&self) -> Result<Option<TrainingState>> {
        let bytes = self.place.read(LAST, Some(limits::MAX_JSON_BYTES)).map_err(with_way_out)?;
        bytes.map(|bytes| TrainingState::read(&bytes, &self.file(LAST))).transpose().map_err(with_way_out)
    }

    /// Returns whether an error means that a checkpoint cannot be resumed; [`clear`](Self::clear) removes it.
    pub fn is_damage(error: &Error) -> bool {
        error.kind == ErrorKind::Input && error.remedy == Some(Remedy::StartAnew)
    }

    /// Removes all checkpoints, so that training starts anew. Other files of the directory stay.
    ///
    /// # Errors
    /// Io: a file cannot be removed.
    pub fn clear(&self) -> Result<()> {
        self.place.clear(&|name| [LAST, METRICS].contains(&name) || is_record(name), BURN)
    }

    /// Writes the model and optimizer, then the state that names them, and removes the files of the previous
    /// state.
    ///
    /// In memory, only the best student is stored.
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

    /// Writes a state, which makes its files the current checkpoint, and removes the files of other checkpoints.
    pub(crate) fn save_state(&self, state: &TrainingState) -> Result<()> {
        if self.directory().is_some() {
            self.place.write(LAST, &state.to_json()?)?;
        }
        self.place.remove(|name| is_record(name) && !state.files.contains_key(name));
        Ok(())
    }

    /// Writes the student of an epoch. It becomes part of the checkpoint once `state` is written.
    pub(crate) fn save_student<M: Module>(&self, student: &M, epoch: usize, state: &mut TrainingState) -> Result<()> {
        self.keep(student, student_of(epoch), state)
    }

    /// Loads the student of an epoch.
    pub(crate) fn load_student<M: Module>(&self, student: M, epoch: usize, state: &TrainingState) -> Result<M> {
        self.read_record(student, &student_of(epoch), state)
    }

    /// Restores the model and optimizer of `state`.
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
        // burn ignores the parts of another optimizer's record that it cannot use, and would continue without
        // moments. Only the record's debug form shows its tensors and numbers.
        let expected = format!("{record:?}");
        let optimizer = optimizer.load_record(record);
        match format!("{:?}", optimizer.to_record()) == expected {
            true => Ok((model, optimizer)),
            false => {
                let message = "the checkpoint belongs to another optimizer; use that optimizer";
                Err(with_way_out(Error::input(message).at(self.file(&from_optimizer).display())))
            }
        }
    }

    /// Writes the best model, from this epoch. It becomes part of the checkpoint once `state` is written.
    pub(crate) fn save_best<M: Module>(&self, model: &M, epoch: usize, state: &mut TrainingState) -> Result<()> {
        self.keep(model, best_of(epoch), state)
    }

    /// Loads the best model, from this epoch.
    pub(crate) fn load_best<M: Module>(&self, model: M, epoch: usize, state: &TrainingState) -> Result<M> {
        self.read_record(model, &best_of(epoch), state)
    }

    /// Adds a file that burn wrote to `state`, by its path in the directory. It becomes part of the checkpoint
    /// once `state` is written.
    pub(crate) fn adopt(&self, name: &str, state: &mut TrainingState) -> Result<()> {
        let missing = || Error::bug("burn wrote no such file").at(self.file(name).display());
        let bytes = self.place.read(name, None)?.ok_or_else(missing)?;
        state.files.insert(name.to_string(), Hash128::of_block(&bytes));
        Ok(())
    }

    /// Checks the hash of every file in `state`, for files that burn reads by itself.
    pub(crate) fn check_files(&self, state: &TrainingState) -> Result<()> {
        state.files.keys().try_for_each(|name| self.read(name, state).map(drop))
    }

    /// Appends a line to `metrics.jsonl`.
    pub(crate) fn log(&self, line: &HistoryRecord) -> Result<()> {
        let json = serde_json::to_string(line).map_err(|error| Error::bug(format!("a metric: {error}")))?;
        self.place.append_line(METRICS, &json)
    }

    /// Returns every line of `metrics.jsonl`, without a last line that a kill truncated.
    ///
    /// # Errors
    /// Io: the file cannot be read.
    pub fn lines(&self) -> Result<Vec<HistoryRecord>> {
        Ok(self.text_lines()?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Drops the lines of steps after `step` and of epochs after `epoch`, because they will be repeated.
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
        // burn applies the last update of running statistics only when they are next read, and making a record
        // does not read them; `valid` does.
        drop(model.valid());
        let bytes = model.clone().into_record().into_bytes();
        self.write(name, &bytes.map_err(|error| Error::bug(format!("the student's record: {error}")))?)
    }

    /// Reads a file and checks its hash.
    fn read(&self, name: &str, state: &TrainingState) -> Result<Vec<u8>> {
        let path = self.file(name);
        let damaged = |message: String| with_way_out(Error::input(message).at(path.display()));
        let bytes = self.place.read(name, None).map_err(with_way_out)?;
        let bytes = bytes.ok_or_else(|| damaged("the checkpoint is damaged: this file is missing".into()))?;
        match (state.files.get(name), Hash128::of_block(&bytes)) {
            (Some(expected), found) if *expected == found => Ok(bytes),
            (Some(expected), found) => {
                Err(damaged(format!("the checkpoint is damaged: it hashes to {found}, expected {expected}")))
            }
            (None, _) => Err(damaged(format!("{LAST} does not list this file"))),
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

/// Returns the file name of an epoch's student.
pub(crate) fn student_of(epoch: usize) -> String {
    format!("student-{epoch}{RECORD}")
}

fn best_of(epoch: usize) -> String {
    format!("best-{epoch}{RECORD}")
}

/// Returns whether a file has a name of [`pair`], [`student_of`] or [`best_of`].
fn is_record(name: &str) -> bool {
    let Some((kind, rest)) = name.strip_suffix(RECORD).and_then(|stem| stem.split_once('-')) else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match kind {
        "step" => matches!(rest.split_once('.'), Some((step, "model" | "optimizer")) if is_number(step)),
        "student" | "best" => is_number(rest),
        _ => false,
    }
}

/// Adds the remedy to an error about a damaged checkpoint.
fn with_way_out(error: Error) -> Error {
    match error.kind {
        ErrorKind::Input if error.remedy.is_none() => {
            Error { message: format!("{}; {WAY_OUT}", error.message), ..error }.with_remedy(Remedy::StartAnew)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_checkpoints_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path()).unwrap();
        let ours = [&pair(7)[..], &[student_of(3), best_of(2)]].concat();
        let others = ["model.bpk", "best-model.bpk", "step-7.bpk", "student-1.bpk.old", "teacher.safetensors"];
        let names = || {
            let entries = std::fs::read_dir(dir.path()).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect::<std::collections::BTreeSet<_>>()
        };
        let write = |name: &str| std::fs::write(dir.path().join(name), "x").unwrap();
        ours.iter().map(String::as_str).chain(others).for_each(write);
        checkpoints.save_state(&TrainingState::at_start(1, None)).unwrap();
        assert_eq!(names(), others.into_iter().chain([LAST]).map(String::from).collect());
        ours.iter().map(String::as_str).chain([METRICS]).for_each(write);
        std::fs::create_dir_all(dir.path().join(BURN).join("checkpoint")).unwrap();
        checkpoints.clear().unwrap();
        assert_eq!(names(), others.map(String::from).into());
    }
}

//! Where training stands, on disk: what a run that was killed goes on from.
//!
//! Each checkpoint is a pair of files named by their step, and `last.json` names the pair that counts. It is replaced in one
//! step after both are on disk, so that a kill or a full disk leaves the older one whole.

use crate::history::Line;
use briquette_core::{Error, Result};
use briquette_formats::{InputFile, draft, json, limits};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The file that names the checkpoint that counts.
const LAST: &str = "last.json";
/// The best student so far.
const BEST: &str = "best.bpk";
/// A line for each step and epoch.
const METRICS: &str = "metrics.jsonl";

/// The best student so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The epoch it comes from, from 1.
    pub epoch: usize,
    /// Its metric.
    pub value: f64,
}

/// Where training stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The epoch under way, from 0.
    pub epoch: usize,
    /// Steps of it that are done.
    pub step_of_epoch: usize,
    /// Steps in all.
    pub step: usize,
    /// Items in memory at once.
    pub at_once: usize,
    /// The loss scaling, as JSON.
    pub scaler: Option<briquette_nn::LossScaler>,
    /// The best student so far.
    pub best: Option<Best>,
    /// Whether training is over.
    pub is_done: bool,
}

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

    fn pair(&self, step: usize) -> [PathBuf; 2] {
        [self.file(&format!("step-{step}.model.bpk")), self.file(&format!("step-{step}.optimizer.bpk"))]
    }

    /// Where training stood, if it stood anywhere.
    ///
    /// # Errors
    /// Input where the file is damaged; Io.
    pub fn state(&self) -> Result<Option<State>> {
        let path = self.file(LAST);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = InputFile::open(&path)?.read_all(limits::MAX_JSON_BYTES)?;
        json::parse(&bytes, "the checkpoint", &path).map(Some)
    }

    /// Keeps model and optimizer, then lets them count, then removes the pair before.
    pub(crate) fn save<M: Module>(&self, model: &M, optimizer: &ModuleOptimizer, state: &State) -> Result<()> {
        let before = self.state().ok().flatten().map(|state| state.step);
        let [to_model, to_optimizer] = self.pair(state.step);
        write_record(model, &to_model)?;
        let bytes = optimizer.into_bytes().map_err(|error| Error::bug(format!("the optimizer's state: {error}")))?;
        draft::replace_file(&to_optimizer, &bytes)?;
        self.save_state(state)?;
        // A file that stays behind costs room, nothing else.
        if let Some(before) = before.filter(|before| *before != state.step) {
            self.pair(before).iter().for_each(|path| drop(std::fs::remove_file(path)));
        }
        Ok(())
    }

    /// Lets a state count whose model and optimizer others keep.
    pub(crate) fn save_state(&self, state: &State) -> Result<()> {
        let json = serde_json::to_vec_pretty(state).map_err(|error| Error::bug(format!("the checkpoint: {error}")))?;
        draft::replace_file(&self.file(LAST), &json)
    }

    /// Keeps the student of an epoch.
    pub(crate) fn save_student<M: Module>(&self, student: &M, epoch: usize) -> Result<()> {
        write_record(student, &self.file(&format!("student-{epoch}.bpk")))
    }

    /// Drops the students of epochs up to `last` that are not kept. A file that stays behind costs room, nothing else.
    pub(crate) fn forget_students(&self, last: usize, is_kept: impl Fn(usize) -> bool) {
        let gone = (1..=last).filter(|&epoch| !is_kept(epoch));
        gone.for_each(|epoch| drop(std::fs::remove_file(self.file(&format!("student-{epoch}.bpk")))));
    }

    /// The student of an epoch.
    pub(crate) fn load_student<M: Module>(&self, student: M, epoch: usize) -> Result<M> {
        read_record(student, &self.file(&format!("student-{epoch}.bpk")))
    }

    /// Puts model and optimizer back where they were at `state`.
    pub(crate) fn load<M: Module>(
        &self,
        model: M,
        optimizer: ModuleOptimizer,
        state: &State,
    ) -> Result<(M, ModuleOptimizer)> {
        let [from_model, from_optimizer] = self.pair(state.step);
        let model = read_record(model, &from_model)?;
        let bytes = Bytes::from_bytes_vec(read_whole(&from_optimizer)?);
        let optimizer = optimizer.from_bytes(bytes).map_err(|error| damaged(&from_optimizer, &error))?;
        Ok((model, optimizer))
    }

    /// Keeps the best model.
    pub(crate) fn save_best<M: Module>(&self, model: &M) -> Result<()> {
        write_record(model, &self.file(BEST))
    }

    /// The best model.
    pub(crate) fn load_best<M: Module>(&self, model: M) -> Result<M> {
        read_record(model, &self.file(BEST))
    }

    /// Adds a line to `metrics.jsonl`.
    pub(crate) fn log(&self, line: &Line) -> Result<()> {
        let json = serde_json::to_string(line).map_err(|error| Error::bug(format!("a metric: {error}")))?;
        draft::append_line(&self.file(METRICS), &json)
    }

    /// Every line of `metrics.jsonl`. One that a kill cut short is left out.
    ///
    /// # Errors
    /// Io.
    pub fn lines(&self) -> Result<Vec<Line>> {
        let path = self.file(METRICS);
        if !path.exists() {
            return Ok(Vec::new());
        }
        let bytes = read_whole(&path)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Drops the lines of steps after `step`: they are about to be made again.
    pub(crate) fn forget_after(&self, step: usize) -> Result<()> {
        let kept = self.lines()?.into_iter().filter(|line| line.step() <= step);
        let mut text = String::new();
        for line in kept {
            text += &serde_json::to_string(&line).map_err(|error| Error::bug(format!("a metric: {error}")))?;
            text.push('\n');
        }
        draft::replace_file(&self.file(METRICS), text.as_bytes())
    }
}

fn write_record<M: Module>(model: &M, path: &Path) -> Result<()> {
    // burn keeps the last update of running statistics aside, where a record misses it; this puts it in place.
    drop(model.valid());
    let bytes = model.clone().into_record().into_bytes();
    draft::replace_file(path, &bytes.map_err(|error| Error::bug(format!("the student's record: {error}")))?)
}

fn read_record<M: Module>(model: M, path: &Path) -> Result<M> {
    let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(read_whole(path)?));
    let record = record.map_err(|error| damaged(path, &error))?;
    model.try_load_record(record).map_err(|error| damaged(path, &error))
}

fn read_whole(path: &Path) -> Result<Vec<u8>> {
    let file = InputFile::open(path)?;
    file.read_all(file.len())
}

fn damaged(path: &Path, error: &impl std::fmt::Debug) -> Error {
    let message = format!("the checkpoint does not fit the student ({error:?}); start anew with --force");
    Error::input(message).at(path.display())
}

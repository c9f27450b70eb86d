//! The journal: one JSON line for each finished job, on disk before the next begins.
//!
//! It lies in the deepest directory that holds every output: `<jobs file>.journal.jsonl`, and for a shard
//! `<jobs file>.journal.0-of-4.jsonl`, so that shards at work never write one file. A line is believed only as far as
//! the files it names still hash to what it says; so all journals of a jobs file may be read, whoever wrote them.

use super::beside::Beside;
use crate::contents::InputHashes;
use briquette_core::{Error, Result};
use briquette_formats::{InputFile, draft, limits};
use briquette_report::JobStatus;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// One finished job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JournalLine {
    /// Its name.
    pub(super) job: String,
    /// What became of it.
    pub(super) status: JobStatus,
    /// Its output, relative to the journal; none of a job whose recipe does not say.
    pub(super) output: Option<PathBuf>,
    /// Hashes of what it read, by key.
    #[serde(default)]
    pub(super) inputs: InputHashes,
    /// Hash of what it was asked.
    pub(super) recipe: String,
    /// What it made.
    pub(super) made: Option<JobOutput>,
    /// Seconds it took.
    pub(super) seconds: f64,
    /// What went wrong.
    pub(super) error: Option<String>,
}

/// What a job made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JobOutput {
    /// SHA-256 of its `SHA256SUMS`.
    pub(super) sums: String,
    /// SHA-256 of its `report.json`.
    pub(super) report: String,
    /// Bytes of weight files before.
    pub(super) before_bytes: u64,
    /// Bytes of weight files after.
    pub(super) after_bytes: u64,
    /// What an evaluation found; none of what is no number.
    #[serde(default)]
    pub(super) metrics: BTreeMap<String, Option<f64>>,
}

/// The journal of one shard, and what the journals of all shards knew at the start.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) path: PathBuf,
    directory: PathBuf,
    /// What was done at each output, oldest first.
    before: BTreeMap<PathBuf, Vec<JournalLine>>,
}

impl Journal {
    /// Starts a journal. To resume, keeps the lines that are whole and reads those of other shards; else keeps the last
    /// of what was done at each output, so that a later run can still go on from there.
    ///
    /// # Errors
    /// Io where the journal cannot be written.
    pub(super) fn start(beside: &Beside, resume: bool) -> Result<Self> {
        let (path, directory) = (beside.journal.clone(), beside.directory().to_path_buf());
        let own = if resume { lines_of(&path) } else { last_done(lines_of(&path)) };
        let text = own.iter().map(|line| Ok(to_json(line)? + "\n")).collect::<Result<String>>()?;
        draft::replace_file(&path, text.as_bytes())?;
        let mut before: BTreeMap<PathBuf, Vec<JournalLine>> = BTreeMap::new();
        let lines = if resume { lines_of_all(&directory, &beside.journals) } else { Vec::new() };
        for line in lines.into_iter().filter(|line| line.status == JobStatus::Done) {
            let Some(output) = line.output.clone() else { continue };
            before.entry(output).or_default().push(line);
        }
        Ok(Self { path, directory, before })
    }

    /// How many outputs that an earlier run of these jobs finished are still there.
    pub(super) fn n_finished(beside: &Beside) -> usize {
        let lines = lines_of(&beside.journal).into_iter();
        let done = lines.filter(|line| line.status == JobStatus::Done).filter_map(|line| line.output);
        let done: BTreeSet<PathBuf> = done.map(|output| beside.directory().join(output)).collect();
        done.iter().filter(|output| std::fs::symlink_metadata(output).is_ok()).count()
    }

    /// Adds a line, which is on disk when this returns.
    ///
    /// # Errors
    /// Io.
    pub(super) fn append(&self, line: &JournalLine) -> Result<()> {
        draft::append_line(&self.path, &to_json(line)?)
    }

    /// An output as lines name it: relative, so that a directory of outputs may be moved as a whole.
    pub(super) fn name_of(&self, output: &Path) -> Result<PathBuf> {
        let output = briquette_recipe::paths::one_spelling(output)?;
        Ok(output.strip_prefix(&self.directory).map(Path::to_path_buf).unwrap_or(output))
    }

    /// What was done at this output before, oldest first.
    pub(super) fn done_at(&self, output: &Path) -> &[JournalLine] {
        self.before.get(output).map_or(&[], Vec::as_slice)
    }
}

fn to_json(line: &JournalLine) -> Result<String> {
    serde_json::to_string(line).map_err(|error| Error::bug(format!("the journal: {error}")))
}

/// The last line of each output that is done, in their order.
fn last_done(lines: Vec<JournalLine>) -> Vec<JournalLine> {
    let mut seen = BTreeSet::new();
    let is_last = |line: &JournalLine| line.status == JobStatus::Done && seen.insert(line.output.clone());
    let mut kept: Vec<JournalLine> = lines.into_iter().rev().filter(is_last).collect();
    kept.reverse();
    kept
}

/// The lines of every journal of a jobs file.
fn lines_of_all(directory: &Path, prefix: &str) -> Vec<JournalLine> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    let is_journal = |name: &String| name.starts_with(prefix) && name.ends_with("jsonl");
    let mut names: Vec<String> = entries.filter_map(|name| name.into_string().ok()).filter(is_journal).collect();
    names.sort();
    names.iter().flat_map(|name| lines_of(&directory.join(name))).collect()
}

/// The lines that are whole. A line that is torn or damaged says nothing, and its job is done again.
fn lines_of(path: &Path) -> Vec<JournalLine> {
    let bytes = InputFile::open(path).and_then(|file| file.read_all(limits::MAX_JSON_BYTES)).unwrap_or_default();
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Shard;
    use briquette_core::Hash128;

    fn line(job: &str) -> JournalLine {
        JournalLine {
            job: job.into(),
            status: JobStatus::Done,
            output: Some(job.into()),
            inputs: [("model.path".to_string(), Hash128(7))].into(),
            recipe: "r".into(),
            made: Some(JobOutput {
                sums: "s".into(),
                report: "t".into(),
                before_bytes: 2,
                after_bytes: 1,
                metrics: [("cosine".to_string(), Some(0.5)), ("kl".into(), None)].into(),
            }),
            seconds: 0.5,
            error: None,
        }
    }

    fn start(directory: &Path, shard: Shard, resume: bool) -> Journal {
        Journal::start(&Beside::of("sweep.toml".as_ref(), directory, shard).unwrap(), resume).unwrap()
    }

    fn n_before(journal: &Journal) -> usize {
        journal.before.values().map(Vec::len).sum()
    }

    #[test]
    fn a_torn_line_is_dropped_and_the_next_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let journal = start(dir.path(), Shard::default(), false);
        journal.append(&line("a")).unwrap();
        journal.append(&line("b")).unwrap();
        let text = std::fs::read(&journal.path).unwrap();
        for cut in 0..text.len() {
            std::fs::write(&journal.path, &text[..cut]).unwrap();
            let resumed = start(dir.path(), Shard::default(), true);
            resumed.append(&line("c")).unwrap();
            let names: Vec<String> = lines_of(&journal.path).into_iter().map(|line| line.job).collect();
            assert_eq!(names.last().map(String::as_str), Some("c"), "cut at {cut}");
            assert!(names.len() <= 3 && n_before(&resumed) == names.len() - 1);
        }
    }

    #[test]
    fn a_run_that_does_not_resume_keeps_what_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let start = |resume| start(dir.path(), Shard::default(), resume);
        let journal = start(false);
        for name in ["a", "b", "a"] {
            journal.append(&line(name)).unwrap();
        }
        journal.append(&JournalLine { status: JobStatus::Failed, made: None, ..line("c") }).unwrap();
        let again = start(false);
        assert!(again.before.is_empty(), "it is not what this run goes by");
        let names: Vec<String> = lines_of(&journal.path).into_iter().map(|line| line.job).collect();
        assert_eq!(names, ["b", "a"], "the last of each that is done");
        assert_eq!(start(true).done_at(Path::new("a")).len(), 1);
    }

    #[test]
    fn shards_write_files_of_their_own_and_read_all() {
        let dir = tempfile::tempdir().unwrap();
        let shards = [0, 1].map(|index| start(dir.path(), Shard::new(index, 2).unwrap(), false));
        assert!(shards[0].path.ends_with("sweep.journal.0-of-2.jsonl"), "{}", shards[0].path.display());
        shards[0].append(&line("a")).unwrap();
        shards[1].append(&line("b")).unwrap();
        let whole = start(dir.path(), Shard::default(), true);
        assert_eq!(n_before(&whole), 2);
        assert_eq!(whole.done_at(Path::new("b")).len(), 1);
    }
}

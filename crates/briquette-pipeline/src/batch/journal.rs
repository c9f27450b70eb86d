//! The journal: one JSON line for each finished job, on disk before the next begins.
//!
//! It lies in the deepest directory that holds every output: `<jobs file>.journal.jsonl`, and for a shard
//! `<jobs file>.journal.0-of-4.jsonl`, so that shards at work never write one file. A line is believed only as far as
//! the files it names still hash to what it says; so all journals of a jobs file may be read, whoever wrote them.

use super::{JobStatus, Jobs, Shard};
use briquette_core::{Error, Hash128, Result};
use briquette_formats::{InputFile, draft, limits};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One finished job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    /// Its name.
    pub(super) job: String,
    /// What became of it.
    pub(super) status: JobStatus,
    /// Its output, relative to the journal; none of a job whose recipe does not say.
    pub(super) output: Option<PathBuf>,
    /// Hash of what it read.
    pub(super) input: Option<Hash128>,
    /// Hash of what it was asked.
    pub(super) recipe: String,
    /// What it made.
    pub(super) made: Option<Made>,
    /// Seconds it took.
    pub(super) seconds: f64,
    /// What went wrong.
    pub(super) error: Option<String>,
}

/// What a job made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Made {
    /// SHA-256 of its `SHA256SUMS`.
    pub(super) sums: String,
    /// SHA-256 of its `report.json`.
    pub(super) report: String,
    /// Bytes of weight files before.
    pub(super) before_bytes: u64,
    /// Bytes of weight files after.
    pub(super) after_bytes: u64,
}

/// The journal of one shard, and what the journals of all shards knew at the start.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) path: PathBuf,
    directory: PathBuf,
    before: Vec<Line>,
}

impl Journal {
    /// Starts a journal. To resume, keeps the lines that are whole and reads those of other shards; else keeps the last
    /// of what was done at each output, so that a later run can still go on from there.
    ///
    /// # Errors
    /// Config, where the jobs file has no name; Io where the journal cannot be written.
    pub(super) fn start(jobs: &Jobs, shard: Shard, resume: bool) -> Result<Self> {
        let directory = jobs.directory.clone();
        let stem = jobs.path.file_stem().ok_or_else(|| Error::config("is no file").at(jobs.path.display()))?;
        let prefix = format!("{}.journal.", stem.to_string_lossy());
        let shard = if shard.is_whole() { String::new() } else { format!("{shard}.") };
        let path = directory.join(format!("{prefix}{shard}jsonl"));
        std::fs::create_dir_all(&directory)
            .map_err(|source| Error::io("cannot create the directory", &directory, source))?;
        let own = if resume { lines_of(&path) } else { last_done(lines_of(&path)) };
        let text = own.iter().map(|line| Ok(to_json(line)? + "\n")).collect::<Result<String>>()?;
        draft::replace_file(&path, text.as_bytes())?;
        let before = if resume { lines_of_all(&directory, &prefix) } else { Vec::new() };
        Ok(Self { path, directory, before })
    }

    /// Adds a line, which is on disk when this returns.
    ///
    /// # Errors
    /// Io.
    pub(super) fn append(&self, line: &Line) -> Result<()> {
        draft::append_line(&self.path, &to_json(line)?)
    }

    /// An output as lines name it: relative, so that a directory of outputs may be moved as a whole.
    pub(super) fn name_of(&self, output: &Path) -> Result<PathBuf> {
        let output = super::distinct::resolve(output)?;
        Ok(output.strip_prefix(&self.directory).map(Path::to_path_buf).unwrap_or(output))
    }

    /// What was done at this output before, oldest first.
    pub(super) fn done_at(&self, output: &Path) -> impl Iterator<Item = &Line> {
        self.before.iter().filter(move |line| line.status == JobStatus::Done && line.output.as_deref() == Some(output))
    }
}

fn to_json(line: &Line) -> Result<String> {
    serde_json::to_string(line).map_err(|error| Error::bug(format!("the journal: {error}")))
}

/// The last line of each output that is done, in their order.
fn last_done(lines: Vec<Line>) -> Vec<Line> {
    let mut seen = BTreeSet::new();
    let is_last = |line: &Line| line.status == JobStatus::Done && seen.insert(line.output.clone());
    let mut kept: Vec<Line> = lines.into_iter().rev().filter(is_last).collect();
    kept.reverse();
    kept
}

/// The lines of every journal of a jobs file.
fn lines_of_all(directory: &Path, prefix: &str) -> Vec<Line> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    let is_journal = |name: &String| name.starts_with(prefix) && name.ends_with("jsonl");
    let mut names: Vec<String> = entries.filter_map(|name| name.into_string().ok()).filter(is_journal).collect();
    names.sort();
    names.iter().flat_map(|name| lines_of(&directory.join(name))).collect()
}

/// The lines that are whole. A line that is torn or damaged says nothing, and its job is done again.
fn lines_of(path: &Path) -> Vec<Line> {
    let bytes = InputFile::open(path).and_then(|file| file.read_all(limits::MAX_JSON_BYTES)).unwrap_or_default();
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(job: &str) -> Line {
        Line {
            job: job.into(),
            status: JobStatus::Done,
            output: Some(job.into()),
            input: Some(Hash128(7)),
            recipe: "r".into(),
            made: Some(Made { sums: "s".into(), report: "t".into(), before_bytes: 2, after_bytes: 1 }),
            seconds: 0.5,
            error: None,
        }
    }

    fn jobs(directory: &Path) -> Jobs {
        Jobs { path: "sweep.toml".into(), jobs: Vec::new(), directory: directory.to_path_buf() }
    }

    #[test]
    fn a_torn_line_is_dropped_and_the_next_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::start(&jobs(dir.path()), Shard::default(), false).unwrap();
        journal.append(&line("a")).unwrap();
        journal.append(&line("b")).unwrap();
        let text = std::fs::read(&journal.path).unwrap();
        for cut in 0..text.len() {
            std::fs::write(&journal.path, &text[..cut]).unwrap();
            let resumed = Journal::start(&jobs(dir.path()), Shard::default(), true).unwrap();
            resumed.append(&line("c")).unwrap();
            let names: Vec<String> = lines_of(&journal.path).into_iter().map(|line| line.job).collect();
            assert_eq!(names.last().map(String::as_str), Some("c"), "cut at {cut}");
            assert!(names.len() <= 3 && resumed.before.len() == names.len() - 1);
        }
    }

    #[test]
    fn a_run_that_does_not_resume_keeps_what_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let start = |resume| Journal::start(&jobs(dir.path()), Shard::default(), resume).unwrap();
        let journal = start(false);
        for name in ["a", "b", "a"] {
            journal.append(&line(name)).unwrap();
        }
        journal.append(&Line { status: JobStatus::Failed, made: None, ..line("c") }).unwrap();
        let again = start(false);
        assert!(again.before.is_empty(), "it is not what this run goes by");
        let names: Vec<String> = lines_of(&journal.path).into_iter().map(|line| line.job).collect();
        assert_eq!(names, ["b", "a"], "the last of each that is done");
        assert_eq!(start(true).done_at(Path::new("a")).count(), 1);
    }

    #[test]
    fn shards_write_files_of_their_own_and_read_all() {
        let dir = tempfile::tempdir().unwrap();
        let shards =
            [0, 1].map(|index| Journal::start(&jobs(dir.path()), Shard::new(index, 2).unwrap(), false).unwrap());
        assert!(shards[0].path.ends_with("sweep.journal.0-of-2.jsonl"), "{}", shards[0].path.display());
        shards[0].append(&line("a")).unwrap();
        shards[1].append(&line("b")).unwrap();
        let whole = Journal::start(&jobs(dir.path()), Shard::default(), true).unwrap();
        assert_eq!(whole.before.len(), 2);
        assert_eq!(whole.done_at(Path::new("b")).count(), 1);
    }
}

//! The journal: one JSON line per finished job, written to disk before the next job begins.
//!
//! A job whose output does not exist also has a line when it begins. If the process is killed after the output
//! appears and before the job's line is written, a resumed run knows from that line that it may replace the
//! output.
//!
//! The journal is in the deepest directory that contains all outputs: `<jobs file>.journal.jsonl`, and for a
//! shard `<jobs file>.journal.0-of-4.jsonl`, so that concurrent shards never write the same file. A line counts
//! only if the files that it names still have the recorded hashes, so the journals of all shards can be read.

use super::files::BatchFiles;
use crate::contents::InputHashes;
use crate::report::JobStatus;
use briquette_core::{Error, Result, shown_path};
use briquette_formats::{InputFile, draft, limits, presence};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The line of a finished job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JournalLine {
    /// The name of the job.
    pub(super) job: String,
    /// The status of the job.
    pub(super) status: JobStatus,
    /// The output, relative to the journal; `None` if the recipe does not set one.
    pub(super) output: Option<PathBuf>,
    /// The hashes of the inputs, by key.
    #[serde(default)]
    pub(super) inputs: InputHashes,
    /// The hash of the recipe.
    pub(super) recipe: String,
    /// The output's hashes and sizes.
    pub(super) made: Option<JobOutput>,
    /// The duration in seconds.
    pub(super) seconds: f64,
    /// The error message.
    pub(super) error: Option<String>,
}

/// The line of a job that began when its output did not exist.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct BegunJob {
    /// The output, relative to the journal.
    pub(super) begun: PathBuf,
    /// The hash of the recipe.
    pub(super) recipe: String,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum JournalEntry {
    Finished(Box<JournalLine>),
    Begun(BegunJob),
}

/// The output of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JobOutput {
    /// SHA-256 of its `SHA256SUMS`.
    pub(super) sums: String,
    /// SHA-256 of its `report.json`.
    pub(super) report: String,
    /// The size of the original weight files in bytes.
    pub(super) before_bytes: u64,
    /// The size of the output's weight files in bytes.
    pub(super) after_bytes: u64,
    /// The metrics of the evaluation; `None` for values that are not finite.
    #[serde(default)]
    pub(super) metrics: BTreeMap<String, Option<f64>>,
    /// Why the output left bytes of its budget unused, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

/// The journal of one shard, and the content of all shards' journals at the start.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) path: PathBuf,
    directory: PathBuf,
    /// The finished jobs at each output, oldest first.
    before: BTreeMap<PathBuf, Vec<JournalLine>>,
    /// The recipe hashes of jobs that began and did not finish, by output.
    unfinished: BTreeMap<PathBuf, String>,
}

impl Journal {
    /// Starts a journal.
    ///
    /// To resume, it keeps the complete lines and reads those of other shards. Otherwise it keeps the last line
    /// of each output, so that a later run can still resume.
    ///
    /// # Errors
    /// - Refused: another file has the name of the journal.
    /// - Io: the journal cannot be read or written.
    pub(super) fn start(beside: &BatchFiles, resume: bool) -> Result<Self> {
        let (path, directory) = (beside.journal.clone(), beside.directory().to_path_buf());
        let own = if resume { entries_of(&path)? } else { worth_keeping(entries_of(&path)?) };
        let text = own.iter().map(|entry| Ok(to_json(entry)? + "\n")).collect::<Result<String>>()?;
        draft::replace_file(&path, text.as_bytes())?;
        let entries = if resume { entries_of_all(&directory, &beside.journals)? } else { Vec::new() };
        let unfinished = unfinished(&entries);
        let mut before: BTreeMap<PathBuf, Vec<JournalLine>> = BTreeMap::new();
        for line in finished(entries).filter(|line| line.status == JobStatus::Done) {
            let Some(output) = line.output.clone() else { continue };
            before.entry(output).or_default().push(line);
        }
        Ok(Self { path, directory, before, unfinished })
    }

    /// Writes the line of a job that begins to disk.
    ///
    /// # Errors
    /// Io: the journal cannot be written.
    pub(super) fn begin(&self, job: BegunJob) -> Result<()> {
        draft::append_line(&self.path, &to_json(&JournalEntry::Begun(job))?)
    }

    /// Returns whether an earlier run began a job with this recipe and output and did not finish it.
    pub(super) fn is_unfinished(&self, job: &BegunJob) -> bool {
        self.unfinished.get(&job.begun) == Some(&job.recipe)
    }

    /// Returns how many outputs of an earlier run of these jobs still exist.
    ///
    /// # Errors
    /// Io: the journal or an output cannot be read.
    pub(super) fn n_finished(beside: &BatchFiles) -> Result<usize> {
        let lines = finished(entries_of(&beside.journal)?);
        let done = lines.filter(|line| line.status == JobStatus::Done).filter_map(|line| line.output);
        let done: BTreeSet<PathBuf> = done.map(|output| beside.directory().join(output)).collect();
        let found: Vec<bool> = done.iter().map(|output| presence::has_entry(output)).collect::<Result<_>>()?;
        Ok(found.into_iter().filter(|is_there| *is_there).count())
    }

    /// Writes the line of a finished job to disk.
    ///
    /// # Errors
    /// Io: the journal cannot be written.
    pub(super) fn append(&self, line: &JournalLine) -> Result<()> {
        draft::append_line(&self.path, &to_json(line)?)
    }

    /// Returns the name of an output in lines: relative, so that the directory of all outputs can be moved.
    pub(super) fn name_of(&self, output: &Path) -> Result<PathBuf> {
        let output = briquette_recipe::paths::one_spelling(output)?;
        Ok(output.strip_prefix(&self.directory).map(Path::to_path_buf).unwrap_or(output))
    }

    /// Returns the earlier finished jobs at this output, oldest first.
    pub(super) fn done_at(&self, output: &Path) -> &[JournalLine] {
        self.before.get(output).map_or(&[], Vec::as_slice)
    }
}

fn to_json<T: Serialize>(line: &T) -> Result<String> {
    serde_json::to_string(line).map_err(|error| Error::bug(format!("the journal: {error}")))
}

/// Returns the last line of each finished output in order, then the unfinished jobs.
fn worth_keeping(entries: Vec<JournalEntry>) -> Vec<JournalEntry> {
    let mut seen = BTreeSet::new();
    let is_last = |line: &JournalLine| line.status == JobStatus::Done && seen.insert(line.output.clone());
    let begun = unfinished(&entries).into_iter().map(|(begun, recipe)| JournalEntry::Begun(BegunJob { begun, recipe }));
    let lines: Vec<JournalLine> = finished(entries).collect();
    let mut kept: Vec<JournalLine> = lines.into_iter().rev().filter(is_last).collect();
    kept.reverse();
    kept.into_iter().map(|line| JournalEntry::Finished(Box::new(line))).chain(begun).collect()
}

fn finished(entries: Vec<JournalEntry>) -> impl Iterator<Item = JournalLine> {
    entries.into_iter().filter_map(|entry| match entry {
        JournalEntry::Finished(line) => Some(*line),
        JournalEntry::Begun(_) => None,
    })
}

/// Returns the recipe hashes of jobs that began without finishing, by output.
fn unfinished(entries: &[JournalEntry]) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in entries {
        match entry {
            JournalEntry::Begun(job) => _ = found.insert(job.begun.clone(), job.recipe.clone()),
            JournalEntry::Finished(line) => _ = line.output.as_ref().and_then(|output| found.remove(output)),
        }
    }
    found
}

/// Reads the lines of all journals of a jobs file.
///
/// # Errors
/// Io: the directory or a journal cannot be read.
fn entries_of_all(directory: &Path, prefix: &str) -> Result<Vec<JournalEntry>> {
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_journal = |path: &PathBuf| name(path).starts_with(prefix) && name(path).ends_with("jsonl");
    let journals = presence::entries(directory)?.into_iter().filter(is_journal);
    let entries: Vec<_> = journals.map(|journal| entries_of(&journal)).collect::<Result<_>>()?;
    Ok(entries.concat())
}

/// The beginnings of the lines of a journal.
const BEGINNINGS: [&[u8]; 2] = [b"{\"job\":", b"{\"begun\":"];

/// Reads the complete lines of a journal, if it exists. A damaged line is skipped, and its job runs again.
///
/// # Errors
/// - Refused: no line is of a journal, so the file is another one.
/// - Io: the journal cannot be read.
fn entries_of(path: &Path) -> Result<Vec<JournalEntry>> {
    if !presence::exists(path)? {
        return Ok(Vec::new());
    }
    let bytes = InputFile::open(path)?.read_all(limits::MAX_JSON_BYTES)?;
    let lines = || bytes.split(|byte| *byte == b'\n');
    // A kill may cut a line short.
    let is_ours = |line: &[u8]| BEGINNINGS.iter().any(|start| line.starts_with(start) || start.starts_with(line));
    if !bytes.is_empty() && !lines().any(|line| !line.is_empty() && is_ours(line)) {
        let message = "is not a journal of briquette; move it, or choose another name for the jobs file";
        return Err(Error::refused(message).at(shown_path(path)));
    }
    Ok(lines().filter_map(|line| serde_json::from_slice(line).ok()).collect())
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
                note: None,
            }),
            seconds: 0.5,
            error: None,
        }
    }

    fn start(directory: &Path, shard: Shard, resume: bool) -> Journal {
        Journal::start(&BatchFiles::of("sweep.toml".as_ref(), directory, shard).unwrap(), resume).unwrap()
    }

    fn names(journal: &Journal) -> Vec<String> {
        finished(entries_of(&journal.path).unwrap()).map(|line| line.job).collect()
    }

    fn n_before(journal: &Journal) -> usize {
        journal.before.values().map(Vec::len).sum()
    }

    #[test]
    fn another_file_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let files = BatchFiles::of("sweep.toml".as_ref(), dir.path(), Shard::default()).unwrap();
        for text in ["my notes", "{\"other\": 1}\n", "\n\n"] {
            std::fs::write(&files.journal, text).unwrap();
            for resume in [false, true] {
                let error = Journal::start(&files, resume).err().unwrap();
                assert!(error.exit_code() == 6 && error.message.contains("not a journal"), "{error}");
            }
            assert_eq!(std::fs::read(&files.journal).unwrap(), text.as_bytes());
        }
        std::fs::write(&files.journal, "").unwrap();
        Journal::start(&files, false).unwrap();
    }

    #[test]
    fn a_torn_line_is_skipped_and_the_next_is_intact() {
        let dir = tempfile::tempdir().unwrap();
        let journal = start(dir.path(), Shard::default(), false);
        journal.append(&line("a")).unwrap();
        journal.append(&line("b")).unwrap();
        let text = std::fs::read(&journal.path).unwrap();
        for cut in 0..text.len() {
            std::fs::write(&journal.path, &text[..cut]).unwrap();
            let resumed = start(dir.path(), Shard::default(), true);
            resumed.append(&line("c")).unwrap();
            let names = names(&journal);
            assert_eq!(names.last().map(String::as_str), Some("c"), "cut at {cut}");
            assert!(names.len() <= 3 && n_before(&resumed) == names.len() - 1);
        }
    }

    #[test]
    fn a_run_without_resume_keeps_finished_lines() {
        let dir = tempfile::tempdir().unwrap();
        let start = |resume| start(dir.path(), Shard::default(), resume);
        let journal = start(false);
        for name in ["a", "b", "a"] {
            journal.append(&line(name)).unwrap();
        }
        journal.append(&JournalLine { status: JobStatus::Failed, made: None, ..line("c") }).unwrap();
        let again = start(false);
        assert!(again.before.is_empty(), "this run does not read it");
        assert_eq!(names(&journal), ["b", "a"], "the last finished line of each");
        assert_eq!(start(true).done_at(Path::new("a")).len(), 1);
    }

    #[test]
    fn unfinished_jobs_are_known_when_resuming() {
        let dir = tempfile::tempdir().unwrap();
        let begun = |output: &str| BegunJob { begun: output.into(), recipe: "r".into() };
        let journal = start(dir.path(), Shard::new(0, 2).unwrap(), false);
        for name in ["a", "b"] {
            journal.begin(begun(name)).unwrap();
        }
        journal.append(&line("a")).unwrap();
        for resume in [false, true] {
            start(dir.path(), Shard::new(0, 2).unwrap(), resume);
            let resumed = start(dir.path(), Shard::default(), true);
            assert!(resumed.is_unfinished(&begun("b")) && !resumed.is_unfinished(&begun("a")));
            assert!(!resumed.is_unfinished(&BegunJob { recipe: "another".into(), ..begun("b") }));
        }
        journal.append(&JournalLine { status: JobStatus::Failed, made: None, ..line("b") }).unwrap();
        assert!(!start(dir.path(), Shard::default(), true).is_unfinished(&begun("b")), "a failed job has no output");
    }

    #[test]
    fn shards_write_separate_journals_and_read_all() {
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

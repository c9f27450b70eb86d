//! The files of a batch beside its outputs, and the lock that allows only one process.

use super::shard::Shard;
use briquette_core::{Error, Result};
use briquette_formats::draft::FileLock;
use std::path::{Path, PathBuf};

/// The files of a batch or shard, in the deepest directory that contains all outputs.
#[derive(Debug, Clone)]
pub(super) struct BatchFiles {
    /// `NAME.journal.jsonl`; for a shard `NAME.journal.0-of-4.jsonl`.
    pub(super) journal: PathBuf,
    /// `NAME.report.html`, the page of all jobs.
    pub(super) page: PathBuf,
    /// `NAME.stages`, the directory of trainings that several jobs share.
    pub(super) shared: PathBuf,
    /// The prefix of the names of all journals.
    pub(super) journals: String,
    /// The lock of the batch: exclusive for a run of all jobs, shared for shards.
    lock: PathBuf,
    /// The lock of this shard.
    lock_of_shard: Option<PathBuf>,
}

impl BatchFiles {
    /// Returns the files of the jobs file at `path`, whose outputs are all in `directory`.
    ///
    /// # Errors
    /// Config: the jobs file has no name.
    pub(super) fn of(path: &Path, directory: &Path, shard: Shard) -> Result<Self> {
        let stem = path.file_stem().ok_or_else(|| Error::config("is not a file").at(path.display()))?;
        let stem = stem.to_string_lossy();
        let part = if shard.is_whole() { String::new() } else { format!("{shard}.") };
        let named = |name: String| directory.join(name);
        Ok(Self {
            journal: named(format!("{stem}.journal.{part}jsonl")),
            page: named(format!("{stem}.report.{part}html")),
            shared: named(format!("{stem}.{part}stages")),
            journals: format!("{stem}.journal."),
            lock: named(format!(".{stem}.journal.lock")),
            lock_of_shard: (!shard.is_whole()).then(|| named(format!(".{stem}.journal.{part}lock"))),
        })
    }

    /// Returns the directory of the files.
    pub(super) fn directory(&self) -> &Path {
        self.journal.parent().unwrap_or(Path::new(""))
    }

    /// Locks the jobs against other processes while the returned locks live.
    ///
    /// # Errors
    /// - Refused: another process runs these jobs.
    /// - Io: a lock file cannot be created.
    pub(super) fn lock(&self) -> Result<Vec<FileLock>> {
        let directory = self.directory();
        std::fs::create_dir_all(directory)
            .map_err(|source| Error::io("cannot create the directory", directory, source))?;
        let taken = || {
            let message = "another run uses these jobs; wait for it, or share the work with --shard";
            Error::refused(message).at(self.journal.display())
        };
        let Some(of_shard) = &self.lock_of_shard else {
            return Ok(vec![FileLock::alone(&self.lock)?.ok_or_else(taken)?]);
        };
        let all = FileLock::shared(&self.lock)?.ok_or_else(taken)?;
        Ok(vec![FileLock::alone(of_shard)?.ok_or_else(taken)?, all])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_run_concurrently_but_not_with_themselves_or_a_whole_run() {
        let dir = tempfile::tempdir().unwrap();
        let lock = |shard: Shard| BatchFiles::of("sweep.toml".as_ref(), dir.path(), shard).unwrap().lock();
        let [whole, one, two] = [(0, 1), (0, 2), (1, 2)].map(|(index, count)| Shard::new(index, count).unwrap());
        let refused = |shard: Shard| {
            let error = lock(shard).unwrap_err();
            assert!(error.exit_code() == 6 && error.to_string().contains("another run uses these jobs"), "{error}");
        };
        let held = lock(whole).unwrap();
        [whole, one, two].into_iter().for_each(refused);
        drop(held);
        let held = [lock(one).unwrap(), lock(two).unwrap()];
        [whole, one, two].into_iter().for_each(refused);
        drop(held);
        drop(lock(whole).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "all locks are released");
    }
}

//! A lock on the directory of a run.

use super::partial::{Lock, is_at, lock, removed};
use briquette_core::{Error, ErrorKind, Result};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Reserves a directory for one process as long as the lock lives.
#[derive(Debug)]
pub struct DirectoryLock {
    /// Holds the lock.
    file: File,
    directory: PathBuf,
}

impl DirectoryLock {
    /// Locks a directory. On a file system without locks, this has no effect.
    ///
    /// # Errors
    /// - Refused: another process holds the lock.
    /// - Io: the directory cannot be locked.
    pub fn of(directory: &Path) -> Result<Self> {
        match lock(directory) {
            Ok(Lock::Held(file) | Lock::Unknown(file)) => Ok(Self { file, directory: directory.to_path_buf() }),
            Ok(Lock::Taken) => {
                let message = "another run is using this directory; wait for it, or choose another output";
                Err(Error::refused(message).at(directory.display()))
            }
            Err(source) => Err(Error::io("cannot lock the directory", directory, source)),
        }
    }

    /// Explains an error while files of the directory were written: see
    /// [`Draft::explain`](super::Draft::explain).
    pub fn explain(&self, error: Error) -> Error {
        if matches!(error.kind, ErrorKind::Interrupted(_)) || is_at(&self.file, &self.directory) {
            return error;
        }
        removed(&self.directory)
    }
}

//! A lock on work without a directory of its own: a hidden file that serves only as a lock.

use super::partial::{Lock, TryLock, is_at, lock_opened};
use crate::io::presence;
use briquette_core::{Error, Result, shown_path};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Attempts to lock if another process removes the file between opening and locking.
const N_TRIES: usize = 16;

/// Excludes other processes from the same work as long as the lock lives.
///
/// The last holder removes the file. A file that a killed process left behind is empty, and is reused.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    path: PathBuf,
    is_held: bool,
}

impl FileLock {
    /// Takes an exclusive lock at `path`; `None` if another process holds it.
    ///
    /// On a file system without locks, this has no effect.
    ///
    /// # Errors
    /// - Refused: another file is at the path.
    /// - Io: the file cannot be opened or locked.
    pub fn alone(path: &Path) -> Result<Option<Self>> {
        Self::take(path, File::try_lock)
    }

    /// Takes a shared lock at `path`; `None` if another process holds an exclusive lock.
    ///
    /// # Errors
    /// See [`alone`](Self::alone).
    pub fn shared(path: &Path) -> Result<Option<Self>> {
        Self::take(path, File::try_lock_shared)
    }

    fn take(path: &Path, how: TryLock) -> Result<Option<Self>> {
        let failed = |source| Error::io("cannot lock", path, source);
        let path_of = || path.to_path_buf();
        for _ in 0..N_TRIES {
            check_is_lock(path)?;
            let file =
                File::options().create(true).truncate(false).read(true).write(true).open(path).map_err(failed)?;
            let opened = file.try_clone().map_err(failed)?;
            match lock_opened(opened, path, how).map_err(failed)? {
                Lock::Held(file) => return Ok(Some(Self { file, path: path_of(), is_held: true })),
                Lock::Unknown(file) => return Ok(Some(Self { file, path: path_of(), is_held: false })),
                Lock::Taken if is_at(&file, path) => return Ok(None),
                Lock::Taken => {}
            }
        }
        Ok(None)
    }
}

/// Refuses anything but an empty regular file, because the last holder removes it.
fn check_is_lock(path: &Path) -> Result<()> {
    match presence::entry_metadata(path)? {
        Some(found) if !found.is_file() || found.len() > 0 => {
            let message = "exists and is not a lock of briquette; move it, or choose another name for the output";
            Err(Error::refused(message).at(shown_path(path)))
        }
        _ => Ok(()),
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Other holders of a shared lock still need the file.
        let is_last = || self.file.try_lock().is_ok();
        if self.is_held && is_last() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_exclusive_or_shared_and_the_last_holder_removes_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".work.lock");
        let alone = FileLock::alone(&path).unwrap().unwrap();
        assert!(FileLock::alone(&path).unwrap().is_none() && FileLock::shared(&path).unwrap().is_none());
        drop(alone);
        assert!(!path.exists());
        let first = FileLock::shared(&path).unwrap().unwrap();
        let second = FileLock::shared(&path).unwrap().unwrap();
        assert!(FileLock::alone(&path).unwrap().is_none());
        drop(first);
        assert!(path.exists() && FileLock::alone(&path).unwrap().is_none(), "another still shares it");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_file_of_a_killed_process_is_reused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".work.lock");
        std::fs::write(&path, "").unwrap();
        assert!(FileLock::alone(&path).unwrap().is_some());
    }

    #[test]
    fn another_file_at_the_path_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".work.lock");
        let refused = || {
            for error in [FileLock::alone(&path).unwrap_err(), FileLock::shared(&path).unwrap_err()] {
                assert!(error.exit_code() == 6 && error.message.contains("not a lock"), "{error}");
            }
        };
        std::fs::write(&path, "precious").unwrap();
        refused();
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        refused();
        assert!(!dir.path().join("elsewhere").exists());
    }

    #[test]
    fn one_of_many_threads_holds_an_exclusive_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".work.lock");
        let n_inside = std::sync::atomic::AtomicUsize::new(0);
        let order = std::sync::atomic::Ordering::SeqCst;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let Some(lock) = FileLock::alone(&path).unwrap() else { continue };
                        assert_eq!(n_inside.fetch_add(1, order), 0);
                        n_inside.fetch_sub(1, order);
                        drop(lock);
                    }
                });
            }
        });
    }
}

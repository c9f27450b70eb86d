//! Storage of checkpoints: files in a directory or in memory.

use briquette_core::{Error, Result};
use briquette_formats::{InputFile, draft, presence};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Small files by name.
#[derive(Debug, Clone)]
pub(super) enum ResumeFile {
    Directory(PathBuf),
    /// In memory, until the process ends.
    Memory(Arc<Mutex<BTreeMap<String, Vec<u8>>>>),
}

impl ResumeFile {
    /// Returns the path of a file for messages.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Directory(directory) => directory.join(name),
            Self::Memory(_) => PathBuf::from(name),
        }
    }

    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Memory(_) => None,
        }
    }

    /// Reads a file of at most `most` bytes; `None` if it does not exist.
    pub(super) fn read(&self, name: &str, most: Option<u64>) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Directory(directory) => {
                let path = directory.join(name);
                if !presence::exists(&path)? {
                    return Ok(None);
                }
                let file = InputFile::open(&path)?;
                file.read_all(most.unwrap_or(file.len())).map(Some)
            }
            Self::Memory(files) => Ok(locked(files).get(name).cloned()),
        }
    }

    /// Replaces a file atomically.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Directory(directory) => draft::replace_file(&directory.join(name), bytes),
            Self::Memory(files) => {
                locked(files).insert(name.to_string(), bytes.to_vec());
                Ok(())
            }
        }
    }

    pub(super) fn append_line(&self, name: &str, line: &str) -> Result<()> {
        match self {
            Self::Directory(directory) => draft::append_line(&directory.join(name), line),
            Self::Memory(files) => {
                let mut files = locked(files);
                let text = files.entry(name.to_string()).or_default();
                text.extend_from_slice(line.as_bytes());
                text.push(b'\n');
                Ok(())
            }
        }
    }

    /// Removes the files whose names match. A file that cannot be removed only wastes space.
    pub(super) fn remove(&self, is_over: impl Fn(&str) -> bool) {
        match self {
            Self::Directory(directory) => {
                let names = std::fs::read_dir(directory).into_iter().flatten();
                let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                let over = names.filter(|name| is_over(name));
                over.for_each(|name| drop(std::fs::remove_file(directory.join(name))));
            }
            Self::Memory(files) => locked(files).retain(|name, _| !is_over(name)),
        }
    }

    /// Removes the files whose names match, and a subdirectory.
    pub(super) fn clear(&self, is_ours: &dyn Fn(&str) -> bool, below: &str) -> Result<()> {
        let Self::Directory(directory) = self else {
            self.remove(is_ours);
            return Ok(());
        };
        for path in presence::entries(directory)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let removed = match presence::is_directory(&path)? {
                true if name == below => std::fs::remove_dir_all(&path),
                false if is_ours(&name) => std::fs::remove_file(&path),
                _ => Ok(()),
            };
            removed.map_err(|source| Error::io("cannot remove", &path, source))?;
        }
        Ok(())
    }
}

/// Creates a directory if it is missing.
pub(super) fn made(directory: &Path) -> Result<()> {
    let made = std::fs::create_dir_all(directory);
    made.map_err(|source| Error::io("cannot create the directory", directory, source))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Writing a directory that is there whole or not at all. The only module that opens files for writing.

mod copy;
mod file_lock;
mod own_file;
mod partial;
#[cfg(test)]
mod tests;

use crate::sums;
use briquette_core::{Error, ErrorKind, Result};
pub use file_lock::FileLock;
pub use own_file::OwnFile;
use partial::{Lock, is_at, lock, partial_name, remove_quietly, remove_stale};
use rustix::fs::{CWD, FallocateFlags, RenameFlags};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// An output directory in the making: a hidden directory beside the target, locked, removed unless published.
#[derive(Debug)]
pub struct Draft {
    target: PathBuf,
    partial: PathBuf,
    /// Directories that had to be made for it, the innermost first.
    made: Vec<PathBuf>,
    replace: bool,
    is_published: bool,
    /// Holds the lock that tells a draft in use from one left behind.
    lock: File,
}

impl Draft {
    /// Starts a draft of `target`, after removing drafts of it that a killed run left behind.
    ///
    /// `inputs` are what is being read: the target may not be, contain, or lie inside one of them.
    ///
    /// # Errors
    /// Refused where the target exists and `replace` is not set, or is not something we may replace, or meets an
    /// input; Config where its path cannot be one; Io where nothing can be written there.
    pub fn create(target: &Path, inputs: &[&Path], replace: bool) -> Result<Self> {
        if target.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(Error::config("has a NUL, which no path has; remove it").at(target.display()));
        }
        let target = absolute(target)?;
        check_target(&target, inputs, replace)?;
        let parent = crate::index::parent_of(&target);
        let made: Vec<PathBuf> = parent.ancestors().take_while(|path| !path.exists()).map(Path::to_path_buf).collect();
        let started = std::fs::create_dir_all(&parent)
            .map_err(|source| Error::io("cannot create the directory", &parent, source))
            .and_then(|()| {
                remove_stale(&target, &parent);
                new_partial(&target, &parent)
            });
        match started {
            Ok((partial, lock)) => Ok(Self { target, partial, made, replace, is_published: false, lock }),
            Err(error) => {
                remove_empty(&made);
                Err(error)
            }
        }
    }

    /// Where the files are until they are published.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// What an error of making this draft comes from: where someone removed it meanwhile, nothing that is read back is to blame.
    pub fn explain(&self, error: Error) -> Error {
        if matches!(error.kind, ErrorKind::Interrupted(_)) || is_at(&self.lock, &self.partial) {
            return error;
        }
        removed(&crate::index::parent_of(&self.target))
    }

    /// Refuses where the file system has less than `n_bytes` free.
    ///
    /// # Errors
    /// Io, with both figures.
    pub fn check_space(&self, n_bytes: u64) -> Result<()> {
        let Ok(found) = rustix::fs::statvfs(&self.partial) else { return Ok(()) };
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if free >= n_bytes {
            return Ok(());
        }
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        Err(Error::io(
            &format!("found {free} bytes free, expected {n_bytes}"),
            &crate::index::parent_of(&self.target),
            full,
        ))
    }

    /// Creates a file of `n_bytes` with its space reserved. `name` may contain directories.
    ///
    /// # Errors
    /// Io where there is no room, or the file exists.
    pub fn create_file(&self, name: &Path, n_bytes: u64) -> Result<DraftFile> {
        let path = self.partial.join(name);
        if let Some(parent) = path.parent().filter(|parent| *parent != self.partial) {
            std::fs::create_dir_all(parent)
                .map_err(|source| Error::io("cannot create the directory", parent, source))?;
        }
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|source| Error::io("cannot create", &path, source))?;
        let draft = DraftFile { file, path };
        if n_bytes > 0 {
            draft.reserve(n_bytes)?;
        }
        Ok(draft)
    }

    /// Writes a small file whole and syncs it.
    ///
    /// # Errors
    /// Io.
    pub fn write_file(&self, name: &Path, bytes: &[u8]) -> Result<()> {
        let file = self.create_file(name, bytes.len() as u64)?;
        file.write_at(0, bytes)?;
        file.sync()
    }

    /// Moves the directory into place in one step and makes that last.
    ///
    /// # Errors
    /// Refused where something came to be at the target meanwhile, Io where the draft is gone or the move failed.
    pub fn publish(mut self) -> Result<()> {
        if !is_at(&self.lock, &self.partial) {
            return Err(removed(&crate::index::parent_of(&self.target)));
        }
        sync_tree(&self.partial)?;
        let exists = std::fs::symlink_metadata(&self.target).is_ok();
        if exists && self.replace {
            // Someone may have put something there meanwhile.
            check_target(&self.target, &[], true)?;
        }
        let flags = if exists && self.replace { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(CWD, &self.partial, CWD, &self.target, flags) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOTEMPTY) => return Err(exists_error(&self.target)),
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) if !exists => {
                std::fs::rename(&self.partial, &self.target)
                    .map_err(|source| Error::io("cannot move the output into place", &self.target, source))?;
            }
            Err(source) => return Err(Error::io("cannot move the output into place", &self.target, source)),
        }
        self.is_published = true;
        let synced = sync_directory(&crate::index::parent_of(&self.target));
        // The old output goes only once the new one is there to stay.
        if flags == RenameFlags::EXCHANGE {
            remove_quietly(&self.partial);
        }
        synced
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_published {
            remove_quietly(&self.partial);
            remove_empty(&self.made);
        }
    }
}

/// A new hidden directory for a draft of `target`, and its lock.
fn new_partial(target: &Path, parent: &Path) -> Result<(PathBuf, File)> {
    loop {
        let partial = parent.join(partial_name(target)?);
        match std::fs::create_dir(&partial) {
            Ok(()) => {}
            Err(source) if source.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(source) => return Err(Error::io("cannot write here", parent, source)),
        }
        match lock(&partial) {
            Ok(Lock::Held(lock) | Lock::Unknown(lock)) => return Ok((partial, lock)),
            // Another run took the new directory for one left behind, before it was locked.
            Ok(Lock::Taken) => remove_quietly(&partial),
            Err(source) => {
                remove_quietly(&partial);
                return Err(Error::io("cannot lock the directory", &partial, source));
            }
        }
    }
}

/// An output went away, with what was in it, while it was being made.
fn removed(directory: &Path) -> Error {
    let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
    Error::io("what is written here was removed meanwhile; leave it in place and run it again", directory, gone)
}

/// Keeps a directory to one process for as long as it lives.
#[derive(Debug)]
pub struct DirectoryLock {
    /// Holds the lock.
    file: File,
    directory: PathBuf,
}

impl DirectoryLock {
    /// Locks a directory. Where the file system has no locks, nothing is kept.
    ///
    /// # Errors
    /// Refused where another holds the lock, Io where it cannot be had.
    pub fn of(directory: &Path) -> Result<Self> {
        match lock(directory) {
            Ok(Lock::Held(file) | Lock::Unknown(file)) => Ok(Self { file, directory: directory.to_path_buf() }),
            Ok(Lock::Taken) => {
                let message = "another run is at work here; wait for it, or choose another output";
                Err(Error::refused(message).at(directory.display()))
            }
            Err(source) => Err(Error::io("cannot lock the directory", directory, source)),
        }
    }

    /// As [`Draft::explain`], of what is kept in the directory.
    pub fn explain(&self, error: Error) -> Error {
        if matches!(error.kind, ErrorKind::Interrupted(_)) || is_at(&self.file, &self.directory) {
            return error;
        }
        removed(&self.directory)
    }
}

/// Removes a directory beside `target` that nobody needs any more. It is gone in one step: what a kill leaves of it has the name of
/// a draft of `target`, and goes as those do.
///
/// # Errors
/// Io, where it cannot be renamed.
pub fn discard(directory: &Path, target: &Path) -> Result<()> {
    let hidden = directory.with_file_name(partial_name(&absolute(target)?)?);
    std::fs::rename(directory, &hidden).map_err(|source| Error::io("cannot remove", directory, source))?;
    remove_quietly(&hidden);
    Ok(())
}

/// Removes what killed runs left of drafts of `target`. A new draft does so by itself.
pub fn remove_left_behind(target: &Path) {
    if let Ok(target) = absolute(target) {
        remove_stale(&target, &crate::index::parent_of(&target));
    }
}

/// Removes directories, the innermost first, up to the first that has something in it.
fn remove_empty(directories: &[PathBuf]) {
    let _ = directories.iter().try_for_each(std::fs::remove_dir);
}

/// A file of a draft, written at explicit offsets by any number of threads.
#[derive(Debug)]
pub struct DraftFile {
    file: File,
    path: PathBuf,
}

impl DraftFile {
    fn reserve(&self, n_bytes: u64) -> Result<()> {
        let reserved = rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, n_bytes);
        match reserved {
            // Not every file system can reserve; there a full disk shows when writing.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(source) => Err(Error::io(&format!("cannot reserve {n_bytes} bytes"), &self.path, source)),
        }
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Io.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|source| Error::io("cannot write", &self.path, source))
    }

    /// Waits until the file is on disk.
    ///
    /// # Errors
    /// Io.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|source| Error::io("cannot sync", &self.path, source))
    }
}

/// Appends one line to a journal and syncs it.
///
/// # Errors
/// Io.
pub fn append_line(path: &Path, line: &str) -> Result<()> {
    use std::io::Write;
    let file = File::options().create(true).append(true).open(path);
    let mut file = file.map_err(|source| Error::io("cannot open for writing", path, source))?;
    let line = format!("{line}\n");
    file.write_all(line.as_bytes()).map_err(|source| Error::io("cannot write", path, source))?;
    file.sync_all().map_err(|source| Error::io("cannot sync", path, source))
}

/// What a file that is being replaced is called until it is whole, after a dot and its name.
pub(crate) const PARTIAL: &str = ".partial";

/// Where a file is until it is whole. One name for all runs: what a killed one left is written over.
fn partial_of(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}{PARTIAL}"))
}

/// Writes a file that is there whole or not at all, replacing an older one.
///
/// # Errors
/// Io.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = partial_of(path);
    let write = || {
        let _ = std::fs::remove_file(&partial);
        let mut file = File::create_new(&partial)?;
        std::io::Write::write_all(&mut file, bytes)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(|source| {
        let _ = std::fs::remove_file(&partial);
        Error::io("cannot write", path, source)
    })?;
    sync_directory(&crate::index::parent_of(path))
}

/// The path from the root. What is not there cannot be a link, so that `..` behind it just takes it back.
fn absolute(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).map_err(|source| Error::io("cannot resolve", path, source))?;
    let mut found = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir && !found.exists() {
            found.pop();
        } else {
            found.push(part);
        }
    }
    Ok(found)
}

fn exists_error(target: &Path) -> Error {
    Error::refused("the output exists; choose another or pass --force to replace it").at(target.display())
}

/// Refuses a place to write that is, contains, or lies inside something that is read.
///
/// # Errors
/// Refused, naming both.
pub fn check_apart(target: &Path, inputs: &[&Path]) -> Result<()> {
    let meets = |input: &&&Path| lies_in(target, input) || lies_in(input, target);
    let Some(input) = inputs.iter().find(meets) else { return Ok(()) };
    let message = format!("the output may not be, contain or lie inside the input {}; choose another", input.display());
    Err(Error::refused(message).at(target.display()))
}

fn check_target(target: &Path, inputs: &[&Path], replace: bool) -> Result<()> {
    check_apart(target, inputs)?;
    let Ok(metadata) = std::fs::symlink_metadata(target) else { return Ok(()) };
    if !replace {
        return Err(exists_error(target));
    }
    let is_empty = || std::fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
    if metadata.is_dir() && is_empty() { Ok(()) } else { sums::check_is_ours(target) }
}

/// Whether `inner`, or a directory it is in, is `outer`: by device and inode, not by name.
fn lies_in(inner: &Path, outer: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let Some(outer) = identity(outer) else { return false };
    let inner = std::fs::canonicalize(inner).unwrap_or_else(|_| existing_ancestor(inner));
    inner.ancestors().any(|path| identity(path) == Some(outer))
}

fn existing_ancestor(path: &Path) -> PathBuf {
    path.ancestors().find_map(|ancestor| std::fs::canonicalize(ancestor).ok()).unwrap_or_default()
}

fn sync_directory(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|source| Error::io("cannot sync the directory", directory, source))
}

fn sync_tree(directory: &Path) -> Result<()> {
    let entries = std::fs::read_dir(directory).map_err(|source| Error::io("cannot list", directory, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| Error::io("cannot list", directory, source))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sync_tree(&entry.path())?;
        }
    }
    sync_directory(directory)
}

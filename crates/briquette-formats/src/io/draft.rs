//! Writes an output directory that appears as a whole or not at all.
//!
//! Only this module and its submodules open files for writing.

mod copy;
mod directory_lock;
mod file_lock;
mod hidden;
mod own_file;
mod parents;
mod partial;
mod place;
mod replace;
mod scratch_file;
#[cfg(test)]
mod tests;

use crate::io::paths::parent_of;
use crate::io::presence;
use briquette_core::{Error, ErrorKind, Result};
pub use directory_lock::DirectoryLock;
pub use file_lock::FileLock;
pub use hidden::{MARK, target_of_draft};
pub use own_file::OwnFile;
pub use parents::ParentDirectories;
use partial::{is_at, mark, new_partial, partial_name, remove_quietly, remove_stale, removed, unmark};
pub use place::check_apart;
use place::{absolute, check_target, exists_error};
use replace::sync_directory;
pub use replace::{append_line, check_writable, replace_file, write_files};
use rustix::fs::{CWD, FallocateFlags, RenameFlags};
pub use scratch_file::ScratchFile;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

/// Buffer size for files that are written as a stream.
const BUFFER_BYTES: usize = 1 << 18;

/// An output directory in progress: a hidden, locked directory beside the target, removed unless published.
#[derive(Debug)]
pub struct Draft {
    target: PathBuf,
    partial: PathBuf,
    replace: bool,
    is_published: bool,
    /// Holds the lock that distinguishes a draft in use from an abandoned one.
    lock: File,
    /// Directories that were created for the draft.
    _parents: ParentDirectories,
}

impl Draft {
    /// Starts a draft of `target`, after removing drafts of it that killed runs left behind.
    ///
    /// `inputs` are the paths that are read. The target may not be, contain, or lie inside one of them.
    ///
    /// # Errors
    /// - Refused: the target exists and `replace` is not set, or it is not an output of Briquette.
    /// - Refused: the target overlaps an input.
    /// - Config: the path of the target is invalid.
    /// - Io: the parent directory cannot be written.
    pub fn create(target: &Path, inputs: &[&Path], replace: bool) -> Result<Self> {
        if target.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(Error::config("found a NUL byte in the path; remove it").at(target.display()));
        }
        let target = absolute(target)?;
        check_target(&target, inputs, replace)?;
        let parent = parent_of(&target);
        let parents = ParentDirectories::create(&target)?;
        remove_stale(&target, &parent);
        let (partial, lock) = new_partial(&target, &parent)?;
        Ok(Self { target, partial, replace, is_published: false, lock, _parents: parents })
    }

    /// Returns the directory of the files until they are published.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Returns the cause of an error that occurred while this draft was written.
    ///
    /// If the draft was removed meanwhile, the error says so instead of reporting a missing or damaged file.
    pub fn explain(&self, error: Error) -> Error {
        if matches!(error.kind, ErrorKind::Interrupted(_)) || is_at(&self.lock, &self.partial) {
            return error;
        }
        removed(&parent_of(&self.target))
    }

    /// Checks that the file system has `n_bytes` free.
    ///
    /// # Errors
    /// Io: there is less free space. The error has both numbers.
    pub fn check_space(&self, n_bytes: u64) -> Result<()> {
        let Ok(found) = rustix::fs::statvfs(&self.partial) else { return Ok(()) };
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if free >= n_bytes {
            return Ok(());
        }
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        Err(Error::io(&format!("found {free} bytes free, expected {n_bytes}"), &parent_of(&self.target), full))
    }

    /// Creates a file of `n_bytes` with its space reserved. `name` may contain directories.
    ///
    /// # Errors
    /// - Config: `name` leads out of the directory.
    /// - Io: there is not enough space, or the file exists.
    pub fn create_file(&self, name: &Path, n_bytes: u64) -> Result<DraftFile> {
        check_name(name)?;
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

    /// Creates a nameless file for temporary data.
    ///
    /// # Errors
    /// Io: the file cannot be created.
    pub fn create_scratch(&self) -> Result<DraftFile> {
        let scratch = self.create_file(Path::new(".scratch"), 0)?;
        std::fs::remove_file(&scratch.path).map_err(|source| Error::io("cannot remove", &scratch.path, source))?;
        Ok(scratch)
    }

    /// Writes a small file and syncs it.
    pub fn write_file(&self, name: &Path, bytes: &[u8]) -> Result<()> {
        let file = self.create_file(name, bytes.len() as u64)?;
        file.write_at(0, bytes)?;
        file.sync()
    }

    /// Writes a file through a buffer and syncs it, so that it is never in memory as a whole.
    ///
    /// # Errors
    /// - Io: the file cannot be written.
    /// - Bug: `fill` returns `InvalidData`, as a serializer does for invalid data.
    pub fn write_with(&self, name: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let file = self.create_file(name, 0)?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, &file.file);
        fill(&mut out).and_then(|()| out.flush()).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => Error::bug(format!("{}: {source}", name.display())),
            _ => Error::io("cannot write", &file.path, source),
        })?;
        drop(out);
        file.sync()
    }

    /// Moves the directory into place atomically, and syncs it so that a power failure does not revert the
    /// move.
    ///
    /// # Errors
    /// - Refused: the target was created meanwhile.
    /// - Io: the draft was removed, or the move failed.
    pub fn publish(mut self) -> Result<()> {
        if !is_at(&self.lock, &self.partial) {
            return Err(removed(&parent_of(&self.target)));
        }
        unmark(&self.partial).map_err(|source| Error::io("cannot write", &self.partial, source))?;
        sync_tree(&self.partial)?;
        let exists = presence::has_entry(&self.target)?;
        if exists && self.replace {
            // The target may have changed meanwhile.
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
        let synced = sync_directory(&parent_of(&self.target));
        // The old output is removed only after the new one is durable.
        if flags == RenameFlags::EXCHANGE {
            remove_quietly(&self.partial);
        }
        synced
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Another directory may be at the path if the draft was removed.
        if !self.is_published && is_at(&self.lock, &self.partial) {
            remove_quietly(&self.partial);
        }
    }
}

/// Refuses a file name that leads out of its directory: an absolute path, or one with `..`.
///
/// # Errors
/// Config: the name leads out of the directory.
pub fn check_name(name: &Path) -> Result<()> {
    let is_below = name.components().all(|part| matches!(part, Component::Normal(_)));
    match is_below && name.file_name().is_some() {
        true => Ok(()),
        false => {
            let message =
                format!("found the file name {:?}, expected a path below the directory", name.display().to_string());
            Err(Error::config(format!("{message}; remove `..` and the leading `/`")))
        }
    }
}

/// Removes a directory beside `target` that is no longer needed.
///
/// It is marked and renamed to a draft of `target` first, so that it disappears atomically. If the process is
/// killed while removing it, the next draft of `target` removes the rest.
///
/// # Errors
/// Io: the directory cannot be renamed.
pub fn discard(directory: &Path, target: &Path) -> Result<()> {
    let hidden = directory.with_file_name(partial_name(&absolute(target)?)?);
    let is_marked = |source: &io::Error| source.kind() == io::ErrorKind::AlreadyExists;
    mark(directory)
        .or_else(|source| if is_marked(&source) { Ok(()) } else { Err(source) })
        .map_err(|source| Error::io("cannot write", directory, source))?;
    std::fs::rename(directory, &hidden).map_err(|source| Error::io("cannot remove", directory, source))?;
    remove_quietly(&hidden);
    Ok(())
}

/// Removes drafts of `target` that killed runs left behind. [`Draft::create`] does so too.
pub fn remove_left_behind(target: &Path) {
    if let Ok(target) = absolute(target) {
        remove_stale(&target, &parent_of(&target));
    }
}

/// A file of a draft, written at explicit offsets from any number of threads.
#[derive(Debug)]
pub struct DraftFile {
    file: File,
    path: PathBuf,
}

impl DraftFile {
    /// Removes the file, so that another file of this name can be created.
    ///
    /// # Errors
    /// Io: the file cannot be removed.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|source| Error::io("cannot remove", &self.path, source))
    }

    fn reserve(&self, n_bytes: u64) -> Result<()> {
        let reserved = rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, n_bytes);
        match reserved {
            // Not every file system can reserve space. If it cannot, a full disk is noticed while writing.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(source) => Err(Error::io(&format!("cannot reserve {n_bytes} bytes"), &self.path, source)),
        }
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Io: the file cannot be written.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|source| Error::io("cannot write", &self.path, source))
    }

    /// Reads all of `bytes` back from `offset`.
    ///
    /// # Errors
    /// Io: the file cannot be read.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(|source| Error::io("cannot read", &self.path, source))
    }

    /// Waits until the file is on disk.
    ///
    /// # Errors
    /// Io: the file cannot be synced.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|source| Error::io("cannot sync", &self.path, source))
    }
}

fn sync_tree(directory: &Path) -> Result<()> {
    let entries = std::fs::read_dir(directory).map_err(|source| Error::io("cannot list", directory, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| Error::io("cannot list", directory, source))?;
        let kind = entry.file_type().map_err(|source| Error::io("cannot access", &entry.path(), source))?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    sync_directory(directory)
}

//! Hidden drafts: their names, their locks, and removal of drafts that killed runs left behind.

use super::hidden::{MARK, PARTIAL, is_number_of_draft};
use super::place::check_is_ours;
use briquette_core::{Error, Hash128, Result};
use rustix::io::Errno;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

fn prefix_of(target: &Path) -> Result<String> {
    match target.file_name() {
        // File systems allow names of up to 255 bytes.
        Some(name) if name.len() > 200 => Ok(format!(".{}{PARTIAL}", Hash128::of_block(name.as_encoded_bytes()))),
        Some(name) => Ok(format!(".{}{PARTIAL}", name.to_string_lossy())),
        None => Err(Error::config("is not a valid name for an output").at(target.display())),
    }
}

pub(super) fn partial_name(target: &Path) -> Result<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{}{}-{n}", prefix_of(target)?, std::process::id()))
}

/// [`File::try_lock`] or [`File::try_lock_shared`].
pub(super) type TryLock = fn(&File) -> std::result::Result<(), TryLockError>;

/// The result of locking a directory or file.
pub(super) enum Lock {
    /// The lock is held as long as the handle lives.
    Held(File),
    /// Another process holds the lock, or the path was removed.
    Taken,
    /// The file system has no locks.
    Unknown(File),
}

pub(super) fn lock(directory: &Path) -> std::io::Result<Lock> {
    match File::open(directory) {
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(Lock::Taken),
        opened => lock_opened(opened?, directory, File::try_lock),
    }
}

/// Locks an opened file or directory. If another run removed it meanwhile, the lock counts as taken.
pub(super) fn lock_opened(file: File, path: &Path, try_lock: TryLock) -> std::io::Result<Lock> {
    match try_lock(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Lock::Taken),
        Err(TryLockError::Error(source)) if has_no_locks(&source) => return Ok(Lock::Unknown(file)),
        Err(TryLockError::Error(source)) => return Err(source),
    }
    Ok(if is_at(&file, path) { Lock::Held(file) } else { Lock::Taken })
}

/// Returns whether a locking error means that the file system has no locks.
fn has_no_locks(source: &std::io::Error) -> bool {
    let errno = source.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK))
}

/// Returns whether an open file or directory is still at its path.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let there = std::fs::symlink_metadata(path).map(identity).ok();
    there.is_some() && there == file.metadata().map(identity).ok()
}

/// Removes drafts of the same target that belong to a run that has ended: their lock is free.
///
/// Only directories that are provably drafts are removed. Another file or directory with such a name stays.
pub(super) fn remove_stale(target: &Path, parent: &Path) {
    let (Ok(prefix), Ok(entries)) = (prefix_of(target), std::fs::read_dir(parent)) else { return };
    for entry in entries.filter_map(std::result::Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_draft = name.strip_prefix(&prefix).is_some_and(is_number_of_draft)
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        // The lock is held until the draft is removed, so that only one run removes it.
        if is_draft && let Ok(Lock::Held(_lock)) = lock(&entry.path()) {
            match is_marked(&entry.path()) || check_is_ours(&entry.path()).is_ok() {
                true => remove_quietly(&entry.path()),
                // A run that was killed before it set the mark left an empty directory.
                false => _ = std::fs::remove_dir(entry.path()),
            }
        }
    }
}

/// Creates a hidden directory for a draft of `target`, marks it, and locks it.
///
/// # Errors
/// Io: the directory cannot be created or locked.
pub(super) fn new_partial(target: &Path, parent: &Path) -> Result<(PathBuf, File)> {
    loop {
        let partial = parent.join(partial_name(target)?);
        match std::fs::create_dir(&partial) {
            Ok(()) => {}
            Err(source) if source.kind() == ErrorKind::AlreadyExists => continue,
            Err(source) => return Err(Error::io("cannot write here", parent, source)),
        }
        match lock(&partial) {
            Ok(Lock::Held(lock) | Lock::Unknown(lock)) => {
                return match mark(&partial) {
                    Ok(()) => Ok((partial, lock)),
                    Err(source) => {
                        remove_quietly(&partial);
                        Err(Error::io("cannot write", &partial, source))
                    }
                };
            }
            // Another run considered the directory abandoned, and removes it.
            Ok(Lock::Taken) => {}
            Err(source) => {
                remove_quietly(&partial);
                return Err(Error::io("cannot lock the directory", &partial, source));
            }
        }
    }
}

/// The content of [`MARK`].
const MARK_TEXT: &[u8] = b"Unfinished output of briquette; the next run removes it.\n";

/// Marks a directory as a draft, so that a later run may remove it.
pub(super) fn mark(directory: &Path) -> std::io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(directory.join(MARK))?;
    file.write_all(MARK_TEXT)
}

/// Removes the mark of a finished draft.
pub(super) fn unmark(directory: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(directory.join(MARK)) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(source),
        _ => Ok(()),
    }
}

/// Returns whether a directory has the mark, which may be incomplete after a crash.
fn is_marked(directory: &Path) -> bool {
    let path = directory.join(MARK);
    let is_short_file =
        std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() <= MARK_TEXT.len() as u64);
    is_short_file && std::fs::read(&path).is_ok_and(|text| MARK_TEXT.starts_with(&text))
}

/// Removes a directory that is a draft. Its mark goes last, so that a later run finds what a killed one left.
pub(super) fn remove_quietly(directory: &Path) {
    // The caller cannot handle an error. The next run finds the remains and tries again.
    let _ = mark(directory);
    let _ = remove_marked(directory);
}

fn remove_marked(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == MARK {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    unmark(directory)?;
    std::fs::remove_dir(directory)
}

/// Returns the error for an output that was removed while it was being written.
pub(super) fn removed(directory: &Path) -> Error {
    let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
    Error::io("the output was removed while it was being written; leave it in place and run again", directory, gone)
}

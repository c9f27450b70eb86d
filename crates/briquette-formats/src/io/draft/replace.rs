//! Single files that are replaced atomically or appended to line by line.

use super::hidden::PARTIAL;
use super::partial::{has_no_locks, is_at};
use super::place::exists_error;
use crate::io::paths::parent_of;
use briquette_core::{Error, Result};
use rustix::fs::{CWD, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Names that are tried for a hidden file.
const N_NAMES: usize = 100;

/// Appends one line to a journal and syncs it.
///
/// # Errors
/// Io: the file cannot be written.
pub fn append_line(path: &Path, line: &str) -> Result<()> {
    let file = File::options().create(true).append(true).open(path);
    let mut file = file.map_err(|source| Error::io("cannot open for writing", path, source))?;
    let line = format!("{line}\n");
    file.write_all(line.as_bytes()).map_err(|source| Error::io("cannot write", path, source))?;
    file.sync_all().map_err(|source| Error::io("cannot sync", path, source))
}

/// A file that is written in full before it appears at its path.
///
/// It is written beside its path as `.NAME.partial`, under a lock. A second writer waits, and reuses the file
/// of a killed writer. If something other than a file has this name, `.NAME-1.partial` or a later number is used.
#[derive(Debug)]
pub(super) struct HiddenFile {
    file: File,
    partial: PathBuf,
    path: PathBuf,
}

impl HiddenFile {
    /// Creates the hidden file, or waits for another process that writes it.
    ///
    /// # Errors
    /// Io: the file cannot be created or locked.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let numbers = std::iter::once(String::new()).chain((1..N_NAMES).map(|n| format!("-{n}")));
        let mut names = numbers.map(|number| path.with_file_name(format!(".{name}{number}{PARTIAL}")));
        // Anything but a regular file came from another program, and stays: a link could lead anywhere.
        let is_free = |path: &PathBuf| std::fs::symlink_metadata(path).map_or(true, |found| found.is_file());
        let partial = names.find(is_free).unwrap_or_else(|| path.with_file_name(format!(".{name}{PARTIAL}")));
        let file = open_locked(&partial).map_err(|source| Error::io("cannot write", path, source))?;
        Ok(Self { file, partial, path: path.to_path_buf() })
    }

    /// Creates a hidden file with these bytes, synced to disk.
    fn with(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut hidden = Self::create(path)?;
        let written = hidden.file.write_all(bytes).and_then(|()| hidden.file.sync_all());
        written.map_err(|source| Error::io("cannot write", path, source))?;
        Ok(hidden)
    }

    /// Moves the file to its path. Unless `replace` is set, an existing file stays and is an error.
    fn publish(&self, replace: bool) -> Result<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let moved = match rustix::fs::renameat_with(CWD, &self.partial, CWD, &self.path, flags) {
            Err(Errno::INVAL | Errno::NOSYS) if replace => std::fs::rename(&self.partial, &self.path),
            // On file systems without NOREPLACE, a hard link fails if the target exists. Drop removes the
            // hidden name.
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(&self.partial, &self.path),
            moved => moved.map_err(std::io::Error::from),
        };
        moved.map_err(|source| match source.kind() {
            ErrorKind::AlreadyExists => exists_error(&self.path),
            _ => Error::io("cannot write", &self.path, source),
        })
    }
}

impl Drop for HiddenFile {
    fn drop(&mut self) {
        // After a rename, the hidden name may belong to the next writer.
        if is_at(&self.file, &self.partial) {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// Opens an empty file at `partial` and locks it, even if a killed writer left one there.
fn open_locked(partial: &Path) -> std::io::Result<File> {
    let no_follow = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    loop {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true).custom_flags(no_follow.bits() as i32);
        let file = options.open(partial)?;
        match file.lock() {
            Err(source) if source.kind() == ErrorKind::Interrupted => continue,
            Err(source) if !has_no_locks(&source) => return Err(source),
            _ => {}
        }
        // The last writer may have renamed it to its final path meanwhile.
        if is_at(&file, partial) {
            file.set_len(0)?;
            return Ok(file);
        }
    }
}

/// Writes a file atomically, replacing an older one.
///
/// # Errors
/// Io: the file cannot be written.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write_files(&[(path, bytes)], true)
}

/// Writes several files of one directory: all of them, or none if one cannot be written.
///
/// Every file is on disk under a hidden name before the first one appears. Unless `replace` is set, none may
/// exist yet.
///
/// # Errors
/// - Refused: a file exists and `replace` is not set.
/// - Io: a file cannot be written.
pub fn write_files(files: &[(&Path, &[u8])], replace: bool) -> Result<()> {
    let hidden: Vec<HiddenFile> =
        files.iter().map(|(path, bytes)| HiddenFile::with(path, bytes)).collect::<Result<_>>()?;
    for (n_published, file) in hidden.iter().enumerate() {
        if let Err(error) = file.publish(replace) {
            // Files that replaced older ones stay: the older ones are gone.
            let new = files[..n_published].iter().filter(|_| !replace);
            new.for_each(|(path, _)| drop(std::fs::remove_file(path)));
            return Err(error);
        }
    }
    files.iter().try_for_each(|(path, _)| sync_directory(&parent_of(path)))
}

/// Syncs a directory, so that created, renamed and removed files in it are durable.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|source| Error::io("cannot sync the directory", directory, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let paths = crate::io::presence::entries(directory).unwrap();
        paths.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn one_of_several_writers_that_may_not_replace_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let write = |text: String| write_files(&[(&path, text.as_bytes())], false).is_ok();
        let n_written = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8).map(|i| scope.spawn(move || write(i.to_string().repeat(9_999)))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).filter(|is_written| *is_written).count()
        });
        assert_eq!((n_written, names(dir.path())), (1, vec!["x.json".to_string()]));
        let text = std::fs::read(&path).unwrap();
        assert!(text.len() == 9_999 && text.iter().all(|byte| *byte == text[0]), "the whole text of one writer");
    }

    #[test]
    fn writers_that_may_replace_leave_one_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        std::thread::scope(|scope| {
            for i in 0..8_u8 {
                let path = &path;
                scope.spawn(move || (0..20).for_each(|_| replace_file(path, &vec![i; 9_999]).unwrap()));
            }
        });
        let text = std::fs::read(&path).unwrap();
        assert!(text.len() == 9_999 && text.iter().all(|byte| *byte == text[0]));
        assert_eq!(names(dir.path()), ["x.json"]);
    }

    #[test]
    fn no_file_appears_unless_all_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let (json, page) = (dir.path().join("x.json"), dir.path().join("absent/x.html"));
        assert!(write_files(&[(&json, b"{}"), (&page, b"<p>")], true).is_err());
        assert_eq!(names(dir.path()), [] as [&str; 0]);
        let page = dir.path().join("x.html");
        std::fs::write(&page, "another").unwrap();
        let error = write_files(&[(&json, b"{}"), (&page, b"<p>")], false).unwrap_err();
        assert_eq!((error.exit_code(), names(dir.path())), (6, vec!["x.html".to_string()]));
    }

    #[test]
    fn hidden_files_of_killed_runs_are_reused_and_other_entries_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (path, hidden) = (dir.path().join("x.json"), dir.path().join(".x.json.partial"));
        std::fs::write(dir.path().join("key"), "secret").unwrap();
        std::fs::write(&hidden, "left by a killed run").unwrap();
        replace_file(&path, b"1").unwrap();
        assert_eq!(
            (std::fs::read(&path).unwrap(), names(dir.path())),
            (b"1".to_vec(), vec!["key".into(), "x.json".into()])
        );
        std::os::unix::fs::symlink("key", &hidden).unwrap();
        std::fs::create_dir(dir.path().join(".x.json-1.partial")).unwrap();
        replace_file(&path, b"2").unwrap();
        assert_eq!(std::fs::read(dir.path().join("key")).unwrap(), b"secret");
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        assert_eq!(names(dir.path()), [".x.json-1.partial", ".x.json.partial", "key", "x.json"]);
    }
}

//! Single files that are replaced atomically or appended to line by line.

use super::parents::ParentDirectories;
use super::partial::{is_at, new_partial, remove_quietly, remove_stale};
use super::place::exists_error;
use crate::io::paths::parent_of;
use briquette_core::{Error, Result, shown_path};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

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
/// It is written in a draft beside its path: a hidden directory that is marked and locked. The next writer of the
/// path removes the drafts of killed writers. A file of another program is never opened.
#[derive(Debug)]
pub(super) struct HiddenFile {
    file: File,
    /// The file in the draft.
    hidden: PathBuf,
    draft: PathBuf,
    path: PathBuf,
    /// Holds the lock of the draft.
    lock: File,
    /// Directories that were created for the file.
    _parents: ParentDirectories,
}

impl HiddenFile {
    /// Creates the missing directories above the path, and an empty hidden file.
    ///
    /// # Errors
    /// - Config: the path has no file name.
    /// - Io: the file cannot be created.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let parents = ParentDirectories::create(path)?;
        let parent = parent_of(path);
        remove_stale(path, &parent);
        let (draft, lock) = new_partial(path, &parent).map_err(|error| error.at(shown_path(path)))?;
        let hidden = draft.join(path.file_name().unwrap_or_default());
        match File::options().write(true).create_new(true).open(&hidden) {
            Ok(file) => Ok(Self { file, hidden, draft, path: path.to_path_buf(), lock, _parents: parents }),
            Err(source) => {
                remove_quietly(&draft);
                Err(Error::io("cannot write", path, source))
            }
        }
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
        let moved = match rustix::fs::renameat_with(CWD, &self.hidden, CWD, &self.path, flags) {
            Err(Errno::INVAL | Errno::NOSYS) if replace => std::fs::rename(&self.hidden, &self.path),
            // On file systems without NOREPLACE, a hard link fails if the target exists. Drop removes the
            // hidden name.
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(&self.hidden, &self.path),
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
        if is_at(&self.lock, &self.draft) {
            remove_quietly(&self.draft);
        }
    }
}

/// Checks before any work that a file can be written, and leaves nothing behind.
///
/// # Errors
/// Io: the directory of the file cannot be created or written.
pub fn check_writable(path: &Path) -> Result<()> {
    HiddenFile::create(path).map(drop)
}

/// Writes a file atomically, replacing an older one. Missing directories above it are created.
///
/// # Errors
/// Io: the file cannot be written.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write_files(&[(path, bytes)], true)
}

/// Writes several files of one directory: all of them, or none if one cannot be written.
///
/// Every file is on disk under a hidden name before the first one appears. Unless `replace` is set, none may
/// exist yet. Missing directories above the files are created.
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
        std::fs::write(dir.path().join("file"), "x").unwrap();
        let (json, page) = (dir.path().join("new/x.json"), dir.path().join("file/x.html"));
        assert!(write_files(&[(&json, b"{}"), (&page, b"<p>")], true).is_err());
        assert_eq!(names(dir.path()), ["file"]);
        std::fs::remove_file(dir.path().join("file")).unwrap();
        let json = dir.path().join("x.json");
        let page = dir.path().join("x.html");
        std::fs::write(&page, "another").unwrap();
        let error = write_files(&[(&json, b"{}"), (&page, b"<p>")], false).unwrap_err();
        assert_eq!((error.exit_code(), names(dir.path())), (6, vec!["x.html".to_string()]));
    }

    #[test]
    fn missing_directories_are_created() {
        let dir = tempfile::tempdir().unwrap();
        let (json, page) = (dir.path().join("a/x.json"), dir.path().join("a/b/x.html"));
        check_writable(&page).unwrap();
        assert_eq!(names(dir.path()), [] as [&str; 0], "a check leaves nothing behind");
        write_files(&[(&json, b"{}"), (&page, b"<p>")], false).unwrap();
        assert_eq!(
            (names(&dir.path().join("a")), std::fs::read(&page).unwrap()),
            (vec!["b".into(), "x.json".into()], b"<p>".to_vec())
        );
    }

    #[test]
    fn drafts_of_killed_writers_are_removed_and_other_entries_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let killed = HiddenFile::with(&path, b"left by a killed writer").unwrap();
        let draft = killed.draft.clone();
        // A kill releases the lock and runs no destructor.
        killed.lock.unlock().unwrap();
        std::mem::forget(killed);
        let running = HiddenFile::create(&path).unwrap();
        assert!(!draft.exists() && running.draft.exists());
        std::fs::write(dir.path().join("key"), "secret").unwrap();
        let foreign = [".x.json.partial", ".x.json.partial-1", ".x.json.partial-7-1"];
        foreign.iter().for_each(|name| std::fs::write(dir.path().join(name), "precious").unwrap());
        std::os::unix::fs::symlink("key", dir.path().join(".x.json.partial-7-0")).unwrap();
        std::fs::create_dir(dir.path().join(".x.json.partial-7-2")).unwrap();
        std::fs::write(dir.path().join(".x.json.partial-7-2/thesis.txt"), "precious").unwrap();
        replace_file(&path, b"1").unwrap();
        replace_file(&path, b"2").unwrap();
        assert!(running.draft.exists(), "a live writer holds its lock");
        drop(running);
        assert_eq!(std::fs::read(dir.path().join("key")).unwrap(), b"secret");
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        for name in foreign {
            assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), b"precious", "{name}");
        }
        let left =
            [&foreign[..2], &[".x.json.partial-7-0", foreign[2], ".x.json.partial-7-2", "key", "x.json"]].concat();
        assert_eq!(names(dir.path()), left);
    }
}

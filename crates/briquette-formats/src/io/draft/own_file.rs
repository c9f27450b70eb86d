//! A single output file at a path that a person chose.

use super::place::{absolute, lies_in};
use super::replace::{check_writable, replace_file};
use crate::io::presence;
use briquette_core::{Error, Result};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The path of a file that is written at the end of a run.
///
/// The path is free, or has an earlier file of this kind.
#[derive(Debug)]
pub struct OwnFile {
    path: PathBuf,
    /// The kind of the file, in a word.
    what: &'static str,
    /// The bytes that every file of this kind begins with.
    beginning: &'static [u8],
}

impl OwnFile {
    /// Checks before any work whether the file can be written, without changing anything.
    ///
    /// `others` are paths that are read and written, whether they exist or not. The file may not be, contain,
    /// or lie inside one of them.
    ///
    /// # Errors
    /// - Refused: the file overlaps one of `others`, or another file is at the path.
    /// - Io: the directory cannot be written.
    pub fn at(path: &Path, what: &'static str, beginning: &'static [u8], others: &[PathBuf]) -> Result<Self> {
        let resolved = resolve(path)?;
        for other in others {
            let theirs = resolve(other)?;
            if resolved.starts_with(&theirs) || theirs.starts_with(&resolved) || lies_in(&resolved, other)? {
                let other = other.display();
                let message = format!(
                    "a {what} may not be, contain or lie inside {other}, which is read or written; choose another file"
                );
                return Err(Error::refused(message).at(path.display()));
            }
        }
        let own = Self { path: path.to_path_buf(), what, beginning };
        own.check_free()?;
        own.try_writing()?;
        Ok(own)
    }

    /// Writes the file, as a whole or not at all.
    ///
    /// # Errors
    /// - Refused: another file was created at the path meanwhile.
    /// - Io: the file cannot be written.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        self.check_free()?;
        replace_file(&self.path, bytes)
    }

    /// Refuses to replace a file of another kind.
    fn check_free(&self) -> Result<()> {
        let refuse = |found: &str| {
            let what = self.what;
            let message = format!("found {found}, but only an earlier {what} is replaced; choose another file");
            Err(Error::refused(message).at(self.path.display()))
        };
        match presence::entry_metadata(&self.path)? {
            Some(metadata) if metadata.is_file() => {}
            Some(metadata) if metadata.is_dir() => return refuse("a directory"),
            Some(_) => return refuse("something other than a regular file"),
            None => return Ok(()),
        }
        let mut start = vec![0; self.beginning.len()];
        let read = File::open(&self.path).and_then(|mut file| file.read_exact(&mut start));
        match read {
            Ok(()) if start == self.beginning => Ok(()),
            Err(source) if source.kind() != ErrorKind::UnexpectedEof => {
                Err(Error::io("cannot read", &self.path, source))
            }
            _ => refuse("another file"),
        }
    }

    /// Creates the draft of the later rename, and removes it again.
    fn try_writing(&self) -> Result<()> {
        check_writable(&self.path).map_err(|error| {
            let message = format!("{}; choose a file in a writable directory", error.message);
            Error { message, ..error }
        })
    }
}

/// Resolves the links of a path, up to its first component that does not exist.
fn resolve(path: &Path) -> Result<PathBuf> {
    let path = absolute(path)?;
    let Some((above, there)) = presence::resolved_ancestor(&path)? else { return Ok(path) };
    // Joining an empty path would add a slash, which marks a directory.
    let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
    Ok(if rest.as_os_str().is_empty() { there } else { there.join(rest) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::ErrorKind;

    const BEGINNING: &[u8] = b"{\"ours\":";

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_an_earlier_file_of_its_kind_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it.json");
        let at = || OwnFile::at(&path, "trace", BEGINNING, &[]);
        let own = at().unwrap();
        assert_eq!(names(dir.path()), [] as [&str; 0], "no file exists before the write");
        own.write(b"{\"ours\":1}").unwrap();
        at().unwrap().write(b"{\"ours\":2}").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"{\"ours\":2}");
        for foreign in ["", "{\"our", "{\"theirs\":1}"] {
            std::fs::write(&path, foreign).unwrap();
            for error in [at().unwrap_err(), own.write(b"{\"ours\":3}").unwrap_err()] {
                assert!(error.kind == ErrorKind::Refused && error.message.contains("another file"), "{error}");
            }
            assert_eq!(std::fs::read(&path).unwrap(), foreign.as_bytes());
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        assert!(at().unwrap_err().message.contains("something other than a regular file"));
        assert_eq!(names(dir.path()), ["it.json"]);
    }

    #[test]
    fn paths_that_overlap_inputs_or_outputs_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path("model/sub")).unwrap();
        std::fs::write(path("weights"), "x").unwrap();
        std::os::unix::fs::symlink(path("model"), path("link")).unwrap();
        let others = [path("model"), path("weights"), path("out"), path("link/../new/out")];
        for name in [
            "model",
            "model/t",
            "model/sub/t",
            "link/t",
            "model/sub/../t",
            "weights",
            "out",
            "out/t",
            "absent/../out/t",
            "new",
        ] {
            let error = OwnFile::at(&path(name), "trace", BEGINNING, &others).unwrap_err();
            assert!(
                error.kind == ErrorKind::Refused && error.message.contains("choose another file"),
                "{name}: {error}"
            );
        }
        OwnFile::at(&path("t"), "trace", BEGINNING, &others).unwrap();
        OwnFile::at(&path("model/../outer"), "trace", BEGINNING, &others).unwrap();
    }

    #[test]
    fn unwritable_paths_are_refused_before_writing() {
        let dir = tempfile::tempdir().unwrap();
        let kind = |path: &Path| OwnFile::at(path, "trace", BEGINNING, &[]).unwrap_err().kind;
        std::fs::write(dir.path().join("file"), "x").unwrap();
        assert_eq!(kind(&dir.path().join("file/t")), ErrorKind::Io);
        assert_eq!(kind(&dir.path().join("n".repeat(256))), ErrorKind::Io);
        OwnFile::at(&dir.path().join("absent/t"), "trace", BEGINNING, &[]).unwrap();
        assert_eq!(names(dir.path()), ["file"], "the check leaves nothing behind");
        assert_eq!(kind(dir.path()), ErrorKind::Refused);
        #[cfg(target_os = "linux")]
        assert_eq!(kind(Path::new("/proc/t.json")), ErrorKind::Io);
    }
}

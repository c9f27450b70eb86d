//! Temporary files for data that does not fit in memory.

use crate::InputFile;
use briquette_core::{Error, Result};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A nameless file, which disappears when it is dropped or when the program ends in any way.
#[derive(Debug)]
pub struct ScratchFile {
    file: File,
    /// The directory that the file is in.
    directory: PathBuf,
}

impl ScratchFile {
    /// Creates an empty file on the file system of a directory.
    ///
    /// # Errors
    /// Io: the file cannot be created.
    pub fn create_in(directory: &Path) -> Result<Self> {
        static N_MADE: AtomicU64 = AtomicU64::new(0);
        let name = format!(".briquette-{}-{}", std::process::id(), N_MADE.fetch_add(1, Ordering::Relaxed));
        let path = directory.join(name);
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = made.map_err(|source| Error::io("cannot create", &path, source))?;
        std::fs::remove_file(&path).map_err(|source| Error::io("cannot remove", &path, source))?;
        Ok(Self { file, directory: directory.to_path_buf() })
    }

    /// Returns the file for reading, under a name for messages.
    ///
    /// # Errors
    /// Io: the file cannot be read.
    pub fn into_input(self, name: &Path) -> Result<InputFile> {
        InputFile::of_open(self.file, name)
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// Io: the file cannot be written.
    pub fn write_at(&self, bytes: &[u8], start: u64) -> Result<()> {
        let failed = |source| Error::io("cannot write a scratch file in", &self.directory, source);
        self.file.write_all_at(bytes, start).map_err(failed)
    }

    /// Reads bytes at an offset.
    ///
    /// # Errors
    /// Io: the file cannot be read.
    pub fn read_at(&self, bytes: &mut [u8], start: u64) -> Result<()> {
        let failed = |source| Error::io("cannot read a scratch file in", &self.directory, source);
        self.file.read_exact_at(bytes, start).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_files_read_back_and_have_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = ScratchFile::create_in(directory.path()).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        file.write_at(b"later", 7).unwrap();
        file.write_at(b"first", 0).unwrap();
        let mut found = [0; 5];
        file.read_at(&mut found, 7).unwrap();
        assert_eq!(&found, b"later");
        assert!(file.read_at(&mut found, 9).is_err(), "beyond the end");
        assert!(ScratchFile::create_in(&directory.path().join("none")).is_err());
    }
}

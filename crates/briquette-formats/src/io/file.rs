//! Input files: regular files that are read at explicit offsets and checked for changes at the end.

use crate::io::ahead::{self, FileId};
use crate::io::crc::Sum;
use crate::io::presence;
use briquette_core::{Error, Result};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The identity of a file and the state of its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Last change of the contents, in nanoseconds. Programs can set it to any time.
    pub mtime_ns: i128,
    /// Last change of contents or metadata, in nanoseconds. Only the system sets it.
    pub ctime_ns: i128,
}

impl Identity {
    fn of(metadata: &std::fs::Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size: metadata.len(),
            mtime_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            ctime_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct InputFile {
    path: PathBuf,
    file: File,
    id: FileId,
    identity: Identity,
    /// Expected checksums of ranges, by their start; checked while the ranges are read.
    sums: Vec<Sum>,
}

impl InputFile {
    /// Opens a regular file. Symbolic links are followed, as files in the Hugging Face cache are links.
    ///
    /// # Errors
    /// - Input: the path is not a regular file, or is a broken link.
    /// - Io: the file is missing or cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        // A FIFO or a device would block or never end. So look before opening, and open without blocking.
        let metadata = presence::metadata(path)?.ok_or_else(|| missing(path))?;
        if !metadata.is_file() {
            let found = if metadata.is_dir() { "a directory" } else { "a pipe, socket or device" };
            return Err(Error::input(format!("found {found}, expected a regular file")).at(path.display()));
        }
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|source| open_error(path, source))?;
        Self::of_open(file, path)
    }

    /// Takes an open file, under a path for messages.
    pub(crate) fn of_open(file: File, path: &Path) -> Result<Self> {
        let metadata = file.metadata().map_err(|source| Error::io("cannot read", path, source))?;
        if !metadata.is_file() {
            return Err(Error::input("was replaced by something other than a file while it was being opened")
                .at(path.display()));
        }
        let (path, identity) = (path.to_path_buf(), Identity::of(&metadata));
        Ok(Self { path, identity, file, id: FileId::new(), sums: Vec::new() })
    }

    /// Adds checksums of ranges that do not overlap. They are checked while the ranges are read.
    pub fn with_sums(self, mut sums: Vec<Sum>) -> Self {
        sums.sort_by_key(|sum| sum.span().start);
        Self { sums, ..self }
    }

    /// Returns the checksum of the range that starts at `start`.
    pub fn sum_at(&self, start: u64) -> Option<&Sum> {
        let found = self.sums.binary_search_by_key(&start, |sum| sum.span().start);
        found.ok().and_then(|place| self.sums.get(place))
    }

    /// Returns the path that the file was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns device, inode, size and times when the file was opened.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the size of the file in bytes.
    pub fn len(&self) -> u64 {
        self.identity.size
    }

    /// Returns whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.identity.size == 0
    }

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// - Input: the file became shorter.
    /// - Input: a range with a checksum is now read completely, and its checksum differs.
    /// - Io: the file cannot be read.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let read = |offset: u64, out: &mut [u8]| self.file.read_exact_at(out, offset);
        ahead::read(self.id, offset, out, self.len(), read).map_err(|source| match source.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Error::input("ends before its declared data; it was cut short while being read").at(self.path.display())
            }
            _ => Error::io("cannot read", &self.path, source),
        })?;
        let end = offset + out.len() as u64;
        let first = self.sums.partition_point(|sum| sum.span().end <= offset);
        for sum in self.sums.iter().skip(first).take_while(|sum| sum.span().start < end) {
            let (from, to) = (sum.span().start.max(offset), sum.span().end.min(end));
            let bytes = &out[(from - offset) as usize..(to - offset) as usize];
            sum.add(from, bytes).map_err(|error| error.at(self.path.display()))?;
        }
        Ok(())
    }

    /// Reads the rest of every range that was read in part, and so verifies its checksum.
    ///
    /// # Errors
    /// See [`read_at`](Self::read_at).
    pub fn check_sums(&self) -> Result<()> {
        self.sums.iter().filter(|sum| sum.is_begun()).try_for_each(|sum| self.read_rest(sum))
    }

    /// Reads the rest of a range, and so verifies its checksum.
    ///
    /// # Errors
    /// See [`read_at`](Self::read_at).
    pub fn read_rest(&self, sum: &Sum) -> Result<()> {
        const PIECE: u64 = 1 << 20;
        let mut buffer = Vec::new();
        for gap in sum.gaps() {
            for start in (gap.start..gap.end).step_by(PIECE as usize) {
                buffer.resize((gap.end - start).min(PIECE) as usize, 0);
                self.read_at(start, &mut buffer)?;
            }
        }
        sum.compare().map_err(|error| error.at(self.path.display()))
    }

    /// Reads the whole of a small file.
    ///
    /// # Errors
    /// Input: the file is larger than `limit`. Also see [`read_at`](Self::read_at).
    pub fn read_all(&self, limit: u64) -> Result<Vec<u8>> {
        if self.len() > limit {
            let message =
                format!("found {} bytes, expected at most {limit}; this is not the expected file", self.len());
            return Err(Error::input(message).at(self.path.display()));
        }
        let mut bytes = vec![0; self.len() as usize];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Checks that the file is still the one that was opened.
    ///
    /// # Errors
    /// - Input: the file was changed, replaced or removed.
    /// - Io: the file cannot be accessed.
    pub fn check_unchanged(&self) -> Result<()> {
        let open = self.file.metadata().map_err(|source| Error::io("cannot access", &self.path, source))?;
        let there = presence::metadata(&self.path)?;
        let is_same = |found: &std::fs::Metadata| Identity::of(found) == self.identity;
        if is_same(&open) && there.is_some_and(|found| is_same(&found)) {
            Ok(())
        } else {
            Err(Error::input("was changed while being read; nothing was written, run again").at(self.path.display()))
        }
    }
}

fn open_error(path: &Path, source: std::io::Error) -> Error {
    match source.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => missing(path),
        _ => Error::io("cannot open", path, source),
    }
}

fn missing(path: &Path) -> Error {
    Error::missing(path, std::io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::ErrorKind;

    #[test]
    fn pipes_directories_and_missing_files_are_refused_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        for path in [pipe.as_path(), dir.path(), Path::new("/dev/zero")] {
            assert_eq!(InputFile::open(path).unwrap_err().kind, ErrorKind::Input, "{}", path.display());
        }
        for absent in [dir.path().join("absent"), pipe.join("absent")] {
            let error = InputFile::open(&absent).unwrap_err();
            assert!(error.kind == ErrorKind::Io && error.is_bad_input() && error.exit_code() == 4, "{error}");
            let source = error.source.unwrap();
            assert!(source.downcast_ref::<std::io::Error>().is_some(), "{source}");
        }
    }

    #[test]
    fn a_changed_file_with_its_old_mtime_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"abc").unwrap();
        let file = InputFile::open(&path).unwrap();
        // Longer than a tick of the clock of file timestamps.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let other = File::options().write(true).open(&path).unwrap();
        other.write_all_at(b"xyz", 0).unwrap();
        let before = std::time::Duration::from_nanos(file.identity().mtime_ns as u64);
        other.set_modified(std::time::UNIX_EPOCH + before).unwrap();
        let now = Identity::of(&std::fs::metadata(&path).unwrap());
        assert_eq!((now.size, now.mtime_ns), (file.identity().size, file.identity().mtime_ns));
        assert_eq!(file.check_unchanged().unwrap_err().kind, ErrorKind::Input);
    }

    #[test]
    fn a_changed_or_replaced_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"abc").unwrap();
        let file = InputFile::open(&path).unwrap();
        file.check_unchanged().unwrap();
        std::fs::write(&path, b"abcd").unwrap();
        assert_eq!(file.check_unchanged().unwrap_err().kind, ErrorKind::Input);
        let file = InputFile::open(&path).unwrap();
        std::fs::write(dir.path().join("b"), b"abcd").unwrap();
        std::fs::rename(dir.path().join("b"), &path).unwrap();
        assert!(file.check_unchanged().is_err());
        std::fs::write(&path, b"").unwrap();
        file.read_at(0, &mut [0; 4]).unwrap();
    }
}

//! Input files: regular ones only, read at explicit offsets, and known to be the same at the end as at the start.

use crate::io::ahead::{self, FileId};
use crate::io::crc::Sum;
use crate::io::presence;
use briquette_core::{Error, Result};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Last change of what is in it, in nanoseconds. Any program can set it to any time.
    pub mtime_ns: i128,
    /// Last change of what is in it or known of it, in nanoseconds. Only the system sets it.
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
    /// What stretches of it must sum up to, by their start; checked while they are read.
    sums: Vec<Sum>,
}

impl InputFile {
    /// Opens a regular file; symbolic links are followed, as the Hugging Face cache is made of them.
    ///
    /// # Errors
    /// Input if it is no regular file or the path is a link to nothing; Io if it is missing or cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        // A FIFO or a device would block or never end: look before opening, and open so that nothing blocks.
        let metadata = presence::metadata(path)?.ok_or_else(|| missing(path))?;
        if !metadata.is_file() {
            let found = if metadata.is_dir() { "a directory" } else { "a pipe, socket or device" };
            return Err(Error::input(format!("found {found}, expected a regular file")).at(path.display()));
        }
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|source| open_error(path, source))?;
        let metadata = file.metadata().map_err(|source| Error::io("cannot read", path, source))?;
        if !metadata.is_file() {
            return Err(Error::input("changed into something that is no file while opening it").at(path.display()));
        }
        let (path, identity) = (path.to_path_buf(), Identity::of(&metadata));
        Ok(Self { path, identity, file, id: FileId::new(), sums: Vec::new() })
    }

    /// The same file, of which some stretches that do not overlap are held against their sums while they are read.
    pub fn with_sums(self, mut sums: Vec<Sum>) -> Self {
        sums.sort_by_key(|sum| sum.span().start);
        Self { sums, ..self }
    }

    /// The sum of the stretch that starts here.
    pub fn sum_at(&self, start: u64) -> Option<&Sum> {
        let found = self.sums.binary_search_by_key(&start, |sum| sum.span().start);
        found.ok().and_then(|place| self.sums.get(place))
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device, inode, size and time as found when opening.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Bytes in the file.
    pub fn len(&self) -> u64 {
        self.identity.size
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.identity.size == 0
    }

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// Input where the file has become shorter, or where this was the last of a stretch that has a sum and does not add
    /// up to it; Io where it cannot be read.
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

    /// Reads what is missing of every stretch that was read in part, so that its sum can be told.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn check_sums(&self) -> Result<()> {
        self.sums.iter().filter(|sum| sum.is_begun()).try_for_each(|sum| self.read_rest(sum))
    }

    /// Reads what was not read yet of a stretch, and so checks its sum.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
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

    /// The whole of a small file.
    ///
    /// # Errors
    /// Input where it is larger than `limit`, and as [`read_at`](Self::read_at).
    pub fn read_all(&self, limit: u64) -> Result<Vec<u8>> {
        if self.len() > limit {
            let message =
                format!("found {} bytes, expected at most {limit}; this is not the file it should be", self.len());
            return Err(Error::input(message).at(self.path.display()));
        }
        let mut bytes = vec![0; self.len() as usize];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Refuses where the file is no longer the one that was opened.
    ///
    /// # Errors
    /// Input if it was changed, replaced or removed; Io if it cannot be looked at.
    pub fn check_unchanged(&self) -> Result<()> {
        let open = self.file.metadata().map_err(|source| Error::io("cannot look at", &self.path, source))?;
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
    fn a_pipe_a_directory_and_nothing_are_refused_without_blocking() {
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
    fn a_file_that_was_changed_and_given_its_old_time_back_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"abc").unwrap();
        let file = InputFile::open(&path).unwrap();
        // Longer than a tick of the clock that file systems take their times from.
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
    fn a_file_that_was_changed_or_replaced_is_noticed() {
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

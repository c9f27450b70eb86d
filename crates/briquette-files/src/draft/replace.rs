//! Single files that are replaced whole, or grow by whole lines.

use super::partial::PARTIAL;
use crate::paths::parent_of;
use briquette_core::{Error, Result};
use std::fs::File;
use std::path::{Path, PathBuf};

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

/// The hidden file that is written first, beside `path`. It has one name for all runs, so that what a killed run left is overwritten.
pub(super) fn partial_of(path: &Path) -> PathBuf {
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
    sync_directory(&parent_of(path))
}

/// Waits until files that were created, renamed or removed in a directory are so on disk.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|source| Error::io("cannot sync the directory", directory, source))
}

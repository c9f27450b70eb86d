//! Files that tests write many times.

use std::path::Path;

/// Writes a file anew. Where a file is cut and written again, some file systems wait for the disk.
pub(crate) fn replace(path: &Path, bytes: &[u8]) {
    let _ = std::fs::remove_file(path);
    std::fs::write(path, bytes).unwrap();
}

//! The small files of a model's directory.
//!
//! No file outside of the directory is read. Files that Briquette wrote are compared with their SHA-256.

use crate::io::paths::parent_of;
use crate::io::{InputFile, contained, presence, sums};
use briquette_core::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the manifest. A directory with a manifest was written by Briquette.
pub const MANIFEST: &str = "briquette.json";

/// The name of the file that marks an ONNX output of Briquette.
pub const ONNX_MARK: &str = "briquette-onnx.json";

/// The name of the file with the architecture and sizes of a model, as in transformers.
pub const CONFIG: &str = "config.json";

/// A model's directory.
#[derive(Debug, Clone)]
pub struct ModelDir {
    path: PathBuf,
    /// The SHA-256 of each file, if Briquette wrote the directory.
    sums: Arc<BTreeMap<String, String>>,
}

impl ModelDir {
    /// Opens a model's directory.
    ///
    /// If Briquette wrote it, `SHA256SUMS` is read too. An output that is still being written has none yet.
    ///
    /// # Errors
    /// - Input: the sums are damaged or lead out of the directory.
    /// - Io: the sums cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let here = Self { path: path.to_path_buf(), sums: Arc::default() };
        if !here.has(MANIFEST)? || !here.has(sums::FILE_NAME)? {
            return Ok(here);
        }
        let sums = sums::read(&here.file(Path::new(sums::FILE_NAME))?)?;
        Ok(Self { sums: Arc::new(sums), ..here })
    }

    /// Returns the directory of a weight file. No checksums are verified.
    pub fn around(file: &Path) -> Self {
        Self { path: parent_of(file), sums: Arc::default() }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the directory has a file of this name.
    ///
    /// # Errors
    /// See [`presence::exists`].
    pub fn has(&self, name: &str) -> Result<bool> {
        presence::exists(&self.path.join(name))
    }

    /// Opens a file of the directory.
    ///
    /// # Errors
    /// See [`contained::open`].
    pub fn file(&self, name: &Path) -> Result<InputFile> {
        contained::open(&self.path, name)
    }

    /// Reads a small file of the directory; `None` if there is no such file.
    ///
    /// # Errors
    /// - Input: the file leads out of the directory, is larger than `limit`, or is a broken link.
    /// - Input: the file differs from what Briquette wrote.
    /// - Io: the file cannot be read.
    pub fn read(&self, name: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
        if !presence::exists(&self.path.join(name))? {
            return Ok(None);
        }
        let bytes = self.file(name)?.read_all(limit)?;
        self.check(name, || sums::sha256_of_bytes(&bytes))?;
        Ok(Some(bytes))
    }

    /// Compares the SHA-256 of a file with `SHA256SUMS`. Files that are not listed there are accepted.
    ///
    /// # Errors
    /// Input: the SHA-256 differs. The error names the file.
    pub fn check(&self, name: &Path, found: impl FnOnce() -> String) -> Result<()> {
        let Some(expected) = name.to_str().and_then(|name| self.sums.get(name)) else { return Ok(()) };
        match found() {
            found if found == *expected => Ok(()),
            found => Err(sums::differs(&found, expected).at(self.path.join(name).display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_briquette_are_compared_with_their_sums() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let read = |name: &str| ModelDir::open(dir.path()).unwrap().read(Path::new(name), 100);
        write("config.json", "{}");
        write("SHA256SUMS", &sums::to_lines(&BTreeMap::from([("config.json".into(), sums::sha256_of_bytes(b"{}"))])));
        write("config.json", "{ }");
        assert!(read("config.json").is_ok(), "SHA256SUMS without a manifest is ignored");
        write("briquette.json", "{}");
        let error = read("config.json").unwrap_err().to_string();
        assert!(error.contains("config.json: found SHA-256") && error.contains("make the output again"), "{error}");
        write("config.json", "{}");
        assert_eq!(read("config.json").unwrap(), Some(b"{}".to_vec()));
        assert_eq!(read("absent.json").unwrap(), None);
        write("later.json", "1");
        assert_eq!(read("later.json").unwrap(), Some(b"1".to_vec()));
    }
}

//! A file that a command writes at a path that a person chose.

use crate::report::SensitivityReport;
use crate::report::html::PAGE_MARK;
use briquette_core::{Error, Remedy, Result, shown_path};
#[cfg(feature = "model")]
use briquette_formats::input_stats::StatisticsFile;
use briquette_formats::{Checkpoint, InputFile, TensorSource, draft, presence};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The beginning of a page in which its mark is.
const N_PAGE_BYTES: usize = 512;

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputFile {
    /// Statistics of layer inputs.
    #[cfg(feature = "model")]
    Statistics,
    /// Sensitivities of tensors.
    Sensitivity,
    /// A page.
    Page,
}

impl OutputFile {
    /// Checks before any work that the file can be written at a path.
    ///
    /// `inputs` are read besides the model. With `may_replace`, an earlier file of this kind is replaced, and no other.
    ///
    /// # Errors
    /// - Refused: the path is an input, is among the files of a model, or has another file.
    /// - Io: the directory cannot be written.
    pub(crate) fn check(self, path: &Path, model: &Checkpoint, inputs: &[&Path], may_replace: bool) -> Result<()> {
        let files = model.files();
        let all: Vec<&Path> = files.iter().map(|file| file.path()).chain(inputs.iter().copied()).collect();
        draft::check_apart(path, &all)?;
        let refused = |message: &str| Error::refused(message).at(shown_path(path));
        if let Some(metadata) = presence::entry_metadata(path)? {
            if !may_replace {
                return Err(refused("exists already; choose another name").with_remedy(Remedy::Replace));
            }
            if !metadata.is_file() || !self.is_at(path) {
                let name = self.name();
                return Err(refused(&format!(
                    "exists and is not {name} of briquette; choose another name, or remove it yourself"
                )));
            }
        }
        let parent = presence::resolved(parent_of(path))?;
        let directory = model.directory();
        if presence::is_directory(model.path())? && parent.is_some() && parent == presence::resolved(&directory)? {
            return Err(refused(
                "is in the model's directory, where it would be read as weights; choose another directory",
            ));
        }
        draft::check_writable(path)
    }

    const fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "model")]
            Self::Statistics => "a file of statistics",
            Self::Sensitivity => "a file of sensitivities",
            Self::Page => "a page",
        }
    }

    /// Returns whether a file of this kind is at a path.
    fn is_at(self, path: &Path) -> bool {
        match self {
            #[cfg(feature = "model")]
            Self::Statistics => StatisticsFile::is_at(path),
            Self::Sensitivity => {
                #[derive(Deserialize)]
                struct Mark {
                    format: String,
                }
                let bytes =
                    InputFile::open(path).and_then(|file| file.read_all(briquette_formats::limits::MAX_JSON_BYTES));
                let mark = bytes.ok().and_then(|bytes| serde_json::from_slice::<Mark>(&bytes).ok());
                mark.is_some_and(|mark| mark.format == SensitivityReport::FORMAT)
            }
            Self::Page => {
                let mut start = Vec::new();
                let read = File::open(path).and_then(|file| file.take(N_PAGE_BYTES as u64).read_to_end(&mut start));
                read.is_ok() && String::from_utf8_lossy(&start).contains(PAGE_MARK)
            }
        }
    }
}

/// Returns the directory of a path.
pub(crate) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

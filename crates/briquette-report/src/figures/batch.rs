//! What became of each job, and of the batch.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobStatus {
    /// Its output is there.
    Done,
    /// Its output was there already, whole and from the same input and recipe.
    Skipped,
    /// It has an error.
    Failed,
}

/// One line of a batch's table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobResult {
    /// The job's name.
    pub job: String,
    /// What became of it.
    pub status: JobStatus,
    /// The directory it writes; none where its recipe does not say.
    pub output: Option<PathBuf>,
    /// Bytes of the weight files before.
    pub before_bytes: Option<u64>,
    /// Bytes of the weight files after.
    pub after_bytes: Option<u64>,
    /// Before over after.
    pub ratio: Option<f64>,
    /// What its evaluation found; none of what is no number.
    pub metrics: BTreeMap<String, Option<f64>>,
    /// Why it left bytes of its budget unused, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Seconds it took.
    pub seconds: f64,
    /// Seconds it took when it was done, where it was skipped.
    pub seconds_before: Option<f64>,
    /// The job of this run whose training it took, as it is the same.
    pub trained_with: Option<String>,
    /// Why a resumed batch did it again.
    pub redone: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// The exit code that this error would have had by itself.
    pub exit_code: Option<u8>,
}

/// A batch, all jobs of this shard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchReport {
    /// The jobs file.
    pub jobs_file: PathBuf,
    /// The journal.
    pub journal: PathBuf,
    /// The page of all jobs.
    pub page: PathBuf,
    /// Which shard this was, where there are several.
    pub shard: Option<String>,
    /// Jobs that were done now.
    pub n_done: usize,
    /// Jobs that were done before.
    pub n_skipped: usize,
    /// Jobs that failed.
    pub n_failed: usize,
    /// Seconds that this run took by the wall clock; of a sweep with the sensitivities that it found first.
    pub seconds: f64,
    /// Every job, in order.
    pub jobs: Vec<JobResult>,
    /// Outputs that were made elsewhere, to be shown beside them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<OtherOutput>,
}

/// An output that no job of the batch made, to compare its jobs with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OtherOutput {
    /// What it is called.
    pub name: String,
    /// Its directory, with a page of its own.
    pub output: PathBuf,
    /// Bytes of its weight files.
    pub after_bytes: u64,
    /// What its evaluation found; none of what is no number.
    pub metrics: BTreeMap<String, Option<f64>>,
}

/// Whether all jobs of a batch are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchStatus {
    /// They are.
    Complete,
    /// Some or all failed.
    Partly,
}

impl JobResult {
    /// Whether it made nothing.
    pub(crate) fn is_failed(&self) -> bool {
        self.status == JobStatus::Failed
    }

    /// The directory that has what it made; none where it failed.
    pub(crate) fn made(&self) -> Option<&Path> {
        self.output.as_deref().filter(|_| !self.is_failed())
    }
}

impl BatchReport {
    /// Whether all jobs are done.
    pub fn status(&self) -> BatchStatus {
        if self.n_failed == 0 { BatchStatus::Complete } else { BatchStatus::Partly }
    }
}

impl BatchStatus {
    /// The exit code of the binary.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Complete => 0,
            Self::Partly => 3,
        }
    }
}

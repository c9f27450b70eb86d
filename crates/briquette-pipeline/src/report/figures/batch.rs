//! Results of the jobs of a batch.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The status of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobStatus {
    /// The job finished.
    Done,
    /// The output already existed, complete and with the same inputs and recipe.
    Skipped,
    /// The job failed.
    Failed,
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobResult {
    /// The name of the job.
    pub job: String,
    /// The status.
    pub status: JobStatus,
    /// The output directory; none if the recipe does not show it.
    pub output: Option<PathBuf>,
    /// Bytes of the weight files before.
    pub before_bytes: Option<u64>,
    /// Bytes of the weight files after.
    pub after_bytes: Option<u64>,
    /// Bytes before over bytes after.
    pub ratio: Option<f64>,
    /// Metrics of the evaluation; none for values that are not finite.
    pub metrics: BTreeMap<String, Option<f64>>,
    /// Why bytes of the budget are unused, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Duration of the original run in seconds, if the job was skipped.
    pub seconds_before: Option<f64>,
    /// The job of this run whose identical training was reused.
    pub trained_with: Option<String>,
    /// Why a resumed batch ran the job again.
    pub redone: Option<String>,
    /// The error message.
    pub error: Option<String>,
    /// The exit code of the error.
    pub exit_code: Option<u8>,
}

/// The results of a batch, with all jobs of this shard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchReport {
    /// The jobs file.
    pub jobs_file: PathBuf,
    /// The journal.
    pub journal: PathBuf,
    /// The HTML report of all jobs.
    pub page: PathBuf,
    /// The shard, if there are several.
    pub shard: Option<String>,
    /// Number of jobs that finished in this run.
    pub n_done: usize,
    /// Number of jobs that had finished before.
    pub n_skipped: usize,
    /// Number of failed jobs.
    pub n_failed: usize,
    /// Wall-clock seconds of this run; a sweep includes the measurement of sensitivities.
    pub seconds: f64,
    /// All jobs, in order.
    pub jobs: Vec<JobResult>,
    /// Existing outputs of other runs, for comparison.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<OtherOutput>,
}

/// An existing output of another run, for comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OtherOutput {
    /// The name.
    pub name: String,
    /// The directory, which has its own report.
    pub output: PathBuf,
    /// Bytes of the weight files.
    pub after_bytes: u64,
    /// Metrics of the evaluation; none for values that are not finite.
    pub metrics: BTreeMap<String, Option<f64>>,
}

/// Whether all jobs of a batch finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchStatus {
    /// All jobs finished.
    Complete,
    /// At least one job failed.
    Partly,
}

impl JobResult {
    /// Returns whether the job failed.
    pub(crate) fn is_failed(&self) -> bool {
        self.status == JobStatus::Failed
    }

    /// Returns the output directory; `None` if the job failed.
    pub(crate) fn made(&self) -> Option<&Path> {
        self.output.as_deref().filter(|_| !self.is_failed())
    }
}

impl BatchReport {
    /// Returns whether all jobs finished.
    pub fn status(&self) -> BatchStatus {
        if self.n_failed == 0 { BatchStatus::Complete } else { BatchStatus::Partly }
    }
}

impl BatchStatus {
    /// Returns the exit code of the command.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Complete => 0,
            Self::Partly => 3,
        }
    }
}

//! Flags of every command.

use super::values::n_threads;
use briquette::pipeline::Trace;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;

/// Flags of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// Number of worker threads; 0 for one per core
    #[arg(long, global = true, default_value_t = 0, value_name = "N", value_parser = n_threads(), help_heading = "Common")]
    pub(crate) threads: usize,
    /// Print one JSON document instead of text, also for errors; not for completions and the manual page
    #[arg(long, global = true, help_heading = "Common")]
    pub(crate) json: bool,
    /// Print only errors
    #[arg(long, short, global = true, help_heading = "Common")]
    pub(crate) quiet: bool,
    /// Write a Chrome trace of phases and memory, for about:tracing or Perfetto; replaces only an earlier trace
    #[arg(long, global = true, value_name = "FILE", help_heading = "Common")]
    pub(crate) trace: Option<PathBuf>,
    /// The trace to record into
    #[arg(skip)]
    pub(crate) tracer: Option<Arc<Trace>>,
    /// Device to run models on: auto, cpu, cuda or cuda:N
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE", help_heading = "Common")]
    pub(crate) device: String,
}

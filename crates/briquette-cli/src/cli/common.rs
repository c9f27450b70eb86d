//! Flags of every command.

use super::values::n_threads;
use briquette::pipeline::Trace;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;

/// Flags of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// Worker threads; 0 means one for each core
    #[arg(long, global = true, default_value_t = 0, value_name = "N", value_parser = n_threads(), help_heading = "Common")]
    pub(crate) threads: usize,
    /// Print one JSON document on stdout instead of text, also of a failure; completions and the manual page stay text
    #[arg(long, global = true, help_heading = "Common")]
    pub(crate) json: bool,
    /// Print nothing but errors
    #[arg(long, short, global = true, help_heading = "Common")]
    pub(crate) quiet: bool,
    /// Write a Chrome trace of the phases and their memory, for about:tracing or Perfetto; replaces an earlier trace and no other file
    #[arg(long, global = true, value_name = "FILE", help_heading = "Common")]
    pub(crate) trace: Option<PathBuf>,
    /// What goes into it
    #[arg(skip)]
    pub(crate) tracer: Option<Arc<Trace>>,
    /// Where models run: auto, cpu, cuda or cuda:N
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE", help_heading = "Common")]
    pub(crate) device: String,
}

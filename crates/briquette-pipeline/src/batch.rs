//! Batches: many jobs from one file, run one after another.
//!
//! A later run resumes from the journal of a batch.
//!
//! A jobs file has `[[job]]` tables, a `[matrix]` that multiplies a `[base]`, or both. A failed job does not
//! affect the others. One machine runs all jobs, or each of n machines runs every n-th job ([`Shard`]). A page
//! shows the results of all jobs.
//!
//! A matrix takes little memory: its recipes are created on demand. A training that several jobs share runs
//! once.
//!
//! ```no_run
//! use briquette_pipeline::RunOptions;
//! use briquette_pipeline::batch::{self, BatchOptions, Jobs};
//!
//! let jobs = Jobs::from_file("configs/digits-sweep.toml".as_ref())?;
//! let how = BatchOptions { resume: true, ..BatchOptions::default() };
//! let report = batch::run(&jobs, &how, &RunOptions::default(), &mut |result| println!("{}", result.job))?;
//! assert_eq!(report.n_failed, 0);
//! # Ok::<(), briquette_core::Error>(())
//! ```
//!
//! Non-goals: running several jobs at the same time on one machine (each uses all cores), and starting
//! machines.

mod files;
mod journal;
mod plan;
mod run;
mod shard;
mod shared;

pub use briquette_recipe::jobs::{Document, Job, Jobs, raw, schema};
pub use plan::{JobPlan, plan};
pub use run::{BatchOptions, run};
pub(crate) use run::{BatchStart, run_locked};
pub use shard::Shard;
use std::path::PathBuf;

/// Returns every path that jobs may read or write, except the own files of shards.
pub fn touched(jobs: &Jobs) -> Vec<PathBuf> {
    let mut touched = jobs.touched();
    if let Ok(files::BatchFiles { journal, page, shared, .. }) =
        files::BatchFiles::of(&jobs.path, &jobs.directory, Shard::default())
    {
        touched.extend([journal, page, shared]);
    }
    touched.into_iter().collect()
}

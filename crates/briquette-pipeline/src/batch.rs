//! Batches: many jobs from one file, one after another, with a journal that a later run can go on from.
//!
//! A jobs file is `[[job]]` tables, a `[matrix]` that multiplies a `[base]`, or both. A job that fails leaves the
//! others alone. One machine runs all jobs, or each of n machines every n-th ([`Shard`]). A page shows what became of all of them.
//!
//! What a matrix makes takes little room: a recipe is made when it is asked for. Trainings that several jobs have in common are done once.
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
//! Non-goals: running jobs at the same time on one machine (each uses every core), and starting machines.

mod files;
mod journal;
mod plan;
mod run;
mod shard;
mod shared;

pub use briquette_recipe::jobs::{Document, Job, Jobs, raw, schema};
pub use plan::{JobPlan, plan};
pub(crate) use run::run_since;
pub use run::{BatchOptions, run};
pub use shard::Shard;
use std::path::PathBuf;

/// Everything that running jobs may read or write, but for what shards call their own.
pub fn touched(jobs: &Jobs) -> Vec<PathBuf> {
    let mut touched = jobs.touched();
    if let Ok(files::BatchFiles { journal, page, shared, .. }) =
        files::BatchFiles::of(&jobs.path, &jobs.directory, Shard::default())
    {
        touched.extend([journal, page, shared]);
    }
    touched.into_iter().collect()
}

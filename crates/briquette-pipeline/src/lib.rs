//! From a recipe to a verified directory and a report: plan, survey, encode, verify, publish.
//!
//! ```no_run
//! use briquette_pipeline::{Recipe, RunOptions, run};
//!
//! let recipe = Recipe::from_file("recipe.toml".as_ref())?;
//! let report = run(&recipe, &RunOptions::default())?;
//! println!("{} -> {} bytes", report.before.file_bytes, report.after.file_bytes);
//! # Ok::<(), briquette_core::Error>(())
//! ```
//!
//! Non-goals: printing, and knowing how a format lies on disk.

pub mod batch;
mod chain;
mod compress;
mod contents;
pub mod context;
pub mod diff;
pub mod distill;
pub mod encode;
pub mod evaluate;
pub mod factorize;
#[cfg(feature = "model")]
mod half;
mod identity;
pub mod inspect;
pub mod layout;
pub mod memory;
pub mod open;
pub mod piece;
pub mod plan;
pub mod report;
pub mod role;
pub mod run;
pub mod survey;
pub mod ties;
pub mod trace;
pub mod verify;

pub use briquette_recipe as recipe;
pub use context::{Progress, RunOptions, Silent, Stop, limit_threads};
pub use plan::Plan;
pub use recipe::Recipe;
pub use report::Report;
pub use role::Role;
pub use run::run;
pub use trace::Trace;

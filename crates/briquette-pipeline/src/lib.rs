//! Runs a recipe: plan, survey, encode, verify and publish an output directory with a report.
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
//! Non-goals: printing, and file format details.

mod activation_grids;
mod advice;
#[cfg(feature = "model")]
mod arch;
pub mod batch;
mod bias_correction;
pub mod budget;
pub mod calibrate;
mod column_scales;
mod compress;
mod contents;
pub mod distill;
pub mod evaluate;
mod file_stages;
mod frequency;
pub mod graph;
mod hub;
mod identity;
#[cfg(feature = "nn")]
pub mod in_memory;
pub mod memory;
pub mod onnx;
mod onnx_network;
pub mod open;
mod output_file;
pub mod report;
pub mod run;
pub mod sensitivity;
mod solve;
mod staged;
pub mod sweep;
mod trained_scales;
#[cfg(feature = "model")]
mod training;
pub mod transform;
mod unwritten;
pub mod verify;

pub use advice::{advised, build_command};
pub use briquette_core::Role;
pub use briquette_recipe::plan::{self as plan, role};
pub use briquette_recipe::{self as recipe, Recipe};
pub use briquette_writer::{self as flow, Plan, Progress, RunOptions, Silent, Stop, context, limit_threads};
pub use report::{Report, Trace, diff, inspect};
pub use run::run;

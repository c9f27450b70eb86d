//! Writes the tensors of any source to a verified directory, according to a plan.
//!
//! A [`Plan`] has the treatment of each tensor of a [`TensorSource`](briquette_formats::TensorSource), which is
//! a checkpoint or a module in memory. [`write()`] runs the survey, computes the layout of files, encodes
//! tensors piece by piece, reads the files back, and compares them with the hashes.
//!
//! The decision about rows is a [`RowsDecision`](briquette_core::coder::RowsDecision), which determines the
//! bytes. [`decide`] returns the decision about a whole tensor.
//!
//! Non-goals: recipes, burn, printing.

pub mod context;
pub mod curve;
pub mod decode;
pub mod encode;
mod entropy;
pub mod known;
pub mod layout;
pub mod manifest;
mod memory;
pub mod narrow;
pub mod piece;
mod piece_sizes;
pub mod plan;
pub mod replaced;
mod scorer;
pub mod survey;
pub mod ties;
pub mod treatment;
mod weight_files;
pub mod weight_norm;
pub mod write;

pub use context::{Progress, RunOptions, Silent, Stop, Workers, limit_threads};
pub use encode::decide;
pub use plan::{Plan, Pool, TensorPlan};
pub use treatment::{BlockBytes, Cut, Pruning, Quant, Solve, Treatment};
pub use weight_norm::{NormGroups, WeightNorm};
pub use write::{WriteJob, recompute, write};

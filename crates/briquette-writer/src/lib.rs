//! The one way from rows to bytes: takes tensors of any source and a plan, and makes a verified directory.
//!
//! A [`Plan`] says what becomes of each tensor of a [`TensorSource`](briquette_formats::TensorSource): a checkpoint, or a module in
//! memory. [`write()`] surveys what must be known beforehand, lays out the files, encodes piece by piece, reads back what was
//! written and checks it against the hashes. What is decided about rows is a [`RowsDecision`](briquette_core::coder::RowsDecision), and
//! the bytes follow from it alone; [`decide`] gives the decision about a whole tensor, as a value.
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
pub mod narrow;
pub mod piece;
pub mod plan;
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

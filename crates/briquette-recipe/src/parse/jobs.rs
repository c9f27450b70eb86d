//! Jobs files: many recipes in one file, as `[[job]]` tables or as a `[base]` with a `[matrix]` of values.
//!
//! An invalid recipe fails only its own job. A matrix takes little memory: its recipes are built on demand.

mod distinct;
mod document;
mod expand;
mod file;
mod job;
mod matrix;
mod multiplied;
mod overrides;
pub mod raw;
mod sweep;

pub use document::{Document, Jobs, schema};
pub use job::Job;
pub use sweep::{sizes, sweep};

//! Jobs files: many recipes in one file, written out as `[[job]]` tables, or made of a `[base]` by a `[matrix]` of values.
//!
//! A job whose recipe is not sound leaves the others alone. What a matrix makes takes little room: a recipe is made when it is asked for.

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

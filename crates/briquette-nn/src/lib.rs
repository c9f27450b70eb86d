//! Prunes and quantizes burn modules while they train, and runs them compressed.
//!
//! [`load_into`] fills any `#[derive(Module)]` from a checkpoint that [`briquette_formats::Checkpoint`] can open: plain
//! or compressed. Non-goals: choosing decisions (`briquette-prune`, `briquette-quant`) and file formats.

mod load;
mod names;
mod parameters;
mod pattern;

pub use load::load_into;
pub use names::{Layout, NameMap};
pub use parameters::{Kind, Parameter, parameters};
pub use pattern::Patterns;

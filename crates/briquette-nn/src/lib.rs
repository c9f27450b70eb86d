//! Prunes and quantizes burn modules while they train, and runs them compressed.
//!
//! [`Compression`] attaches masks and grids to any `#[derive(Module)]` by glob over parameter paths, and decides them
//! anew on a schedule. [`load_into`] fills a module from a checkpoint that [`briquette_formats::Checkpoint`] can open,
//! plain or compressed. Non-goals: the choosing itself (`briquette-prune`, `briquette-quant`) and file formats.

mod attached;
mod compression;
mod dtype;
mod export;
mod fit;
mod form;
mod learner;
mod load;
mod names;
mod parameters;
mod pattern;
mod probe;
mod refresh;
mod rules;
mod schedule;
mod sparsity;
mod view;
mod weights;

pub use attached::Attached;
pub use compression::Compression;
pub use dtype::{LossScaler, ToDType};
pub use export::{Export, Exported};
pub use learner::Compressing;
pub use load::load_into;
pub use names::{Layout, NameMap};
pub use parameters::{Kind, Parameter, parameters};
pub use pattern::Patterns;
pub use probe::{InputStats, Probe};
pub use rules::{Prune, Quantize, Scope, Score};
pub use schedule::Schedule;
pub use sparsity::{Sparsity, decisions, sparsity};

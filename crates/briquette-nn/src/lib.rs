//! Prunes and quantizes burn modules while they train, and runs them compressed.
//!
//! [`Compression`] attaches masks and grids to any `#[derive(Module)]` by glob over parameter paths, and decides them
//! anew on a schedule. [`load_into`] fills a module from a checkpoint that [`briquette_formats::Checkpoint`] can open,
//! plain or compressed; [`Export`] writes one back, tied weights once, with the small files of the model it came from. The
//! [`layers`] are burn's, and run on codes where
//! [`load_compressed`] or [`quantize_dynamic`](quantize_dynamic()) has put them. Non-goals: the choosing itself (`briquette-prune`,
//! `briquette-quant`) and file formats.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use briquette_nn::{Compression, Prune, Quantize, sparsity};
//! use burn::module::Module;
//! use burn::nn::LinearConfig;
//! use burn::tensor::Device;
//!
//! let layer = LinearConfig::new(64, 32).init(&Device::flex().autodiff());
//! let rules = Compression::new().prune(Prune::new("weight", 0.75)?).quantize(Quantize::new("weight", "int8")?);
//! let layer = rules.attach(layer)?; // trains as before, pruned and rounded
//! assert_eq!(sparsity(&layer)?["weight"].n_zeros, 1536);
//! let plain = layer.materialize(); // an ordinary layer again
//! # }
//! # Ok::<(), briquette_core::Error>(())
//! ```

mod attached;
mod compression;
mod dtype;
mod export;
mod fit;
mod form;
mod held;
pub mod layers;
mod learner;
mod load;
mod load_compressed;
mod names;
mod packed;
mod parameters;
mod probe;
mod quantize_dynamic;
mod quiet;
mod refresh;
mod rules;
mod schedule;
mod sparsity;
mod view;
mod weights;

pub use attached::{Attached, without_grids};
pub use briquette_core::Patterns;
pub use compression::Compression;
pub use dtype::{LossScaler, ToDType};
pub use export::{Export, Exported};
pub use held::{Held, held};
pub use learner::Compressing;
pub use load::load_into;
pub use load_compressed::load_compressed;
pub use names::{Layout, NameMap};
pub use packed::{Packed, holds_codes};
pub use parameters::{Kind, Parameter, parameters};
pub use probe::{InputStats, Probe};
pub use quantize_dynamic::{DynamicSpec, quantize_dynamic};
pub use quiet::Quiet;
pub use rules::{Prune, Quantize, Scope, Score};
pub use schedule::Schedule;
pub use sparsity::{Sparsity, decisions, sparsity};

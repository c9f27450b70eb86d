//! Briquette compresses neural networks: it prunes, quantizes, verifies what it wrote, and measures what that saved.
//!
//! This crate re-exports the library. The main job in five lines:
//!
//! ```no_run
//! use briquette::prelude::*;
//!
//! let recipe = Recipe::from_file("configs/digits-small.toml".as_ref())?;
//! let report = briquette::run(&recipe, &RunOptions::default())?;
//! println!("{} -> {} bytes", report.before.file_bytes, report.after.file_bytes);
//! # Ok::<(), briquette::Error>(())
//! ```
//!
//! In training code (feature `model`, on by default) masks and grids attach to any burn module by the paths of its
//! parameters, hold through any optimizer, and end in the same kind of directory. [`nn`] and [`models`] say more.
//!
//! ```no_run
//! # #[cfg(feature = "model")] {
//! use briquette::models::{LoadedModel, device};
//! use briquette::nn::{Compression, Export, Prune, Schedule};
//!
//! let model = LoadedModel::open("models/minilm".as_ref(), None, &device("cpu")?.autodiff())?;
//! let rules = Compression::new().prune(Prune::new("**.encoder.**.weight", 0.6)?.on(Schedule::cubic(0..300).every(10)));
//! let mut network = rules.attach(model.network)?;
//! for step in 1..=400 {
//!     // … forward, backward, optimizer.step …
//!     network = rules.refresh(network, step)?;
//! }
//! Export::to("out/pruned").names(model.names).like("models/minilm").write(&network)?;
//! # }
//! # Ok::<(), briquette::Error>(())
//! ```
//!
//! The numbers alone, without any file:
//!
//! ```
//! use briquette::core::{Decision, decode, encode};
//! use briquette::prune::{Ratio, select};
//! use briquette::quant::{Scheme, fit};
//!
//! let weights: Vec<f32> = (0..64).map(|i| ((i * 37) % 64) as f32 / 64.0 - 0.5).collect();
//! let mask = select::smallest(&weights, 4, 16, Ratio::new(0.4).unwrap().of(64));
//! let quant = fit(&weights, 16, Some(&mask), &Scheme::INT8.weights);
//! let encoded = encode(&weights, 4, 16, &Decision { mask: Some(mask), quant: Some(quant) });
//! let restored = decode(&encoded);
//! assert_eq!(restored.iter().filter(|&&value| value == 0.0).count(), 26);
//! ```

pub use briquette_core as core;
#[cfg(feature = "distill")]
pub use briquette_distill as distill;
pub use briquette_flow as flow;
pub use briquette_formats as formats;
#[cfg(feature = "model")]
pub use briquette_models as models;
#[cfg(feature = "nn")]
pub use briquette_nn as nn;
pub use briquette_pipeline as pipeline;
pub use briquette_plan as plan;
pub use briquette_prune as prune;
pub use briquette_quant as quant;
pub use briquette_recipe as recipe;
pub use briquette_report as report;

pub use briquette_core::{Error, ErrorKind, Result};
pub use briquette_pipeline::{Plan, Recipe, Report, RunOptions, run};

/// What most programs need.
pub mod prelude {
    pub use crate::core::{Decision, Encoded, Mask, QuantParams, decode, encode, simulate};
    pub use crate::{Error, ErrorKind, Plan, Recipe, Report, RunOptions, run};
    pub use briquette_formats::{Checkpoint, TensorSource};
    pub use briquette_prune::Ratio;
    pub use briquette_quant::Scheme;
}

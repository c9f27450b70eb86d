//! What is asked of a run: recipes as TOML, parsed and sound. A value that cannot be never gets past here.
//!
//! A recipe is read in two steps. [`raw`] mirrors the TOML and says nothing about it; [`Recipe::from_raw`] judges it, and what it
//! gives holds only what can be done. An error starts with the key that it is about.
//!
//! ```
//! use briquette_recipe::{Recipe, parse};
//!
//! let text = "model.path = \"m\"\noutput.path = \"o\"\n[[stage]]\nkind = \"prune\"\nsparsity = 0.5\n";
//! let recipe = Recipe::from_raw(parse(text, "recipe.toml")?, "configs".as_ref())?;
//! assert_eq!(recipe.output.to_str(), Some("configs/o"));
//! let wrong = parse(&text.replace("0.5", "7"), "recipe.toml")?;
//! let error = Recipe::from_raw(wrong, "".as_ref()).unwrap_err().to_string();
//! assert!(error.starts_with("stage 1 (prune): sparsity: found 7, expected a number from 0"));
//! # Ok::<(), briquette_core::Error>(())
//! ```
//!
//! Non-goals: opening a model, knowing what its tensors are, training, and running anything.

mod budget;
mod calibration;
mod cast;
mod choice;
mod distill;
mod evaluate;
mod factorize;
mod gradual;
mod in_memory;
pub mod jobs;
mod kind;
mod loss;
mod memory;
mod metric;
mod numbers;
pub mod paths;
mod prune;
mod quantize;
pub mod ranges;
pub mod raw;
mod recipe;
mod schema;
mod selection;
mod stage;
mod statistics;
mod steps;
mod text;
mod training_job;
mod used;
mod words;

pub use budget::{Budget, MeasuredLoss, Sensitivity, Target};
pub use calibration::{CalibrationRun, N_SAMPLES};
pub use cast::CastStage;
pub use choice::SchemeChoice;
pub use distill::{DistillStage, Student, TrainingSpec};
pub use evaluate::{Bounds, Evaluate};
pub use factorize::FactorizeStage;
pub use gradual::{Gradual, SparsityCourse};
pub use kind::StageKind;
pub use loss::{AskedLoss, AttentionBy, EmbeddingBy, HiddenBy, LayerChoice, LogitsBy, LossKind};
pub use memory::{BatchSize, Dtype, TrainMemory};
pub use metric::{METRICS, Metric, is_more_better};
pub use paths::directory_of;
pub use prune::{PruneStage, PruneTarget};
pub use quantize::QuantizeStage;
pub use recipe::{Recipe, locate, profile_of, read_raw};
pub use schema::schema;
pub use selection::Selection;
pub use stage::{ModelStage, RecipePart, Stage};
pub use steps::GivenScheme;
pub use text::parse;
pub use training_job::TrainingJob;

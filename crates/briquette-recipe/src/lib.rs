//! Recipes: the TOML files that describe a run, parsed and validated.
//!
//! A recipe is read in two steps. [`raw`] mirrors the TOML without checks. [`Recipe::from_raw`] validates it,
//! so a [`Recipe`] has only values that a run can use. An error message starts with the key at fault. [`plan`]
//! computes what a recipe does to each tensor of a model.
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
//! Non-goals: this crate opens no model, trains nothing and runs nothing.

pub mod parse;
pub mod plan;

pub use parse::CastStage;
pub use parse::FactorizeStage;
pub use parse::GivenScheme;
pub use parse::QuantizeStage;
pub use parse::SchemeChoice;
pub use parse::Selection;
pub use parse::StageKind;
pub use parse::TrainingJob;
pub use parse::directory_of;
pub use parse::parse;
pub use parse::schema;
pub use parse::{AskedLoss, AttentionBy, EmbeddingBy, HiddenBy, LayerChoice, LogitsBy, LossKind};
pub use parse::{BatchSize, Dtype, TrainMemory};
pub use parse::{Bounds, Evaluate};
pub use parse::{Budget, MeasuredLoss, Sensitivity, Target};
pub use parse::{CalibrationRun, N_SAMPLES};
pub use parse::{Direction, METRICS, Metric, is_more_better};
pub use parse::{DistillStage, Student, TrainingSpec};
pub use parse::{FoldMethod, FoldStage};
pub use parse::{Gradual, SparsityCourse};
pub use parse::{ModelStage, RecipePart, Stage, TransformStage};
pub use parse::{PruneStage, PruneTarget};
pub use parse::{Recipe, locate, profile_of, read_raw};
pub use parse::{ShrinkLimit, ShrinkStage, ShrinkTarget};
pub use parse::{jobs, paths, ranges, raw};

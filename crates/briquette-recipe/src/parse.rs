//! Parses and validates recipes.
//!
//! A recipe is read in two steps. [`raw`] mirrors the TOML without checks. [`Recipe::from_raw`] validates it,
//! so a [`Recipe`] has only values that a run can use. An error message starts with the key at fault.

mod budget;
mod calibration;
mod cast;
mod choice;
mod distill;
mod evaluate;
mod factorize;
mod fold;
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
mod shrink;
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
pub use fold::{FoldMethod, FoldStage};
pub use gradual::{Gradual, SparsityCourse};
pub use kind::StageKind;
pub use loss::{AskedLoss, AttentionBy, EmbeddingBy, HiddenBy, LayerChoice, LogitsBy, LossKind};
pub use memory::{BatchSize, Dtype, TrainMemory};
pub use metric::{Direction, METRICS, Metric, is_more_better};
pub use paths::directory_of;
pub use prune::{PruneStage, PruneTarget};
pub use quantize::QuantizeStage;
pub use recipe::{Recipe, locate, profile_of, read_raw};
pub use schema::schema;
pub use selection::Selection;
pub use shrink::{ShrinkLimit, ShrinkStage, ShrinkTarget};
pub use stage::{ModelStage, RecipePart, Stage, TransformStage};
pub use steps::GivenScheme;
pub use text::parse;
pub use training_job::TrainingJob;

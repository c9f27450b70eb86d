//! The TOML structure of a recipe, without checks.
//!
//! The keys of a kind of stage are in the module of that kind. Doc comments of keys become the descriptions in
//! the JSON Schema. The schema has one table with the stage keys of all kinds, so a description begins with the
//! kind.

mod budget;
mod calibration;
mod data;
mod memory;
mod model;
mod overrides;
mod recipe;
mod stage;
mod training;

pub use crate::parse::cast::RawCast;
pub use crate::parse::distill::RawDistill;
pub use crate::parse::factorize::RawFactorize;
pub use crate::parse::fold::RawFold;
pub use crate::parse::prune::RawPrune;
pub use crate::parse::quantize::{OPEN_SCHEMES, RawGroup, RawQuantize};
pub use crate::parse::shrink::RawShrink;
pub use budget::RawBudget;
pub use calibration::RawCalibration;
pub use data::{RawData, RawGate, RawNormalize};
pub use memory::{RawBatchSize, RawMemory};
pub use model::{RawLayout, RawModel, RawOutput, RawOutputs, RawRole};
pub use overrides::RawOverride;
pub use recipe::RawRecipe;
pub(crate) use stage::keys_of;
pub use stage::{RawEvaluate, RawStage, StageKeys};
pub use training::{RawGradual, RawLayers, RawLoss, RawStudent};

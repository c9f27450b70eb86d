//! The recipe as TOML has it: no behaviour, every key spelled out. The keys of a kind of stage are in the file of that kind, beside
//! what is made of them. What is said of a key here is what the JSON Schema says of it, where the keys of all kinds stand in one
//! table; that is why it begins with the kind.

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
pub use crate::parse::prune::RawPrune;
pub use crate::parse::quantize::{RawGroup, RawQuantize};
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

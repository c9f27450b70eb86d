//! The TOML structure of a stage.
//!
//! Each kind has a struct of its keys. A key of another kind is kept until validation, because a jobs file may
//! change first the kind and then the keys.

mod read;
mod schema;

pub(crate) use read::keys_of;

use crate::parse::cast::RawCast;
use crate::parse::distill::RawDistill;
use crate::parse::factorize::RawFactorize;
use crate::parse::fold::RawFold;
use crate::parse::kind::StageKind;
use crate::parse::prune::RawPrune;
use crate::parse::quantize::RawQuantize;
use crate::parse::shrink::RawShrink;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// One stage of a recipe.
#[derive(Debug, Clone, PartialEq)]
pub struct RawStage {
    /// The keys of the stage's kind.
    pub keys: StageKeys,
    /// Keys that only other kinds have, with their values. Validation refuses them; parsing does not.
    foreign: Map<String, Value>,
}

/// The keys of a stage, by its kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StageKeys {
    /// Keys of a prune stage.
    Prune(RawPrune),
    /// Keys of a quantize stage.
    Quantize(RawQuantize),
    /// Keys of a cast stage.
    Cast(RawCast),
    /// Keys of an evaluate stage.
    Evaluate(RawEvaluate),
    /// Keys of a distill stage.
    Distill(Box<RawDistill>),
    /// Keys of a factorize stage.
    Factorize(RawFactorize),
    /// Keys of a shrink stage.
    Shrink(Box<RawShrink>),
    /// Keys of a fold stage.
    Fold(RawFold),
    /// The name of an unknown kind.
    Unknown(String),
}

/// The keys of an evaluate stage: none. Its data is in `[data]`, its bounds are in `[gate]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawEvaluate {}

/// Generic work on the key struct of any kind. A trait is needed because a closure cannot be generic.
trait WithKeys {
    type Output;

    fn with<T>(self, wrap: fn(T) -> StageKeys) -> Self::Output
    where
        T: Serialize + DeserializeOwned + JsonSchema;
}

/// Runs the work with the key struct of a kind. Only this function maps kinds to structs.
fn with_keys<W: WithKeys>(kind: StageKind, work: W) -> W::Output {
    match kind {
        StageKind::Prune => work.with(StageKeys::Prune),
        StageKind::Quantize => work.with(StageKeys::Quantize),
        StageKind::Cast => work.with(StageKeys::Cast),
        StageKind::Evaluate => work.with(StageKeys::Evaluate),
        StageKind::Distill => work.with(StageKeys::Distill),
        StageKind::Factorize => work.with(StageKeys::Factorize),
        StageKind::Shrink => work.with(StageKeys::Shrink),
        StageKind::Fold => work.with(StageKeys::Fold),
    }
}

impl RawStage {
    /// Returns the kind, if it is known.
    pub fn kind(&self) -> Option<StageKind> {
        match self.keys {
            StageKeys::Prune(_) => Some(StageKind::Prune),
            StageKeys::Quantize(_) => Some(StageKind::Quantize),
            StageKeys::Cast(_) => Some(StageKind::Cast),
            StageKeys::Evaluate(_) => Some(StageKind::Evaluate),
            StageKeys::Distill(_) => Some(StageKind::Distill),
            StageKeys::Factorize(_) => Some(StageKind::Factorize),
            StageKeys::Shrink(_) => Some(StageKind::Shrink),
            StageKeys::Fold(_) => Some(StageKind::Fold),
            StageKeys::Unknown(_) => None,
        }
    }

    /// Returns the kind as written.
    pub fn kind_name(&self) -> &str {
        match &self.keys {
            StageKeys::Unknown(name) => name,
            _ => self.kind().map_or("", StageKind::name),
        }
    }

    /// Returns whether the stage needs input statistics.
    pub fn needs_statistics(&self) -> bool {
        match &self.keys {
            StageKeys::Prune(keys) => keys.needs_statistics(),
            StageKeys::Quantize(keys) => keys.needs_statistics(),
            StageKeys::Shrink(keys) => keys.needs_statistics(),
            StageKeys::Fold(keys) => keys.needs_statistics(),
            _ => false,
        }
    }

    /// Returns a key that stages of this kind do not have, if there is one.
    pub(crate) fn foreign_key(&self) -> Option<&str> {
        self.foreign.keys().map(String::as_str).next()
    }

    /// Returns the stage in short words: `prune magnitude, layer, sparsity 0.4`.
    pub fn in_words(&self) -> String {
        let parts = match &self.keys {
            StageKeys::Prune(keys) => keys.in_words(),
            StageKeys::Quantize(keys) => keys.in_words(),
            StageKeys::Cast(keys) => keys.in_words(),
            StageKeys::Distill(keys) => keys.in_words(),
            StageKeys::Factorize(keys) => keys.in_words(),
            StageKeys::Shrink(keys) => keys.in_words(),
            StageKeys::Fold(keys) => keys.in_words(),
            StageKeys::Evaluate(_) | StageKeys::Unknown(_) => Vec::new(),
        };
        format!("{} {}", self.kind_name(), parts.join(", ")).trim_end().to_string()
    }
}

impl From<StageKeys> for RawStage {
    fn from(keys: StageKeys) -> Self {
        Self { keys, foreign: Map::new() }
    }
}

impl Serialize for RawStage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut all = self.foreign.clone();
        all.insert("kind".into(), self.kind_name().into());
        if let Value::Object(own) = serde_json::to_value(&self.keys).map_err(S::Error::custom)? {
            all.extend(own);
        }
        all.serialize(serializer)
    }
}

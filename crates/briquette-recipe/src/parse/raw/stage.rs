//! A stage as TOML has it. Each kind has a struct of its keys; a key of another kind is kept until the stage is judged, as a jobs
//! file may change the kind of a stage and its keys one after the other.

mod read;
mod schema;

pub(crate) use read::keys_of;

use crate::parse::cast::RawCast;
use crate::parse::distill::RawDistill;
use crate::parse::factorize::RawFactorize;
use crate::parse::kind::StageKind;
use crate::parse::prune::RawPrune;
use crate::parse::quantize::RawQuantize;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// One stage.
#[derive(Debug, Clone, PartialEq)]
pub struct RawStage {
    /// The keys that its kind has.
    pub keys: StageKeys,
    /// Keys that only other kinds have, with their values. They are refused when the stage is judged, not when it is read.
    foreign: Map<String, Value>,
}

/// The keys of a stage, by its kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StageKeys {
    /// Of a prune stage.
    Prune(RawPrune),
    /// Of a quantize stage.
    Quantize(RawQuantize),
    /// Of a cast stage.
    Cast(RawCast),
    /// Of an evaluate stage.
    Evaluate(RawEvaluate),
    /// Of a distill stage.
    Distill(Box<RawDistill>),
    /// Of a factorize stage.
    Factorize(RawFactorize),
    /// The name of a kind that there is not.
    Unknown(String),
}

/// An evaluate stage has no keys of its own: its data and its bounds lie beside the stages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawEvaluate {}

/// Work that is written once for the structs of all kinds. A closure cannot do it, as each struct is another type.
trait WithKeys {
    type Output;

    fn with<T>(self, wrap: fn(T) -> StageKeys) -> Self::Output
    where
        T: Serialize + DeserializeOwned + JsonSchema;
}

/// Does some work with the struct of a kind: the one place that says which struct that is.
fn with_keys<W: WithKeys>(kind: StageKind, work: W) -> W::Output {
    match kind {
        StageKind::Prune => work.with(StageKeys::Prune),
        StageKind::Quantize => work.with(StageKeys::Quantize),
        StageKind::Cast => work.with(StageKeys::Cast),
        StageKind::Evaluate => work.with(StageKeys::Evaluate),
        StageKind::Distill => work.with(StageKeys::Distill),
        StageKind::Factorize => work.with(StageKeys::Factorize),
    }
}

impl RawStage {
    /// Its kind, where there is such a one.
    pub fn kind(&self) -> Option<StageKind> {
        match self.keys {
            StageKeys::Prune(_) => Some(StageKind::Prune),
            StageKeys::Quantize(_) => Some(StageKind::Quantize),
            StageKeys::Cast(_) => Some(StageKind::Cast),
            StageKeys::Evaluate(_) => Some(StageKind::Evaluate),
            StageKeys::Distill(_) => Some(StageKind::Distill),
            StageKeys::Factorize(_) => Some(StageKind::Factorize),
            StageKeys::Unknown(_) => None,
        }
    }

    /// Its kind as it is written.
    pub fn kind_name(&self) -> &str {
        match &self.keys {
            StageKeys::Unknown(name) => name,
            _ => self.kind().map_or("", StageKind::name),
        }
    }

    /// Whether it looks at statistics of inputs.
    pub fn needs_statistics(&self) -> bool {
        match &self.keys {
            StageKeys::Prune(keys) => keys.needs_statistics(),
            StageKeys::Quantize(keys) => keys.needs_statistics(),
            _ => false,
        }
    }

    /// A key that stages of its kind do not have, where it has one.
    pub(crate) fn foreign_key(&self) -> Option<&str> {
        self.foreign.keys().map(String::as_str).next()
    }

    /// The stage in words: `prune magnitude, layer, sparsity 0.4`.
    pub fn in_words(&self) -> String {
        let parts = match &self.keys {
            StageKeys::Prune(keys) => keys.in_words(),
            StageKeys::Quantize(keys) => keys.in_words(),
            StageKeys::Cast(keys) => keys.in_words(),
            StageKeys::Distill(keys) => keys.in_words(),
            StageKeys::Factorize(keys) => keys.in_words(),
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

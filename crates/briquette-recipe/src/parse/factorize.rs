//! The factorize stage: replaces each linear layer by two smaller ones.

use crate::parse::selection::Selection;
use crate::parse::words::ratio_of;
use briquette_core::{Error, Result, Role};
use briquette_methods::prune::low_rank::Rank;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of a factorize stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawFactorize {
    /// factorize: choose the smallest rank whose squared singular values sum to this share of the total; above
    /// 0, at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
    /// factorize: choose the largest rank whose two factors take at most this share of the layer's bytes; above
    /// 0, at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// Globs over tensor names; all tensors by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over the names of tensors to skip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// A stage that factorizes linear layers: `W [out, in] ≈ up [out, rank] · down [rank, in]`.
#[derive(Debug, Clone)]
pub struct FactorizeStage {
    /// The tensors to factorize.
    pub selection: Selection,
    /// How the rank is chosen.
    pub rank: Rank,
}

impl RawFactorize {
    /// Returns the settings of the stage in short words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let energy = self.energy.map(|energy| format!("energy {energy}"));
        let bytes = self.bytes.map(|bytes| format!("bytes {bytes}"));
        [energy, bytes].into_iter().flatten().collect()
    }
}

impl FactorizeStage {
    pub(crate) fn from_raw(raw: &RawFactorize) -> Result<Self> {
        let rank = match (raw.energy, raw.bytes) {
            (Some(energy), None) => Rank::Energy(ratio_of("energy", energy)?),
            (None, Some(bytes)) => Rank::Bytes(ratio_of("bytes", bytes)?),
            (Some(_), Some(_)) => {
                return Err(Error::config("bytes: the rank follows from the energy already; remove one of them"));
            }
            (None, None) => {
                return Err(Error::config("energy: missing; give it, such as energy = 0.95, or bytes = 0.5"));
            }
        };
        Ok(Self { selection: Selection::new(raw.include.as_ref(), &raw.exclude, None, &[Role::Linear])?, rank })
    }
}

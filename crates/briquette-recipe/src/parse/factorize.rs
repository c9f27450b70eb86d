//! The stage that makes two factors of each linear layer.

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
    /// factorize: two factors for each linear layer, of the smallest rank whose squared singular values sum to this share, above 0
    /// to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
    /// factorize: two factors for each linear layer, of the largest rank that takes at most this share of its bytes, above 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// Globs over tensor names; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over tensor names to leave out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// Make two factors of linear layers: `W [out, in] ≈ up [out, rank] · down [rank, in]`.
#[derive(Debug, Clone)]
pub struct FactorizeStage {
    /// Which tensors.
    pub selection: Selection,
    /// Their rank.
    pub rank: Rank,
}

impl RawFactorize {
    /// What it says, in words.
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

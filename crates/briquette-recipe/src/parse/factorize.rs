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
    /// factorize: the share of the squared singular values to keep, above 0 and at most 1. The rank is the
    /// smallest that keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
    /// factorize: the share of the layer's bytes that its two factors may take, above 0 and at most 1. The rank
    /// is the largest that fits.
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
                return Err(Error::config("bytes: energy already sets the rank; remove one of the two"));
            }
            (None, None) => {
                return Err(Error::config("energy: missing; set it, such as energy = 0.95, or bytes = 0.5"));
            }
        };
        Ok(Self { selection: Selection::new(raw.include.as_ref(), &raw.exclude, None, &[Role::Linear])?, rank })
    }
}

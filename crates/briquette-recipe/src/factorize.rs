//! The stage that makes two factors of each linear layer.

use crate::keys::{check_keys, refuse};
use crate::raw::RawStage;
use crate::selection::Selection;
use crate::words::ratio_of;
use briquette_core::{Error, Result, Role};
use briquette_prune::low_rank::Rank;

/// Make two factors of linear layers: `W [out, in] ≈ up [out, rank] · down [rank, in]`.
#[derive(Debug, Clone)]
pub struct FactorizeStage {
    /// Which tensors.
    pub selection: Selection,
    /// Their rank.
    pub rank: Rank,
}

impl FactorizeStage {
    pub(crate) fn from_raw(raw: &RawStage) -> Result<Self> {
        check_keys(raw, &["energy", "bytes"])?;
        refuse("roles", &raw.roles, "factorize")?;
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
        Ok(Self { selection: Selection::from_raw(raw, &[Role::Linear])?, rank })
    }
}

//! The stage that makes two factors of each linear layer.

use super::raw::RawStage;
use super::{Selection, check_keys, refuse};
use crate::role::Role;
use briquette_core::{Error, Result};
use briquette_prune::Ratio;
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
    pub(super) fn from_raw(raw: &RawStage) -> Result<Self> {
        check_keys(raw, &["energy", "bytes"])?;
        refuse("roles", &raw.roles, "factorize")?;
        let share = |key: &str, value: f64| {
            let ratio = Ratio::new(value).filter(|ratio| ratio.get() > 0.0);
            let message = || format!("{key}: found {value}, expected a share above 0 and at most 1");
            ratio.ok_or_else(|| Error::config(message()))
        };
        let rank = match (raw.energy, raw.bytes) {
            (Some(energy), None) => Rank::Energy(share("energy", energy)?),
            (None, Some(bytes)) => Rank::Bytes(share("bytes", bytes)?),
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

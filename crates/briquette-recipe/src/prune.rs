//! The stage that drops weights.

use crate::keys::{check_keys, refuse};
use crate::raw::RawStage;
use crate::selection::{Selection, overrides_of};
use crate::words::{one_of, ratio_of};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result, Role};
use briquette_prune::{Ratio, Score};

/// Drop weights.
#[derive(Debug, Clone)]
pub struct PruneStage {
    /// Which tensors.
    pub selection: Selection,
    /// How weights are scored.
    pub score: Score,
    /// How many go.
    pub target: PruneTarget,
    /// Other ratios for some tensors.
    pub overrides: Vec<(Patterns, Ratio)>,
}

/// How many weights go, and from where.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PruneTarget {
    /// The same share of each tensor.
    Layer(Ratio),
    /// A share of all chosen tensors together.
    Global(Ratio),
    /// All but n of every m inputs.
    NOfM {
        /// Kept.
        n: usize,
        /// Of these.
        m: usize,
    },
}

impl PruneStage {
    pub(crate) fn from_raw(raw: &RawStage) -> Result<Self> {
        let kind = "prune";
        check_keys(raw, &["method", "scope", "sparsity", "pattern", "seed", "overrides"])?;
        let score = match raw.method.as_deref() {
            None => Score::Magnitude,
            Some(name) => one_of(
                "method",
                name,
                &[("magnitude", Score::Magnitude), ("random", Score::Random(raw.seed.unwrap_or(0)))],
            )?,
        };
        if score == Score::Magnitude {
            refuse("seed", &raw.seed, "magnitude prune")?;
        }
        Ok(Self {
            selection: Selection::from_raw(raw, &[Role::Linear, Role::Conv])?,
            score,
            target: target_of(raw)?,
            overrides: overrides_of(&raw.overrides, |rule| {
                refuse("overrides.scheme", &rule.scheme, kind)?;
                share_of("overrides.sparsity", rule.sparsity)
            })?,
        })
    }
}

fn target_of(raw: &RawStage) -> Result<PruneTarget> {
    if let Some(pattern) = &raw.pattern {
        refuse("sparsity", &raw.sparsity, "prune (with a pattern)")?;
        refuse("scope", &raw.scope, "prune (with a pattern)")?;
        let parts = pattern.split_once(':').and_then(|(n, m)| Some((n.parse().ok()?, m.parse().ok()?)));
        return match parts {
            Some((n, m)) if n > 0 && n < m && m <= 256 => Ok(PruneTarget::NOfM { n, m }),
            _ => Err(Error::config(format!(
                "pattern: found {pattern:?}, expected N:M with 0 < N < M <= 256, such as 2:4"
            ))),
        };
    }
    let ratio = share_of("sparsity", raw.sparsity)?;
    let scope = raw.scope.as_deref().unwrap_or("layer");
    one_of("scope", scope, &[("layer", PruneTarget::Layer(ratio)), ("global", PruneTarget::Global(ratio))])
}

fn share_of(key: &str, value: Option<f64>) -> Result<Ratio> {
    let missing = || Error::config(format!("{key}: missing; a share of weights to drop, 0 to below 1"));
    ratio_of(key, value.ok_or_else(missing)?)
}

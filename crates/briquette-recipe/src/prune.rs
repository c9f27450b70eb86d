//! The stage that drops weights.

use crate::raw::RawOverride;
use crate::selection::{Selection, overrides_of};
use crate::words::{one_of, ratio_of, refuse};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result, Role};
use briquette_prune::{Ratio, Score};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of a prune stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawPrune {
    /// prune: "magnitude" (the default) or "random".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// prune: "layer" (the default), each tensor by itself, or "global", one threshold over all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// prune: share of weights to drop, 0 to below 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<f64>,
    /// prune: "N:M", keep N of every M neighbouring inputs, instead of a sparsity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// prune: seed of the method "random".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Globs over tensor names; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over tensor names to leave out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Which roles are chosen: linear and conv for prune; linear, conv and embedding for quantize; all for cast; linear for
    /// factorize, always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<Vec<Role>>,
    /// Other values for some tensors; the last that matches counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<RawOverride>,
}

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

impl RawPrune {
    /// What it says, in words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let scope = self.scope.as_ref().map(|scope| format!("scope {scope}"));
        let sparsity = self.sparsity.map(|sparsity| format!("sparsity {sparsity}"));
        let pattern = self.pattern.as_ref().map(|pattern| format!("pattern {pattern}"));
        [self.method.clone(), scope, sparsity, pattern].into_iter().flatten().collect()
    }
}

impl PruneStage {
    pub(crate) fn from_raw(raw: &RawPrune) -> Result<Self> {
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
            selection: Selection::new(
                raw.include.as_ref(),
                &raw.exclude,
                raw.roles.as_ref(),
                &[Role::Linear, Role::Conv],
            )?,
            score,
            target: target_of(raw)?,
            overrides: overrides_of(&raw.overrides, |rule| {
                refuse("overrides.scheme", &rule.scheme, "prune")?;
                share_of("overrides.sparsity", rule.sparsity)
            })?,
        })
    }
}

fn target_of(raw: &RawPrune) -> Result<PruneTarget> {
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

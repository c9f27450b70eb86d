//! The stage that drops weights.

use crate::raw::RawOverride;
use crate::selection::{Selection, overrides_of};
use crate::words::{one_of, ratio_of, refuse};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result, Role};
use briquette_prune::{Ratio, Score};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The keys of a prune stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawPrune {
    /// prune: "magnitude" (the default), "random", or "wanda", which looks at the inputs of weights too.
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
    /// prune: statistics of the inputs of layers, for the method "wanda"; see docs/format.md.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<PathBuf>,
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
    /// Statistics of the inputs of layers, where the score needs them.
    pub statistics: Option<PathBuf>,
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
        /// So many are kept.
        n: usize,
        /// Of so many that lie side by side.
        m: usize,
    },
}

impl RawPrune {
    /// Whether its method looks at statistics of inputs.
    pub(crate) fn needs_statistics(&self) -> bool {
        let is_asked = |name: &str| self.method.as_deref() == Some(name);
        Score::named(0).iter().any(|(name, score)| score.needs_inputs() && is_asked(name))
    }

    /// What it says, in words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let scope = self.scope.as_ref().map(|scope| format!("scope {scope}"));
        let sparsity = self.sparsity.map(|sparsity| format!("sparsity {sparsity}"));
        let pattern = self.pattern.as_ref().map(|pattern| format!("pattern {pattern}"));
        [self.method.clone(), scope, sparsity, pattern].into_iter().flatten().collect()
    }
}

impl PruneStage {
    /// The roles of a stage that names none.
    pub(crate) const ROLES: [Role; 2] = [Role::Linear, Role::Conv];

    pub(crate) fn from_raw(raw: &RawPrune) -> Result<Self> {
        let score = score_of(raw)?;
        Ok(Self {
            selection: Selection::new(raw.include.as_ref(), &raw.exclude, raw.roles.as_ref(), &Self::ROLES)?,
            score,
            statistics: raw.statistics.clone(),
            target: target_of(raw, score)?,
            overrides: overrides_of(&raw.overrides, |rule| {
                refuse("overrides.scheme", &rule.scheme, "prune")?;
                share_of("overrides.sparsity", rule.sparsity)
            })?,
        })
    }
}

/// How weights are scored; keys that only another method has are refused.
fn score_of(raw: &RawPrune) -> Result<Score> {
    let name = raw.method.as_deref().unwrap_or("magnitude");
    let score = one_of("method", name, &Score::named(raw.seed.unwrap_or(0)))?;
    let stage = format!("{name} prune");
    if !matches!(score, Score::Random(_)) {
        refuse("seed", &raw.seed, &stage)?;
    }
    if !score.needs_inputs() {
        refuse("statistics", &raw.statistics, &stage)?;
    } else if raw.statistics.is_none() {
        return Err(Error::config(format!(
            "statistics: missing; method `{name}` needs `statistics`, a file of input statistics, which a Probe of the \
             library writes; see docs/format.md"
        )));
    }
    Ok(score)
}

fn target_of(raw: &RawPrune, score: Score) -> Result<PruneTarget> {
    if let Some(pattern) = &raw.pattern {
        refuse("sparsity", &raw.sparsity, "prune (with a pattern)")?;
        refuse("scope", &raw.scope, "prune (with a pattern)")?;
        let parts = pattern.split_once(':').and_then(|(n, m)| Some((n.parse().ok()?, m.parse().ok()?)));
        let (n, m) = parts.ok_or_else(|| no_window(pattern))?;
        return check_window(n, m).map_err(|_| no_window(pattern)).map(|()| PruneTarget::NOfM { n, m });
    }
    let ratio = share_of("sparsity", raw.sparsity)?;
    let scope = raw.scope.as_deref().unwrap_or("layer");
    let target =
        one_of("scope", scope, &[("layer", PruneTarget::Layer(ratio)), ("global", PruneTarget::Global(ratio))])?;
    check_scope(target, score).map(|()| target)
}

/// Refuses a threshold over several tensors where scores compare only within a row.
pub(crate) fn check_scope(target: PruneTarget, score: Score) -> Result<()> {
    match target {
        PruneTarget::Global(_) if score.needs_inputs() => Err(Error::config(
            "scope: found \"global\", but scores that look at inputs compare only within a row; leave it out, or take \
             another method",
        )),
        _ => Ok(()),
    }
}

/// Refuses to keep none or all of a run of inputs, and runs that are too long.
pub(crate) fn check_window(n: usize, m: usize) -> Result<()> {
    match n > 0 && n < m && m <= 256 {
        true => Ok(()),
        false => Err(no_window(&format!("{n}:{m}"))),
    }
}

fn no_window(found: &str) -> Error {
    Error::config(format!("pattern: found {found:?}, expected N:M with 0 < N < M <= 256, such as 2:4"))
}

fn share_of(key: &str, value: Option<f64>) -> Result<Ratio> {
    let missing = || Error::config(format!("{key}: missing; a share of weights to drop, 0 to below 1"));
    ratio_of(key, value.ok_or_else(missing)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(keys: &str) -> Result<PruneStage, String> {
        PruneStage::from_raw(&toml::from_str(keys).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_method_that_looks_at_inputs_has_statistics_of_them_and_no_other_has() {
        for (method, expected) in [("magnitude", false), ("wanda", true)] {
            let keys = RawPrune { method: Some(method.into()), ..RawPrune::default() };
            assert_eq!(keys.needs_statistics(), expected, "{method}");
        }
        let stage = judged("method = \"wanda\"\nstatistics = \"s\"\nsparsity = 0.5").unwrap();
        assert_eq!((stage.score, stage.statistics.as_deref()), (Score::Wanda, Some("s".as_ref())));
        assert!(judged("method = \"wanda\"\nstatistics = \"s\"\npattern = \"2:4\"").is_ok());
        let cases = [
            ("method = \"wanda\"\nsparsity = 0.5", "statistics: missing; method `wanda` needs `statistics`, a file of"),
            (
                "method = \"wanda\"\nstatistics = \"s\"\nsparsity = 0.5\nseed = 1",
                "seed: a wanda prune stage has no such key",
            ),
            (
                "method = \"wanda\"\nstatistics = \"s\"\nsparsity = 0.5\nscope = \"global\"",
                "scope: found \"global\", but scores that look at inputs compare only within a row",
            ),
            ("statistics = \"s\"\nsparsity = 0.5", "statistics: a magnitude prune stage has no such key"),
            (
                "method = \"random\"\nstatistics = \"s\"\nsparsity = 0.5",
                "statistics: a random prune stage has no such key",
            ),
            ("method = \"wnada\"\nsparsity = 0.5", "did you mean \"wanda\"?"),
        ];
        for (keys, expected) in cases {
            let error = judged(keys).unwrap_err();
            assert!(error.contains(expected), "{keys}: {error}");
        }
    }
}

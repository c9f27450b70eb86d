//! The prune stage.

use crate::parse::raw::{RawCalibration, RawOverride};
use crate::parse::selection::{Selection, overrides_of};
use crate::parse::statistics::statistics_of;
use crate::parse::words::{one_of, ratio_of, refuse};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result, Role};
use briquette_methods::prune::{Ratio, Reconstruction, Score, SparsityPattern};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The keys of a prune stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawPrune {
    /// prune: "magnitude" (the default) or "random". With calibration: "wanda", or "sparsegpt" and "admm",
    /// which also update the kept weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// prune: the scope of the sparsity: "layer" (the default), "global" or "owl". "layer" prunes each tensor
    /// to the sparsity. "global" uses one threshold for all tensors. "owl" gives each transformer block a
    /// sparsity by its outliers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// prune: the share of weights to set to zero, from 0 to below 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<f64>,
    /// prune: "N:M" keeps N of every M neighbouring inputs; use it instead of a sparsity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// prune: seed of the method "random".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// prune: a file of input statistics, for methods that need them, if `[calibration]` does not provide them;
    /// see docs/guide/src/file-format.md.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<PathBuf>,
    /// Globs over tensor names; all tensors by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over the names of tensors to skip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Roles of the tensors to process. Default: linear and conv for prune; linear, conv and embedding for
    /// quantize; all for cast. factorize always uses linear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<Vec<Role>>,
    /// Other values for some tensors; if several match, the last applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<RawOverride>,
}

/// A stage that prunes weights.
#[derive(Debug, Clone)]
pub struct PruneStage {
    /// The tensors to prune.
    pub selection: Selection,
    /// How weights are scored.
    pub score: Score,
    /// The solver that updates the kept weights, if any; it replaces the score.
    pub reconstruction: Option<Reconstruction>,
    /// A file of input statistics, if the method needs them and no calibration gathers them.
    pub statistics: Option<PathBuf>,
    /// How many weights to prune.
    pub target: PruneTarget,
    /// Other sparsities for some tensors.
    pub overrides: Vec<(Patterns, Ratio)>,
}

/// How many weights to prune, and within which groups.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PruneTarget {
    /// The same pattern in each tensor.
    Layer(SparsityPattern<Ratio>),
    /// A share of all selected tensors, with one threshold.
    Global(Ratio),
    /// A share of all selected tensors; blocks with fewer outliers lose more weights.
    Owl(Ratio),
}

impl RawPrune {
    /// Returns whether the method needs input statistics.
    pub(crate) fn needs_statistics(&self) -> bool {
        let is_asked = |name: &str| self.method.as_deref() == Some(name);
        self.updates_weights() || Score::named(0).iter().any(|(name, score)| score.needs_inputs() && is_asked(name))
    }

    /// Returns whether the method updates the kept weights.
    pub(crate) fn updates_weights(&self) -> bool {
        Reconstruction::NAMES.iter().any(|(name, _)| self.method.as_deref() == Some(name))
    }

    /// Returns the settings of the stage in short words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let scope = self.scope.as_ref().map(|scope| format!("scope {scope}"));
        let sparsity = self.sparsity.map(|sparsity| format!("sparsity {sparsity}"));
        let pattern = self.pattern.as_ref().map(|pattern| format!("pattern {pattern}"));
        [self.method.clone(), scope, sparsity, pattern].into_iter().flatten().collect()
    }
}

impl PruneStage {
    /// The default roles.
    pub(crate) const ROLES: [Role; 2] = [Role::Linear, Role::Conv];

    pub(crate) fn from_raw(raw: &RawPrune, calibration: Option<&RawCalibration>) -> Result<Self> {
        let (score, reconstruction) = method_of(raw)?;
        let name = raw.method.as_deref().unwrap_or("magnitude");
        let statistics =
            statistics_of(&raw.statistics, raw.needs_statistics(), calibration, &format!("method `{name}`"))?;
        Ok(Self {
            selection: Selection::new(raw.include.as_ref(), &raw.exclude, raw.roles.as_ref(), &Self::ROLES)?,
            score,
            reconstruction,
            statistics,
            target: target_of(raw)?,
            overrides: overrides_of(&raw.overrides, |rule| {
                refuse("overrides.scheme", &rule.scheme, "prune stage")?;
                share_of("overrides.sparsity", rule.sparsity)
            })?,
        })
    }
}

/// Returns the score and the solver; refuses keys that the method does not use.
fn method_of(raw: &RawPrune) -> Result<(Score, Option<Reconstruction>)> {
    let name = raw.method.as_deref().unwrap_or("magnitude");
    let scores = Score::named(raw.seed.unwrap_or(0)).map(|(name, score)| (name, (score, None)));
    let moving = Reconstruction::NAMES.map(|(name, moving)| (name, (Score::Magnitude, Some(moving))));
    let known: Vec<_> = scores.into_iter().chain(moving).collect();
    let (score, reconstruction) = one_of("method", name, &known)?;
    let stage = format!("{name} prune stage");
    if !matches!(score, Score::Random(_)) {
        refuse("seed", &raw.seed, &stage)?;
    }
    if !raw.needs_statistics() {
        refuse("statistics", &raw.statistics, &stage)?;
    }
    Ok((score, reconstruction))
}

fn target_of(raw: &RawPrune) -> Result<PruneTarget> {
    if let Some(pattern) = &raw.pattern {
        refuse("sparsity", &raw.sparsity, "prune stage with a pattern")?;
        refuse("scope", &raw.scope, "prune stage with a pattern")?;
        let parts = pattern.split_once(':').and_then(|(n, m)| Some((n.parse().ok()?, m.parse().ok()?)));
        let (n, m) = parts.ok_or_else(|| no_window(pattern))?;
        return SparsityPattern::n_of_m(n, m).map(PruneTarget::Layer).ok_or_else(|| no_window(pattern));
    }
    let ratio = share_of("sparsity", raw.sparsity)?;
    let scope = raw.scope.as_deref().unwrap_or("layer");
    let scopes = [
        ("layer", PruneTarget::Layer(SparsityPattern::Unstructured(ratio))),
        ("global", PruneTarget::Global(ratio)),
        ("owl", PruneTarget::Owl(ratio)),
    ];
    let target = one_of("scope", scope, &scopes)?;
    check_scope(target, raw.needs_statistics()).map(|()| target)
}

/// Refuses scopes that do not fit the method.
///
/// Scores from input statistics are comparable within a row or a layer only, and OWL needs these statistics.
pub(crate) fn check_scope(target: PruneTarget, looks_at_inputs: bool) -> Result<()> {
    match target {
        PruneTarget::Global(_) if looks_at_inputs => Err(Error::config(
            "scope: found \"global\", but methods with input statistics compare weights within a row or a layer only; remove it, \
             choose \"owl\", or choose another method",
        )),
        PruneTarget::Owl(_) if !looks_at_inputs => Err(Error::config(
            "scope: found \"owl\", which needs input statistics; choose a method that uses them: wanda, \
             sparsegpt or admm",
        )),
        _ => Ok(()),
    }
}

/// Returns N:M; refuses it unless `0 < n < m <= 256`.
pub(crate) fn window_of(n: usize, m: usize) -> Result<SparsityPattern<Ratio>> {
    SparsityPattern::n_of_m(n, m).ok_or_else(|| no_window(&format!("{n}:{m}")))
}

fn no_window(found: &str) -> Error {
    Error::config(format!("pattern: found {found:?}, expected N:M with 0 < N < M <= 256, such as 2:4"))
}

fn share_of(key: &str, value: Option<f64>) -> Result<Ratio> {
    let missing = || Error::config(format!("{key}: missing; set the share of weights to prune, from 0 to below 1"));
    ratio_of(key, value.ok_or_else(missing)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(keys: &str) -> Result<PruneStage, String> {
        PruneStage::from_raw(&toml::from_str(keys).unwrap(), None).map_err(|error| error.to_string())
    }

    #[test]
    fn only_methods_with_layer_inputs_have_statistics() {
        for (method, expected) in [("magnitude", false), ("wanda", true), ("sparsegpt", true), ("admm", true)] {
            let keys = RawPrune { method: Some(method.into()), ..RawPrune::default() };
            assert_eq!(keys.needs_statistics(), expected, "{method}");
        }
        let stage = judged("method = \"wanda\"\nstatistics = \"s\"\nsparsity = 0.5").unwrap();
        assert_eq!((stage.score, stage.statistics.as_deref()), (Score::Wanda, Some("s".as_ref())));
        assert!(judged("method = \"wanda\"\nstatistics = \"s\"\npattern = \"2:4\"").is_ok());
        let stage = judged("method = \"sparsegpt\"\nstatistics = \"s\"\nsparsity = 0.5\nscope = \"owl\"").unwrap();
        assert_eq!(stage.reconstruction, Some(Reconstruction::SparseGpt));
        let cases = [
            ("method = \"wanda\"\nsparsity = 0.5", "statistics: missing; method `wanda` needs"),
            ("sparsity = 0.5\nscope = \"owl\"", "scope: found \"owl\", which needs input statistics"),
            (
                "method = \"wanda\"\nstatistics = \"s\"\nsparsity = 0.5\nseed = 1",
                "seed: a wanda prune stage has no such key",
            ),
            (
                "method = \"wanda\"\nstatistics = \"s\"\nsparsity = 0.5\nscope = \"global\"",
                "scope: found \"global\", but methods with input statistics compare weights within a row",
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

//! The shrink stage: removes channels, heads and blocks, so that tensors become smaller.

use crate::parse::memory::bytes_of;
use crate::parse::raw::RawCalibration;
use crate::parse::statistics::statistics_file;
use crate::parse::words::{one_of, refuse};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result};
use briquette_graph::coupling::GroupKind;
use briquette_methods::prune::units::{UnitAmount, UnitBudget, UnitScore};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The keys of a shrink stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawShrink {
    /// shrink: the share of the units of each group to remove, from 0 to below 1. A unit is a channel or a head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// shrink: the number of units to remove from each group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// shrink: the share of the network's multiply-adds to keep, above 0 and below 1. The ratio is the smallest that
    /// reaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiply_adds: Option<f64>,
    /// shrink: the most bytes of all tensors afterwards, such as "60MB", in the types that they have before. The ratio is the smallest
    /// that reaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<String>,
    /// shrink: the share of the network's latency to keep, above 0 and below 1, as measured on this machine. The ratio is the smallest
    /// that reaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<f64>,
    /// shrink: blocks to remove, counted from 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drop_blocks: Vec<usize>,
    /// shrink: the number of blocks to remove: those with the least influence, `1 - cos` of a vector before and after the block, in the
    /// statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_n_blocks: Option<usize>,
    /// shrink: what to remove: "feed-forward", "heads" and "channels" (all three by default), "experts" and "width".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<String>>,
    /// shrink: how units are scored: "l2" (the default without calibration), "l1" or "random". With calibration:
    /// "osscar" (the default), "wanda", "flap" or "taylor".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// shrink: "layer" (the default) removes the ratio from each group. "global" uses one threshold for all groups of a kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// shrink: the smallest share of its units that a group keeps, from 0 to 1 (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// shrink: the number of channels that a group keeps is rounded up to a multiple of this (1). Heads are not rounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiple: Option<usize>,
    /// shrink: whether layers that read removed units are refitted by least squares (true with calibration, except for "flap", whose
    /// biases take up the mean of removed inputs). A stage that only removes blocks refits the last layer of
    /// each block around and after them on `calibration.data` (true with data).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refit: Option<bool>,
    /// shrink: seed of the method "random".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// shrink: a file of input statistics with Gram matrices, if `[calibration]` does not provide it; see
    /// docs/guide/src/file-format.md.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<PathBuf>,
    /// Globs over tensor names; all tensors by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over the names of tensors to skip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// A stage that removes channels, heads and blocks.
#[derive(Debug, Clone)]
pub struct ShrinkStage {
    /// How much is removed from each group; none if only blocks are removed.
    pub target: Option<ShrinkTarget>,
    /// The smallest share of units that a group keeps.
    pub floor: f64,
    /// Channels are kept in multiples of this.
    pub multiple: usize,
    /// Blocks to remove.
    pub drop_blocks: Vec<usize>,
    /// The number of blocks with the least influence to remove, instead of given ones.
    pub drop_n_blocks: Option<usize>,
    /// The kinds of groups to cut.
    pub parts: Vec<GroupKind>,
    /// How units are scored.
    pub score: UnitScore,
    /// Whether one threshold is used for all groups of a kind.
    pub is_global: bool,
    /// Whether layers that read removed units are refitted.
    pub refits: bool,
    /// Whether the last layer of each block from the first removed one on is refitted on the calibration data, to take up what those did.
    pub refits_gaps: bool,
    /// A file of input statistics, if scores or refits need them.
    pub statistics: Option<PathBuf>,
    /// Patterns of names; a group is cut if one of its tensors matches. `None` matches all.
    pub include: Option<Patterns>,
    /// Patterns of names; a group is skipped if one of its tensors matches.
    pub exclude: Patterns,
}

/// How much is removed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ShrinkTarget {
    /// An amount of each group.
    Units(UnitAmount),
    /// The smallest ratio that reaches a limit.
    AtMost(ShrinkLimit),
}

/// A limit of the smaller network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ShrinkLimit {
    /// The share of multiply-adds to keep.
    MultiplyAdds(f64),
    /// The most bytes of all tensors.
    Bytes(u64),
    /// The share of the latency to keep, as measured.
    Latency(f64),
}

/// The kinds of groups that are cut by default.
const PARTS: [GroupKind; 3] = [GroupKind::FeedForward, GroupKind::Heads, GroupKind::Channels];

impl RawShrink {
    /// Returns whether scores or refits need input statistics.
    pub(crate) fn needs_statistics(&self) -> bool {
        let is_asked = |name: &str| self.method.as_deref() == Some(name);
        let scores = UnitScore::named(0);
        let score_needs = scores.iter().any(|(name, score)| score.needs_inputs() && is_asked(name));
        // Without a method, statistics are used where there are some.
        let needs = score_needs || self.refit == Some(true) || self.drop_n_blocks.is_some();
        needs || self.statistics.is_some() || self.method.is_none()
    }

    /// Returns the settings of the stage in short words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let ratio = self.ratio.map(|ratio| format!("ratio {ratio}"));
        let count = self.count.map(|count| format!("count {count}"));
        let share = self.multiply_adds.map(|share| format!("multiply-adds {share}"));
        let latency = self.latency.map(|share| format!("latency {share}"));
        let n_blocks = self.drop_n_blocks.unwrap_or(self.drop_blocks.len());
        let blocks = (n_blocks > 0).then(|| format!("without {n_blocks} blocks"));
        let parts = self.parts.as_ref().map(|parts| parts.join("+"));
        [self.method.clone(), parts, ratio, count, share, self.max_bytes.clone(), latency, blocks]
            .into_iter()
            .flatten()
            .collect()
    }
}

impl ShrinkStage {
    pub(crate) fn from_raw(raw: &RawShrink, calibration: Option<&RawCalibration>) -> Result<Self> {
        let has_statistics = raw.statistics.is_some() || calibration.is_some_and(|own| own.statistics.is_some());
        let target = target_of(raw)?;
        if raw.method.is_none() && target.is_some() {
            refuse_data(raw, calibration)?;
        }
        let usual = if has_statistics { "osscar" } else { "l2" };
        let name = raw.method.as_deref().unwrap_or(usual);
        let score = one_of("method", name, &UnitScore::named(raw.seed.unwrap_or(0)))?;
        let has_data = calibration.is_some_and(|own| own.data.is_some());
        let refits_gaps = target.is_none() && raw.refit.unwrap_or(has_data);
        if refits_gaps && !has_data {
            let message = "layers around removed blocks are refitted on data; set calibration.data, or remove the key";
            return Err(Error::config(format!("refit: {message}")));
        }
        let refits = target.is_some() && raw.refit.unwrap_or(has_statistics && score != UnitScore::Flap);
        if !matches!(score, UnitScore::Random(_)) {
            refuse("seed", &raw.seed, &format!("{name} shrink stage"))?;
        }
        let needs = score.needs_inputs() || refits || raw.drop_n_blocks.is_some();
        if needs {
            refuse_data(raw, calibration)?;
        }
        let what = match raw.drop_n_blocks {
            Some(_) => "drop_n_blocks".into(),
            None if score.needs_inputs() => format!("method `{name}`"),
            None => "refit".into(),
        };
        let statistics = statistics_file(&raw.statistics, needs, calibration, &what)?;
        if !needs {
            refuse("statistics", &raw.statistics, &format!("{name} shrink stage without refit"))?;
        }
        let is_global = is_global(raw, score)?;
        Ok(Self {
            target,
            floor: raw.floor.unwrap_or(0.0),
            multiple: raw.multiple.unwrap_or(1),
            drop_blocks: raw.drop_blocks.clone(),
            drop_n_blocks: raw.drop_n_blocks,
            parts: parts_of(raw)?,
            score,
            is_global,
            refits,
            refits_gaps,
            statistics,
            include: raw.include.as_ref().map(Patterns::new).transpose()?,
            exclude: Patterns::new(&raw.exclude)?,
        })
    }

    /// Returns whether whole blocks are removed.
    pub fn drops_blocks(&self) -> bool {
        !self.drop_blocks.is_empty() || self.drop_n_blocks.is_some()
    }

    /// Returns the budget of a group of a kind. Only channels are kept in multiples.
    pub fn budget(&self, amount: UnitAmount, kind: GroupKind) -> UnitBudget {
        let multiple = if kind == GroupKind::Heads { 1 } else { self.multiple };
        UnitBudget { amount, floor: self.floor, multiple }
    }
}

/// Refuses a stage without a file if there is calibration data: only files have the statistics of this stage.
fn refuse_data(raw: &RawShrink, calibration: Option<&RawCalibration>) -> Result<()> {
    match calibration {
        Some(RawCalibration { data: Some(_), .. }) if raw.statistics.is_none() => Err(Error::config(
            "statistics: found calibration.data, expected a file; run `briquette calibrate --gram`, and set the file as statistics",
        )),
        _ => Ok(()),
    }
}

fn parts_of(raw: &RawShrink) -> Result<Vec<GroupKind>> {
    let known = GroupKind::ALL.map(|kind| (kind.name(), kind));
    match &raw.parts {
        None => Ok(PARTS.to_vec()),
        Some(names) if names.is_empty() => {
            Err(Error::config("parts: found none, expected one or more; remove the key"))
        }
        Some(names) => names.iter().map(|name| one_of("parts", name, &known)).collect(),
    }
}

fn target_of(raw: &RawShrink) -> Result<Option<ShrinkTarget>> {
    let ratio = raw.ratio.map(|ratio| ("ratio", ShrinkTarget::Units(UnitAmount::Ratio(ratio))));
    let count = raw.count.map(|count| ("count", ShrinkTarget::Units(UnitAmount::Count(count))));
    let share =
        raw.multiply_adds.map(|share| ("multiply_adds", ShrinkTarget::AtMost(ShrinkLimit::MultiplyAdds(share))));
    let bytes = raw.max_bytes.as_deref().map(|text| {
        Ok::<_, Error>(("max_bytes", ShrinkTarget::AtMost(ShrinkLimit::Bytes(bytes_of("max_bytes", text)?))))
    });
    let latency = raw.latency.map(|share| ("latency", ShrinkTarget::AtMost(ShrinkLimit::Latency(share))));
    let given = [ratio, count, share, bytes.transpose()?, latency];
    let given: Vec<(&str, ShrinkTarget)> = given.into_iter().flatten().collect();
    if raw.drop_n_blocks.is_some() && !raw.drop_blocks.is_empty() {
        return Err(Error::config("drop_n_blocks: drop_blocks already names the blocks; remove one of the two"));
    }
    let is_experts = |part: &String| part == GroupKind::Experts.name();
    if raw.multiply_adds.is_some() && raw.parts.as_ref().is_some_and(|parts| parts.iter().all(is_experts)) {
        return Err(Error::config(
            "multiply_adds: each token runs as many experts before and after; set ratio, count, max_bytes or latency instead",
        ));
    }
    match given.as_slice() {
        [] if raw.drop_blocks.is_empty() && raw.drop_n_blocks.is_none() => Err(Error::config(
            "ratio: missing; set it, such as ratio = 0.25, or count, multiply_adds, max_bytes, latency, drop_blocks or drop_n_blocks",
        )),
        [] => Ok(None),
        [(_, target)] => Ok(Some(*target)),
        [(first, _), (second, _), ..] => {
            Err(Error::config(format!("{second}: {first} already sets the amount; remove one of the two")))
        }
    }
}

fn is_global(raw: &RawShrink, score: UnitScore) -> Result<bool> {
    let name = raw.scope.as_deref().unwrap_or("layer");
    let is_global = one_of("scope", name, &[("layer", false), ("global", true)])?;
    let has_experts = raw.parts.iter().flatten().any(|part| part == GroupKind::Experts.name());
    let reason = match (score, raw.ratio) {
        _ if !is_global => return Ok(false),
        _ if has_experts => "every layer loses as many experts; use scope = \"layer\"",
        (UnitScore::Osscar, _) => {
            "method osscar compares units of one group only; use scope = \"layer\", or another method"
        }
        (_, None) => "a global threshold needs a ratio; set ratio instead of another amount",
        _ => return Ok(true),
    };
    Err(Error::config(format!("scope: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::recipe::Recipe;
    use crate::parse::stage::{ModelStage, TransformStage};
    use crate::parse::text::parse;

    fn stage(keys: &str, tables: &str) -> Result<ShrinkStage, String> {
        let text = format!("model.path = \"m\"\noutput.path = \"o\"\n{tables}[[stage]]\nkind = \"shrink\"\n{keys}");
        let recipe =
            Recipe::from_raw(parse(&text, "r.toml").unwrap(), "d".as_ref()).map_err(|error| error.to_string())?;
        match recipe.parts.into_iter().next().map(|part| part.then) {
            Some(ModelStage::Transform(stage)) => match *stage {
                TransformStage::Shrink(stage) => Ok(stage),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn statistics_choose_osscar_and_a_refit() {
        let plain = stage("ratio = 0.25\n", "").unwrap();
        assert_eq!((plain.score, plain.refits, plain.statistics), (UnitScore::L2, false, None));
        assert_eq!(plain.parts, PARTS);
        let with = stage("ratio = 0.25\nstatistics = \"s\"\n", "").unwrap();
        assert_eq!((with.score, with.refits), (UnitScore::Osscar, true));
        assert_eq!(with.statistics.as_deref(), Some("d/s".as_ref()));
        let shared =
            stage("count = 3\nmethod = \"wanda\"\nrefit = false\n", "[calibration]\nstatistics = \"s\"\n").unwrap();
        assert_eq!((shared.score, shared.refits), (UnitScore::Wanda, false));
        assert_eq!(shared.target, Some(ShrinkTarget::Units(UnitAmount::Count(3))));
        let blocks = stage("drop_blocks = [2, 5]\n", "").unwrap();
        assert_eq!((blocks.target, blocks.drop_blocks), (None, vec![2, 5]));
    }

    #[test]
    fn only_channels_are_kept_in_multiples() {
        let stage =
            stage("ratio = 0.5\nmultiple = 8\nfloor = 0.25\nparts = [\"heads\", \"feed-forward\"]\n", "").unwrap();
        let budget = |kind| stage.budget(UnitAmount::Ratio(0.5), kind).n_removed(12);
        assert_eq!((budget(GroupKind::Heads), budget(GroupKind::FeedForward)), (Some(6), Some(4)));
    }

    #[test]
    fn contradictory_keys_are_refused() {
        let cases = [
            ("", "ratio: missing"),
            ("ratio = 1\n", "ratio: found 1, expected a number from 0 to below 1"),
            ("ratio = 0.5\ncount = 3\n", "count: ratio already sets"),
            ("multiply_adds = 0\n", "multiply_adds: found 0, expected a number above 0 and below 1"),
            ("max_bytes = \"9.4\"\n", "max_bytes: found \"9.4\", expected a size with its unit"),
            ("max_bytes = \"9MB\"\nlatency = 0.5\n", "latency: max_bytes already sets"),
            ("multiply_adds = 0.5\nparts = [\"experts\"]\n", "multiply_adds: each token runs as many experts"),
            ("drop_blocks = [1]\nrefit = true\n", "refit: layers around removed blocks are refitted on data"),
            ("latency = 1\n", "latency: found 1, expected a number above 0 and below 1"),
            ("ratio = 0.5\nmultiple = 0\n", "multiple: found 0, expected a whole number from 1"),
            ("ratio = 0.5\nfloor = 2\n", "floor: found 2"),
            (
                "ratio = 0.5\nparts = [\"head\"]\n",
                "parts: found \"head\", expected one of feed-forward, heads, channels, experts, width",
            ),
            ("ratio = 0.5\nparts = []\n", "parts: found none"),
            ("ratio = 0.5\nmethod = \"osscar\"\n", "statistics: missing; method `osscar` needs layer inputs"),
            ("ratio = 0.5\nrefit = true\n", "statistics: missing; refit needs layer inputs"),
            ("ratio = 0.5\nseed = 3\n", "seed: a l2 shrink stage has no such key"),
            ("ratio = 0.5\nscope = \"global\"\nstatistics = \"s\"\n", "scope: method osscar compares"),
            ("count = 5\nscope = \"global\"\n", "scope: a global threshold needs a ratio"),
            ("ratio = 0.5\nsparsity = 0.5\n", "sparsity: a shrink stage has no such key"),
        ];
        for (keys, expected) in cases {
            let error = stage(keys, "").unwrap_err();
            assert!(error.starts_with(&format!("stage 1 (shrink): {expected}")), "{keys}: {error}");
        }
        let error = stage("ratio = 0.5\nmethod = \"osscar\"\n", "[calibration]\ndata = \"t\"\n").unwrap_err();
        assert!(error.contains("found calibration.data, expected a file"), "{error}");
        // Data may serve a later stage.
        stage("ratio = 0.5\nmethod = \"osscar\"\nstatistics = \"s\"\n", "[calibration]\ndata = \"t\"\n").unwrap();
    }
}

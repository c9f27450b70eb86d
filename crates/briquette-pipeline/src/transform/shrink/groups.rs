//! The groups that a shrink stage cuts, and how many units they lose.

use super::limit::{Limit, Measure};
use crate::transform::headed::HeadedModel;
use briquette_core::{Error, Result};
use briquette_graph::Graph;
use briquette_graph::coupling::{Couplings, GroupKind, UnitId};
use briquette_methods::prune::units::UnitAmount;
use briquette_recipe::{ShrinkStage, ShrinkTarget};
use std::collections::BTreeSet;

/// A group that loses units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChosenGroup {
    /// The index of the group.
    pub(super) group: usize,
    /// The number of units to remove; with a global threshold, the number of an equal share.
    pub(super) n_removed: usize,
}

/// Returns units of every chosen group that are spread evenly, so that each part of a split axis loses some.
pub(super) fn spread_units(chosen: &[ChosenGroup], couplings: &Couplings) -> BTreeSet<UnitId> {
    let units = |chosen: &ChosenGroup| {
        let (group, n_removed) = (chosen.group, chosen.n_removed);
        let n = couplings.groups[group].units.len();
        let is_removed = move |unit: &usize| (unit + 1) * n_removed / n > unit * n_removed / n;
        (0..n).filter(is_removed).map(move |unit| UnitId { group, unit })
    };
    chosen.iter().flat_map(units).collect()
}

/// Returns the first units of every chosen group, or the last ones.
pub(super) fn end_units(chosen: &[ChosenGroup], couplings: &Couplings, is_last: bool) -> BTreeSet<UnitId> {
    let units = |chosen: &ChosenGroup| {
        let (group, n_removed) = (chosen.group, chosen.n_removed);
        let start = if is_last { couplings.groups[group].units.len() - n_removed } else { 0 };
        (start..start + n_removed).map(move |unit| UnitId { group, unit })
    };
    chosen.iter().flat_map(units).collect()
}

/// Chooses groups by kind and names, and the number of units that each loses. `ratio` is that of a limit which experts count for too.
///
/// # Errors
/// - Config: no group is chosen, a count leaves nothing of a group, nothing is removed, or the amount is out of reach.
/// - The error of `latency`.
pub(super) fn choose(
    stage: &ShrinkStage,
    model: &HeadedModel,
    couplings: &Couplings,
    (ratio, latency): (Option<f64>, Measure),
) -> Result<Vec<ChosenGroup>> {
    let graph = &model.graph;
    let Some(target) = stage.target.filter(|_| !has_only_experts(stage)) else { return Ok(Vec::new()) };
    check_patterns(stage, graph)?;
    let groups: Vec<usize> =
        (0..couplings.groups.len()).filter(|&group| is_chosen(stage, graph, couplings, group)).collect();
    let parts: Vec<&str> = stage.parts.iter().map(|part| part.name()).collect();
    if groups.is_empty() {
        let message =
            format!("the network has no {} that can be removed; choose other parts or tensors", parts.join(" or "));
        return Err(Error::config(message).at("shrink"));
    }
    let chosen = match ratio.map_or(target, |ratio| ShrinkTarget::Units(UnitAmount::Ratio(ratio))) {
        ShrinkTarget::Units(amount) => of_amount(stage, graph, couplings, &groups, amount)?,
        ShrinkTarget::AtMost(limit) => of_limit(stage, model, couplings, &groups, &Limit::of(limit, model, latency))?,
    };
    if chosen.iter().all(|chosen| chosen.n_removed == 0) && !stage.drops_blocks() && ratio.is_none() {
        let message =
            format!("no unit of {} groups is removed; raise the ratio, or lower floor and multiple", chosen.len());
        return Err(Error::config(message).at("shrink"));
    }
    Ok(chosen)
}

/// Returns whether a stage removes nothing but experts and blocks.
pub(super) fn has_only_experts(stage: &ShrinkStage) -> bool {
    stage.parts.iter().all(|part| *part == GroupKind::Experts)
}

/// Refuses patterns that match no tensor.
fn check_patterns(stage: &ShrinkStage, graph: &Graph) -> Result<()> {
    let names = || graph.weights.iter().map(|weight| weight.name.as_str());
    stage.include.iter().chain([&stage.exclude]).try_for_each(|patterns| patterns.check_used("tensor", names()))
}

/// Returns whether a group is cut. Without `include`, feed-forward layers outside of blocks, such as heads of tasks, are not.
fn is_chosen(stage: &ShrinkStage, graph: &Graph, couplings: &Couplings, group: usize) -> bool {
    let (kind, group) = (couplings.kinds[group], &couplings.groups[group]);
    let names = || group.places.iter().map(|place| graph.weights[place.weight.0].name.as_str());
    let is_included = match &stage.include {
        Some(patterns) => names().any(|name| patterns.matches(name)),
        None => kind != GroupKind::FeedForward || graph.blocks.is_empty() || group.is_in_block(graph),
    };
    stage.parts.contains(&kind) && is_included && !names().any(|name| stage.exclude.matches(name))
}

/// Returns an error that names the first tensor of a group.
pub(super) fn at_group(error: Error, graph: &Graph, couplings: &Couplings, group: usize) -> Error {
    let first = couplings.groups[group].places.first();
    let name = first.map_or("", |place| graph.weights[place.weight.0].name.as_str());
    error.at(format_args!("tensor {name:?}"))
}

fn of_amount(
    stage: &ShrinkStage,
    graph: &Graph,
    couplings: &Couplings,
    groups: &[usize],
    amount: UnitAmount,
) -> Result<Vec<ChosenGroup>> {
    let of_group = |&group: &usize| {
        let n = couplings.groups[group].units.len();
        match stage.budget(amount, couplings.kinds[group]).n_removed(n) {
            Some(n_removed) => Ok(ChosenGroup { group, n_removed }),
            None => {
                let kind = couplings.kinds[group];
                let message = format!("count: nothing is left of {n} {kind}; lower it, or exclude the tensor");
                Err(at_group(Error::config(message), graph, couplings, group))
            }
        }
    };
    groups.iter().map(of_group).collect()
}

/// Finds the smallest ratio that leaves at most an amount of what a measure counts.
fn of_limit(
    stage: &ShrinkStage,
    model: &HeadedModel,
    couplings: &Couplings,
    groups: &[usize],
    limit: &Limit,
) -> Result<Vec<ChosenGroup>> {
    let at = |ratio: f64| -> Result<(Vec<ChosenGroup>, f64)> {
        let chosen = of_amount(stage, &model.graph, couplings, groups, UnitAmount::Ratio(ratio))?;
        let smaller = model.graph.without_units(couplings, &spread_units(&chosen, couplings))?.graph;
        Ok((chosen, (limit.measure)(model, &smaller)?))
    };
    limit.smallest_ratio(&at).map(|(_, best)| best)
}

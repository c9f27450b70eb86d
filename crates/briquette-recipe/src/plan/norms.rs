//! Plans weight-normalized layers: their lengths change together with their pruned or quantized directions.

use crate::plan::role::weight_norm;
use briquette_core::{Error, Remedy, Result};
use briquette_methods::prune::SparsityPattern;
use briquette_writer::ties::Ties;
use briquette_writer::{Cut, NormGroups, Plan, TensorPlan, WeightNorm};
use std::collections::{BTreeMap, BTreeSet};

/// The reason for directions that are not pruned in memory.
const IN_MEMORY: &str = "directions of a weight norm are pruned in files only";

/// The reason for the lengths of pruned directions.
const RESCALED: &str = "lengths of a weight norm: scaled so that the kept weights of the layer do not change";

/// The index of the directions, the index of their lengths, and the groups that share a norm.
type NormPair = (usize, usize, NormGroups);

/// Adds the weight norms of a plan, and keeps at least one weight per norm.
///
/// Directions stay tied only if their lengths are tied too, and vice versa.
///
/// # Errors
/// Config: a stage prunes directions with input statistics.
pub(crate) fn link(plan: &mut Plan, ties: &mut Ties) -> Result<()> {
    let pairs = pairs_of(plan);
    untie(&pairs, ties);
    let mut n_spared = 0;
    for (directions, lengths, groups) in pairs {
        check_score(&plan.tensors[directions])?;
        n_spared += usize::from(spare_largest(&mut plan.tensors[directions], groups));
        if plan.tensors[directions].prune.is_some() {
            let lengths = &mut plan.tensors[lengths];
            (lengths.is_moved, lengths.skipped) = (true, Some(RESCALED.into()));
        }
        plan.norms.insert(directions, WeightNorm::new(lengths, groups));
    }
    if n_spared > 0 {
        let tensors = if n_spared == 1 { "1 tensor keeps" } else { &format!("{n_spared} tensors keep") };
        plan.remarks.push(format!(
            "{tensors} more weights than the recipe sets: every norm of a weight norm keeps its largest weight."
        ));
    }
    Ok(())
}

/// Cancels the pruning of directions in memory, where no code updates their lengths.
pub(crate) fn leave_in_memory(plan: &mut Plan) {
    let pairs = pairs_of(plan).into_iter().map(|(directions, ..)| directions);
    let pruned: BTreeSet<usize> = pairs.filter(|&index| plan.tensors[index].prune.is_some()).collect();
    for &index in &pruned {
        let tensor = &mut plan.tensors[index];
        (tensor.prune, tensor.solve.reconstruction) = (None, None);
        if !tensor.is_changed() {
            tensor.skipped = Some(IN_MEMORY.into());
        }
        plan.remarks.push(format!("{}: {IN_MEMORY}; export the module, and prune the files.", tensor.culprit()));
    }
    plan.pools.iter_mut().for_each(|pool| pool.tensors.retain(|index| !pruned.contains(index)));
}

/// Returns the weight norms whose directions are pruned, quantized or cast.
fn pairs_of(plan: &Plan) -> Vec<NormPair> {
    let is_new = |tensor: &TensorPlan| {
        tensor.prune.is_some() || tensor.cast.is_some() || tensor.quant.is_some_and(|quant| !quant.is_given)
    };
    let named = |tensor: &TensorPlan| Some((weight_norm::lengths_of(&tensor.info.name)?, tensor.index()));
    let wanted: BTreeMap<String, usize> = plan.tensors.iter().filter(|one| is_new(one)).filter_map(named).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let pair = |lengths: &TensorPlan| {
        let directions = &plan.tensors[*wanted.get(lengths.info.name.as_str())?];
        let groups = NormGroups::of(&directions.info.shape, directions.output_rows, &lengths.info.shape)?;
        lengths.info.dtype.is_weight().then_some((directions.index(), lengths.index(), groups))
    };
    plan.tensors.iter().filter_map(pair).collect()
}

/// Removes ties between directions whose lengths are not tied, and vice versa.
fn untie(pairs: &[NormPair], ties: &mut Ties) {
    let both = pairs.iter().flat_map(|&(directions, lengths, _)| [(directions, lengths), (lengths, directions)]);
    let partners: BTreeMap<usize, usize> = both.collect();
    let known = ties.clone();
    ties.retain(|index, first| match (partners.get(index), partners.get(first)) {
        (None, None) => true,
        (Some(own), Some(other)) => known.get(own) == Some(other),
        _ => false,
    });
}

/// Refuses scores and solvers that use layer inputs, because these belong to `w`, which no file contains.
fn check_score(tensor: &TensorPlan) -> Result<()> {
    let is_by_inputs = tensor.prune.is_some_and(|prune| prune.score.needs_inputs());
    if !is_by_inputs && tensor.solve.reconstruction.is_none() {
        return Ok(());
    }
    let message =
        "directions of a weight norm can be pruned by magnitude only, not with input statistics; exclude them";
    let remedy = Remedy::Exclude(vec![tensor.info.name.to_string()]);
    Err(Error::config(message).at(tensor.culprit()).with_remedy(remedy))
}

/// Keeps at least one weight per norm. Returns whether fewer weights are pruned because of that.
fn spare_largest(tensor: &mut TensorPlan, groups: NormGroups) -> bool {
    let most = tensor.info.n_elements() - groups.n();
    let Some(Cut::Pattern(SparsityPattern::Unstructured(n_drop))) = tensor.prune.map(|prune| prune.cut) else {
        return false;
    };
    if n_drop <= most {
        return false;
    }
    if let Some(prune) = &mut tensor.prune {
        prune.cut = Cut::Pattern(SparsityPattern::Unstructured(most));
    }
    true
}

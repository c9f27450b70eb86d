//! Plans a recipe that trains, before its student exists.

use crate::plan::interop::Loads;
use crate::plan::role::RoleContext;
use crate::plan::topology::{Topology, topology_of};
use crate::plan::untouched::untouched_tensors;
use crate::plan::{choose, heads, storage};
use crate::raw::RawLayout;
use crate::{DistillStage, Recipe, Student};
use briquette_core::Result;
use briquette_core::RoleRule;
use briquette_formats::model_config::ModelFamily;
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, WeightLayout};
use briquette_writer::ties::ties_of;
use briquette_writer::{Plan, Pool, Stop, TensorPlan};
use std::collections::{BTreeMap, BTreeSet};

fn trainings(recipe: &Recipe) -> impl Iterator<Item = &DistillStage> {
    recipe.parts.iter().filter_map(|part| part.then.as_distill())
}

/// Plans a student with these tensors. The stages before the training are checked against the model.
pub(crate) fn plan<'a>(
    recipe: &Recipe,
    checkpoint: &'a Checkpoint,
    tensors: &'a [TensorInfo],
    stop: &Stop,
) -> Result<Plan<'a>> {
    let topology = topology_of(recipe, checkpoint)?;
    let mut before = crate::plan::untouched::untouched(recipe, checkpoint, &topology, None)?;
    before.check_axes()?;
    let n_before: usize = recipe.parts.iter().map(|part| part.stages.len()).sum();
    let first = recipe.parts.iter().flat_map(|part| &part.stages).enumerate();
    choose::apply_stages(&mut before, first, &BTreeSet::new(), None)?;
    before.check_fit()?;
    let mut plan = untouched(recipe, checkpoint, tensors, &before)?;
    plan.check_axes()?;
    let is_same = trainings(recipe).all(|stage| stage.student == Student::Same);
    if is_same {
        keep_pruned(&mut plan, &before);
    }
    if !is_same && n_before > 0 || trainings(recipe).any(|stage| stage.gradual.is_some()) {
        let matrices = tensors.iter().filter(|info| info.shape.rank() >= 2);
        may_be_smaller(&mut plan, &matrices.map(|info| info.name.as_str()).collect());
    }
    if !trainings(recipe).any(|stage| matches!(stage.student, Student::Sizes(_))) {
        may_be_smaller(&mut plan, &tied(checkpoint, stop)?);
    }
    let last = recipe.stages.iter().enumerate().map(|(index, stage)| (n_before + index, stage));
    let loads = plan.profile.is_for_transformers().then(|| Loads::of(checkpoint)).transpose()?;
    let heads = heads_of(&plan, recipe, checkpoint)?;
    choose::apply_stages(&mut plan, last, &heads, loads.as_ref())?;
    plan.check_fit()?;
    if let Some(loads) = loads {
        plan.untested = loads.check(&plan, recipe)?;
    }
    storage::choose(&mut plan, recipe.codes_entropy);
    Ok(plan)
}

/// Returns a plan that keeps every tensor of the student unchanged.
fn untouched<'a>(
    recipe: &Recipe,
    checkpoint: &Checkpoint,
    tensors: &'a [TensorInfo],
    before: &Plan,
) -> Result<Plan<'a>> {
    let names = || tensors.iter().map(|info| info.name.as_str());
    let used = |rule: &RoleRule| rule.patterns.check_used("tensor of the student", names());
    recipe.roles.iter().try_for_each(used).map_err(|error| error.at("model.roles"))?;
    // A trained student is written in the recipe's layout, by default PyTorch's.
    let layout = recipe.layout.map_or(WeightLayout::Torch, RawLayout::said);
    let mut roles = RoleContext::new(tensors, ModelFamily::of(checkpoint)?, Some(layout), &recipe.roles);
    // An ONNX student has the graph of its model.
    if checkpoint.network_file().is_some()
        && let Some(graph) = Topology::of(checkpoint, Some(layout))?.graph()
    {
        roles = roles.with_graph(graph);
    }
    let tensors = untouched_tensors(tensors, |_, info| roles.of(info));
    let Plan { profile, max_shard_bytes, nonfinite, .. } = *before;
    let (pools, metadata, remarks, untested) = (Vec::new(), BTreeMap::new(), Vec::new(), None);
    let inputs = BTreeMap::new();
    let (outlier_pools, norms) = (Vec::new(), BTreeMap::new());
    Ok(Plan {
        piece_sizes: briquette_writer::piece::PieceSizes::LARGE,
        tensors,
        pools,
        outlier_pools,
        skeleton: None,
        norms,
        layout,
        metadata,
        profile,
        max_shard_bytes,
        nonfinite,
        remarks,
        untested,
        inputs,
    })
}

/// Returns the student's tensors that are both embedding and head in the model.
fn heads_of(plan: &Plan, recipe: &Recipe, checkpoint: &Checkpoint) -> Result<BTreeSet<usize>> {
    if !heads::matter(recipe.stages.iter()) {
        return Ok(BTreeSet::new());
    }
    let names = heads::names(checkpoint, &recipe.roles)?;
    let are = plan.tensors.iter().filter(|tensor| names.contains(tensor.info.name.as_str()));
    Ok(are.map(|tensor| tensor.index()).collect())
}

/// Plans the same pruned weights for the student as for the model that it is trained from.
fn keep_pruned(plan: &mut Plan, before: &Plan) {
    let places: BTreeMap<&str, usize> =
        plan.tensors.iter().map(|tensor| (tensor.info.name.as_str(), tensor.index())).collect();
    let place = |of: &TensorPlan| places.get(of.info.name.as_str()).copied();
    let pool = |pool: &Pool| Pool {
        tensors: pool.tensors.iter().filter_map(|&index| place(&before.tensors[index])).collect(),
        ratio: pool.ratio,
    };
    let pools = before.pools.iter().map(pool).collect();
    let pruned: Vec<_> = before.tensors.iter().filter_map(|of| Some((place(of)?, of.prune?))).collect();
    for (index, prune) in pruned {
        plan.tensors[index].prune = Some(prune);
    }
    plan.pools = pools;
}

/// Returns the names of tied tensors of the model. The student stores them once too, if training keeps them
/// equal.
fn tied<'a>(checkpoint: &'a Checkpoint, stop: &Stop) -> Result<BTreeSet<&'a str>> {
    let both = ties_of(checkpoint, stop)?.into_iter().flat_map(|(index, first)| [index, first]);
    Ok(both.map(|index| checkpoint.tensors()[index].name.as_str()).collect())
}

/// Marks tensors as possibly sparse: zeros after training may reduce their size by an unknown amount.
fn may_be_smaller(plan: &mut Plan, names: &BTreeSet<&str>) {
    let holds_sparse = plan.profile.holds_sparse();
    let chosen = plan.tensors.iter_mut().filter(|tensor| holds_sparse && names.contains(tensor.info.name.as_str()));
    chosen.for_each(|tensor| tensor.was_sparse = true);
}

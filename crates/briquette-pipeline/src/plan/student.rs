//! The plan of a recipe that trains: its last stages work on a student, which is not there yet.

use super::{Plan, Pool, TensorPlan, choose};
use crate::context::Stop;
use crate::distill;
use crate::recipe::raw::RawLayout;
use crate::recipe::{DistillStage, Recipe, Student, Whole};
use crate::role::RoleRule;
use crate::ties::ties_of;
use briquette_core::Result;
use briquette_formats::{Checkpoint, Profile, TensorInfo, TensorSource};
use std::collections::{BTreeMap, BTreeSet};

/// The tensors of what the last stages work on, where a recipe trains it: those of its last student, by headers and sizes. None where
/// it does not, or makes factors, which are not foretold.
///
/// # Errors
/// Config where a stage's student cannot be made of the model; Input where its config.json is damaged.
pub fn student_of(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<Option<Vec<TensorInfo>>> {
    let has_factors = recipe.parts.iter().any(|part| matches!(part.then, Whole::Factorize(_)));
    if trainings(recipe).next().is_none() || has_factors {
        return Ok(None);
    }
    distill::foretold(trainings(recipe), checkpoint).map(Some)
}

fn trainings(recipe: &Recipe) -> impl Iterator<Item = &DistillStage> {
    recipe.parts.iter().filter_map(|part| part.then.as_distill())
}

/// What becomes of a student of these tensors. What comes before a training works on the model, and is held against that.
pub(super) fn plan(recipe: &Recipe, checkpoint: &Checkpoint, tensors: &[TensorInfo], stop: &Stop) -> Result<Plan> {
    let mut before = Plan::untouched(recipe, checkpoint);
    let n_before: usize = recipe.parts.iter().map(|part| part.stages.len()).sum();
    choose::apply_stages(&mut before, recipe.parts.iter().flat_map(|part| &part.stages).enumerate())?;
    before.check_fit()?;
    let mut plan = untouched(recipe, tensors, &before)?;
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
    choose::apply_stages(&mut plan, last)?;
    plan.check_fit()?;
    Ok(plan)
}

/// Every tensor of the student as it is.
fn untouched(recipe: &Recipe, tensors: &[TensorInfo], before: &Plan) -> Result<Plan> {
    let names = || tensors.iter().map(|info| info.name.as_str());
    let used = |rule: &RoleRule| rule.patterns.check_used("tensor of the student", names());
    recipe.roles.iter().try_for_each(used).map_err(|error| error.at("model.roles"))?;
    let layout = recipe.layout.unwrap_or(RawLayout::Torch);
    let tensors = tensors.iter().enumerate().map(|(index, info)| TensorPlan::untouched(index, info, recipe, layout));
    let Plan { profile, max_shard_bytes, allow_nonfinite, .. } = *before;
    let (tensors, pools, metadata) = (tensors.collect(), Vec::new(), BTreeMap::new());
    Ok(Plan { tensors, pools, layout, metadata, profile, max_shard_bytes, allow_nonfinite })
}

/// What was pruned of the model stays so in what is trained of it.
fn keep_pruned(plan: &mut Plan, before: &Plan) {
    let places: BTreeMap<&str, usize> =
        plan.tensors.iter().map(|tensor| (tensor.info.name.as_str(), tensor.index)).collect();
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

/// Names of tensors that are the same in the model: they are kept once where that holds after training too.
fn tied<'a>(checkpoint: &'a Checkpoint, stop: &Stop) -> Result<BTreeSet<&'a str>> {
    let ties = ties_of(checkpoint, stop)?.into_iter().enumerate();
    let both = ties.filter_map(|(index, first)| Some([index, first?])).flatten();
    Ok(both.map(|index| checkpoint.tensors()[index].name.as_str()).collect())
}

/// Zeros that training leaves may make these smaller, by how much is not known before.
fn may_be_smaller(plan: &mut Plan, names: &BTreeSet<&str>) {
    let is_ours = plan.profile == Profile::Briquette;
    let chosen = plan.tensors.iter_mut().filter(|tensor| is_ours && names.contains(tensor.info.name.as_str()));
    chosen.for_each(|tensor| tensor.was_sparse = true);
}

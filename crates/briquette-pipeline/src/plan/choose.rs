//! Which stage has a say over which tensor.

use super::interop::Loads;
use super::{Cut, Plan, Pool, Prune, Quant, TensorPlan};
use crate::recipe::{CastStage, Method, PruneStage, QuantizeStage, Recipe, Stage, Target};
use crate::role::Role;
use briquette_core::{Error, Grid, GridKind, Hash128, OutputAxis, Result};
use briquette_quant::Scheme;
use std::collections::{BTreeMap, BTreeSet};

/// Applies every stage, and says of the rest why nothing is done to it.
/// `loads` is for compressed-tensors.
pub(super) fn apply_stages(plan: &mut Plan, recipe: &Recipe, loads: Option<&Loads>) -> Result<()> {
    for (number, stage) in recipe.file_stages().enumerate() {
        let name = format!("stage {} ({})", number + 1, stage.kind());
        apply_stage(plan, stage, loads).map_err(|error| error.at(name))?;
    }
    for tensor in plan.tensors.iter_mut().filter(|tensor| !tensor.is_changed() && tensor.skipped.is_none()) {
        let why = match tensor.role {
            Role::Other => format!("{} is kept as it is", tensor.info.dtype),
            Role::Unknown | Role::Parameter => format!("{}: {}", tensor.role.name(), tensor.why.words()),
            role => format!("{} not chosen by any stage", role.name()),
        };
        tensor.leave(&why);
    }
    Ok(())
}

fn apply_stage(plan: &mut Plan, stage: &Stage, loads: Option<&Loads>) -> Result<()> {
    let selection = stage.selection();
    let names = plan.tensors.iter().map(|tensor| tensor.info.name.as_str());
    if let Some(include) = &selection.include {
        include.check_used("tensor", names.clone())?;
    }
    selection.exclude.check_used("tensor", names)?;
    let is_chosen = |tensor: &TensorPlan| {
        tensor.info.dtype.is_weight()
            && tensor.info.n_elements() > 0
            && selection.chooses(&tensor.info.name, tensor.role)
    };
    let chosen: Vec<usize> = (0..plan.tensors.len()).filter(|&index| is_chosen(&plan.tensors[index])).collect();
    if chosen.is_empty() {
        return Err(Error::config(
            "chooses no tensor; give `include` or `roles`, and see `briquette inspect` for names and roles",
        ));
    }
    let names = chosen.iter().map(|&index| plan.tensors[index].info.name.as_str());
    stage.overrides().into_iter().try_for_each(|patterns| {
        patterns.check_used("tensor that this stage chooses", names.clone()).map_err(|error| error.at("overrides"))
    })?;
    match stage {
        Stage::Prune(stage) => prune(plan, stage, &chosen),
        Stage::Quantize(stage) => quantize(plan, stage, &chosen, loads),
        Stage::Cast(stage) => cast(plan, stage, &chosen),
    }
}

fn prune(plan: &mut Plan, stage: &PruneStage, chosen: &[usize]) -> Result<()> {
    let pool = plan.pools.len();
    let mut pooled = Vec::new();
    for &index in chosen {
        let tensor = &mut plan.tensors[index];
        if tensor.prune.is_some() {
            let message = "is chosen by an earlier prune stage too; exclude it from one";
            return Err(Error::config(message).at(tensor.culprit()));
        }
        let own =
            stage.overrides.iter().rfind(|(patterns, _)| patterns.matches(&tensor.info.name)).map(|(_, ratio)| *ratio);
        let n = tensor.info.n_elements();
        let cut = match (own, stage.target) {
            (Some(ratio), _) | (None, Target::Layer(ratio)) => Cut::Count(ratio.of(n)),
            (None, Target::NOfM { n, m }) => Cut::NOfM { n, m },
            (None, Target::Global(_)) => {
                pooled.push(index);
                Cut::Pool(pool)
            }
        };
        let method = match stage.method {
            Method::Random(seed) => Method::Random(seed ^ Hash128::of_block(tensor.info.name.as_bytes()).0 as u64),
            Method::Magnitude => Method::Magnitude,
        };
        tensor.prune = Some(Prune { method, cut });
    }
    if let (Target::Global(ratio), false) = (stage.target, pooled.is_empty()) {
        plan.pools.push(Pool { tensors: pooled, ratio });
    }
    Ok(())
}

fn quantize(plan: &mut Plan, stage: &QuantizeStage, chosen: &[usize], loads: Option<&Loads>) -> Result<()> {
    for &index in chosen {
        let tensor = &mut plan.tensors[index];
        let at = |error: Error, tensor: &TensorPlan| error.at(tensor.culprit());
        if tensor.quant.is_some() {
            return Err(at(Error::config("is chosen by an earlier quantize stage too; exclude it from one"), tensor));
        }
        let own = stage.overrides.iter().rfind(|(patterns, _)| patterns.matches(&tensor.info.name));
        let scheme = own.map_or(stage.scheme, |(_, scheme)| *scheme);
        let scheme = match loads.map(|loads| loads.refuses(tensor)) {
            Some(Some(why)) => {
                tensor.skipped = tensor.prune.is_none().then_some(why);
                continue;
            }
            Some(None) => interoperable(tensor, scheme).map_err(|error| at(error, tensor))?,
            None => scheme,
        };
        tensor.quant = Some(Quant { spec: scheme.weights, activations: scheme.activations, is_stored: false });
    }
    Ok(())
}

/// Codes are no floats: what is quantized is not cast.
fn cast(plan: &mut Plan, stage: &CastStage, chosen: &[usize]) -> Result<()> {
    for &index in chosen {
        let tensor = &mut plan.tensors[index];
        if tensor.cast.is_some() {
            let message = "is chosen by an earlier cast stage too; exclude it from one";
            return Err(Error::config(message).at(tensor.culprit()));
        }
        if tensor.quant.is_some() {
            continue;
        }
        if tensor.info.dtype == stage.dtype {
            tensor.skipped = (!tensor.is_recoded()).then(|| format!("is {} already", stage.dtype));
            continue;
        }
        (tensor.cast, tensor.skipped) = (Some(stage.dtype), None);
    }
    Ok(())
}

/// A scheme as compressed-tensors holds it.
fn interoperable(tensor: &TensorPlan, scheme: Scheme) -> Result<Scheme> {
    let grid = scheme.weights.grid;
    if grid.is_asymmetric() || ![4, 8].contains(&grid.n_bits()) {
        return Err(Error::config(
            "compressed-tensors holds symmetric int8 and int4 only; choose int8, int8-dynamic or int4-gN",
        ));
    }
    if tensor.rows.axis == OutputAxis::Last {
        let message =
            format!("compressed-tensors wants weights [out, in], and this one lies [in, out]: {}", tensor.why.words());
        return Err(Error::config(message));
    }
    let grid = Grid::new(grid.n_bits(), GridKind::SymmetricFull).unwrap_or(grid);
    let weights = briquette_quant::QuantSpec { grid, scale: Default::default(), ..scheme.weights };
    Ok(Scheme { weights, ..scheme })
}

/// Keeps tied tensors once: all are treated as the embedding among them, or as the first.
pub(super) fn tie(plan: &mut Plan, ties: &[Option<usize>]) {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, first) in ties.iter().enumerate() {
        if let Some(first) = *first {
            groups.entry(first).or_insert_with(|| vec![first]).push(index);
        }
    }
    let mut unpooled = BTreeSet::new();
    for (first, group) in groups {
        let is_embedding = |&&index: &&usize| plan.tensors[index].role == Role::Embedding;
        let main = *group.iter().find(is_embedding).unwrap_or(&first);
        let TensorPlan { prune, quant, cast, was_sparse, rows, skipped, .. } = plan.tensors[main].clone();
        for &index in &group {
            let tensor = &mut plan.tensors[index];
            (tensor.prune, tensor.quant, tensor.skipped, tensor.rows) = (prune, quant, skipped.clone(), rows);
            (tensor.cast, tensor.was_sparse) = (cast, was_sparse);
            tensor.tied_to = (index != main).then_some(main);
            if index != main || prune.is_none() {
                unpooled.insert(index);
            }
        }
    }
    plan.pools.iter_mut().for_each(|pool| pool.tensors.retain(|index| !unpooled.contains(index)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::raw::RawLayout;
    use crate::role::Reason;
    use briquette_core::{DType, Rows};
    use briquette_formats::{Profile, TensorInfo};
    use briquette_prune::Ratio;

    /// Tensors of one shape; every one is in a pool, the second of each four is an embedding.
    fn pooled(n: usize) -> Plan {
        let tensor = |index: usize| {
            let info = TensorInfo::checked(format!("t{index}"), DType::F32, vec![2, 2]).unwrap();
            let role = if index % 4 == 1 { Role::Embedding } else { Role::Linear };
            let prune = (role == Role::Linear).then_some(Prune { method: Method::Magnitude, cut: Cut::Pool(0) });
            let rows = Rows::of(&info.shape, OutputAxis::First);
            TensorPlan {
                index,
                info,
                role,
                axis: OutputAxis::First,
                why: Reason::Matrix,
                rows,
                prune,
                quant: None,
                cast: None,
                was_sparse: false,
                tied_to: None,
                skipped: None,
            }
        };
        let tensors: Vec<TensorPlan> = (0..n).map(tensor).collect();
        let pool = tensors.iter().filter(|tensor| tensor.prune.is_some()).map(|tensor| tensor.index).collect();
        let pools = vec![Pool { tensors: pool, ratio: Ratio::new(0.5).unwrap() }];
        let (profile, max_shard_bytes) = (Profile::Briquette, u64::MAX);
        let (layout, metadata) = (RawLayout::Torch, BTreeMap::new());
        let (allow_nonfinite, untested) = (false, None);
        Plan { tensors, pools, layout, metadata, profile, max_shard_bytes, allow_nonfinite, untested }
    }

    #[test]
    fn tied_tensors_follow_the_embedding_among_them_or_the_first() {
        let mut plan = pooled(6);
        tie(&mut plan, &[None, Some(0), None, Some(2), Some(2), None]);
        let tied: Vec<Option<usize>> = plan.tensors.iter().map(|tensor| tensor.tied_to).collect();
        assert_eq!(tied, [Some(1), None, None, Some(2), Some(2), None], "0 follows the embedding 1; 3 and 4 follow 2");
        assert!(plan.tensors[0].prune.is_none(), "as the embedding, which is not pruned");
        assert_eq!(plan.pools[0].tensors, [2], "what is kept once is in the pool once; 5 is an embedding");
    }

    #[test]
    fn a_hundred_thousand_ties_are_found_in_one_pass() {
        let n = 100_000;
        let mut plan = pooled(n);
        let ties: Vec<Option<usize>> = (0..n).map(|index| (index % 2 == 1).then(|| index - 1)).collect();
        let since = std::time::Instant::now();
        tie(&mut plan, &ties);
        assert!(since.elapsed().as_secs() < 2, "{:?}", since.elapsed());
        assert_eq!(plan.tensors.iter().filter(|tensor| tensor.tied_to.is_some()).count(), n / 2);
    }
}

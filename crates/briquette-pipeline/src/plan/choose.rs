//! Which stage has a say over which tensor.

use super::{Cut, Plan, Pool, Prune, Quant, TensorPlan};
use crate::recipe::{CastStage, Method, PruneStage, QuantizeStage, Recipe, Stage, Target};
use crate::role::Role;
use briquette_core::{Error, Grid, GridKind, Hash128, OutputAxis, Result};
use briquette_formats::Profile;
use briquette_quant::Scheme;
use std::collections::{BTreeMap, BTreeSet};

/// Applies every stage, and says of the rest why nothing is done to it. `heads` are embeddings that are the head too.
pub(super) fn apply_stages(plan: &mut Plan, recipe: &Recipe, heads: &BTreeSet<usize>) -> Result<()> {
    for (number, stage) in recipe.file_stages().enumerate() {
        let name = format!("stage {} ({})", number + 1, stage.kind());
        apply_stage(plan, stage, heads).map_err(|error| error.at(name))?;
    }
    for tensor in plan.tensors.iter_mut().filter(|tensor| !tensor.is_changed() && tensor.skipped.is_none()) {
        let why = match tensor.role {
            Role::Other => format!("{} is kept as it is", tensor.info.dtype),
            role => format!("{} not chosen by any stage", role.name()),
        };
        tensor.leave(&why);
    }
    Ok(())
}

fn apply_stage(plan: &mut Plan, stage: &Stage, heads: &BTreeSet<usize>) -> Result<()> {
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
        Stage::Quantize(stage) => quantize(plan, stage, &chosen, heads),
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

fn quantize(plan: &mut Plan, stage: &QuantizeStage, chosen: &[usize], heads: &BTreeSet<usize>) -> Result<()> {
    let mut spared = Vec::new();
    for &index in chosen {
        let profile = plan.profile;
        let tensor = &mut plan.tensors[index];
        let at = |error: Error, tensor: &TensorPlan| error.at(tensor.culprit());
        if tensor.quant.is_some() {
            return Err(at(Error::config("is chosen by an earlier quantize stage too; exclude it from one"), tensor));
        }
        let is_head = heads.contains(&index);
        let scheme = stage.scheme_for(&tensor.info.name, is_head);
        let scheme = match profile {
            Profile::CompressedTensors => match interoperable(tensor, scheme).map_err(|error| at(error, tensor))? {
                Some(scheme) => scheme,
                None => {
                    tensor.skipped =
                        tensor.prune.is_none().then(|| "compressed-tensors codes Linear layers only".to_string());
                    continue;
                }
            },
            _ => scheme,
        };
        tensor.quant = Some(Quant { spec: scheme.weights, activations: scheme.activations, is_stored: false });
        spared.extend((is_head && stage.spares_heads() && scheme.weights.grid.n_bits() == 8).then_some(index));
    }
    if let Some(&first) = spared.first() {
        let (name, n_bits) = (&plan.tensors[first].info.name, stage.scheme.weights.grid.n_bits());
        plan.remarks.push(format!(
            "{name} is the embedding and the head in one, and every output loses what it loses: it stays at int8. Name the role \
             embedding (--quantize-roles linear,conv,embedding) to have it in {n_bits} bits."
        ));
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

/// Whether compressed-tensors may hold codes of a tensor: those of Linear layers, but for the head.
pub(super) fn is_interoperable(tensor: &TensorPlan) -> bool {
    let is_head = tensor.info.name.split('.').any(|segment| segment == "lm_head");
    tensor.role == Role::Linear && !is_head && tensor.info.shape.rank() == 2 && tensor.info.name.ends_with(".weight")
}

/// A scheme as compressed-tensors holds it; none for a tensor that stays float there.
fn interoperable(tensor: &TensorPlan, scheme: Scheme) -> Result<Option<Scheme>> {
    if !is_interoperable(tensor) {
        return Ok(None);
    }
    let grid = scheme.weights.grid;
    if grid.is_asymmetric() || ![4, 8].contains(&grid.n_bits()) {
        return Err(Error::config(
            "compressed-tensors holds symmetric int8 and int4 only; choose int8, int8-dynamic or int4-gN",
        ));
    }
    if tensor.rows.axis == OutputAxis::Last {
        return Err(Error::config("compressed-tensors wants weights [out, in]; this one is in burn's layout"));
    }
    let grid = Grid::new(grid.n_bits(), GridKind::SymmetricFull).unwrap_or(grid);
    let weights = briquette_quant::QuantSpec { grid, scale: Default::default(), ..scheme.weights };
    Ok(Some(Scheme { weights, ..scheme }))
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
    use briquette_core::{DType, Rows};
    use briquette_formats::TensorInfo;
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
        Plan { tensors, pools, layout, metadata, profile, max_shard_bytes, allow_nonfinite: false, remarks: Vec::new() }
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

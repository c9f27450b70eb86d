//! Which stage has a say over which tensor.

use super::{Cut, Plan, Pool, Prune, Quant, TensorPlan};
use crate::recipe::{Method, PruneStage, QuantizeStage, Recipe, Stage, Target};
use crate::role::Role;
use briquette_core::{Error, Grid, GridKind, Hash128, OutputAxis, Result};
use briquette_formats::Profile;
use briquette_quant::Scheme;

/// Applies every stage, and says of the rest why nothing is done to it.
pub(super) fn apply_stages(plan: &mut Plan, recipe: &Recipe) -> Result<()> {
    for (number, stage) in recipe.file_stages().enumerate() {
        let name =
            format!("stage {} ({})", number + 1, if matches!(stage, Stage::Prune(_)) { "prune" } else { "quantize" });
        apply_stage(plan, stage).map_err(|error| error.at(name))?;
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

fn apply_stage(plan: &mut Plan, stage: &Stage) -> Result<()> {
    let selection = stage.selection();
    let names: Vec<String> = plan.tensors.iter().map(|tensor| tensor.info.name.clone()).collect();
    let names = names.iter().map(String::as_str);
    if let Some(include) = &selection.include {
        include.check_used(names.clone())?;
    }
    selection.exclude.check_used(names.clone())?;
    let overrides: Vec<_> = match stage {
        Stage::Prune(stage) => stage.overrides.iter().map(|(patterns, _)| patterns).collect(),
        Stage::Quantize(stage) => stage.overrides.iter().map(|(patterns, _)| patterns).collect(),
    };
    overrides.into_iter().try_for_each(|patterns| patterns.check_used(names.clone()))?;
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
    match stage {
        Stage::Prune(stage) => prune(plan, stage, &chosen),
        Stage::Quantize(stage) => quantize(plan, stage, &chosen),
    }
}

fn prune(plan: &mut Plan, stage: &PruneStage, chosen: &[usize]) -> Result<()> {
    let pool = plan.pools.len();
    let mut pooled = Vec::new();
    for &index in chosen {
        let tensor = &mut plan.tensors[index];
        if tensor.prune.is_some() {
            let message = "is chosen by an earlier prune stage too; exclude it from one";
            return Err(Error::config(message).at(format_args!("tensor {:?}", tensor.info.name)));
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

fn quantize(plan: &mut Plan, stage: &QuantizeStage, chosen: &[usize]) -> Result<()> {
    for &index in chosen {
        let profile = plan.profile;
        let tensor = &mut plan.tensors[index];
        let at = |error: Error, tensor: &TensorPlan| error.at(format_args!("tensor {:?}", tensor.info.name));
        if tensor.quant.is_some() {
            return Err(at(Error::config("is chosen by an earlier quantize stage too; exclude it from one"), tensor));
        }
        let own = stage.overrides.iter().rfind(|(patterns, _)| patterns.matches(&tensor.info.name));
        let scheme = own.map_or(stage.scheme, |(_, scheme)| *scheme);
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
    for first in 0..ties.len() {
        let group: Vec<usize> = (0..ties.len()).filter(|&index| index == first || ties[index] == Some(first)).collect();
        if ties[first].is_some() || group.len() == 1 {
            continue;
        }
        let is_embedding = |&&index: &&usize| plan.tensors[index].role == Role::Embedding;
        let main = *group.iter().find(is_embedding).unwrap_or(&first);
        let TensorPlan { prune, quant, was_sparse, rows, skipped, .. } = plan.tensors[main].clone();
        for &index in &group {
            let tensor = &mut plan.tensors[index];
            (tensor.prune, tensor.quant, tensor.skipped, tensor.rows) = (prune, quant, skipped.clone(), rows);
            tensor.was_sparse = was_sparse;
            tensor.tied_to = (index != main).then_some(main);
        }
        for pool in &mut plan.pools {
            pool.tensors.retain(|index| *index == main && prune.is_some() || !group.contains(index));
        }
    }
}

//! Assigns stages to tensors.

use super::interop::Loads;
use crate::{CastStage, PruneStage, PruneTarget, QuantizeStage, Stage};
use briquette_core::entropy::trellis::can_have_trellis;
use briquette_core::{Error, Grid, Patterns, Result, Role};
use briquette_formats::output_format::{CodeSupport, Misfit};
use briquette_methods::prune::{Ratio, Reconstruction, Score, SparsityPattern};
use briquette_methods::quant::{Activations, QuantSpec, Rounding, Scheme};
use briquette_writer::plan;
use briquette_writer::ties::Ties;
use briquette_writer::treatment::SharedTreatments;
use briquette_writer::{Cut, Plan, Pool, Pruning, Quant, TensorPlan};
use std::collections::{BTreeMap, BTreeSet};

/// Applies the stages of a recipe, numbered from 0, and records why every other tensor is unchanged.
///
/// `heads` are embeddings that are also the output head. `loads` is set if transformers must load the output.
pub(super) fn apply_stages<'a>(
    plan: &mut Plan,
    stages: impl Iterator<Item = (usize, &'a Stage)>,
    heads: &BTreeSet<usize>,
    loads: Option<&Loads>,
) -> Result<()> {
    for (number, stage) in stages {
        let name = format!("stage {} ({})", number + 1, stage.kind());
        apply_stage(plan, stage, heads, loads).map_err(|error| error.at(name))?;
    }
    let mut shared = SharedTreatments::default();
    // A share that rounds to no weight is not pruning. Existing zeros then count as without pruning.
    for tensor in plan.tensors.iter_mut().filter(|tensor| tensor.quant.is_some() && drops_nothing(tensor)) {
        (tensor.prune, tensor.solve.reconstruction) = (None, None);
        tensor.share(&mut shared);
    }
    for tensor in plan.tensors.iter_mut().filter(|tensor| !tensor.is_changed() && tensor.skipped.is_none()) {
        let why = match tensor.role {
            Role::Other => format!("{} tensors are not changed", tensor.info.dtype),
            Role::Unknown | Role::Parameter => format!("{}: {}", tensor.role.name(), tensor.why.words()),
            role => format!("{} not selected by any stage", role.name()),
        };
        tensor.leave(&why);
        tensor.share(&mut shared);
    }
    Ok(())
}

fn drops_nothing(tensor: &TensorPlan) -> bool {
    matches!(
        tensor.prune.map(|prune| prune.cut),
        Some(Cut::Pattern(SparsityPattern::Unstructured(0) | SparsityPattern::PerRow(0)))
    )
}

fn apply_stage(plan: &mut Plan, stage: &Stage, heads: &BTreeSet<usize>, loads: Option<&Loads>) -> Result<()> {
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
        return Err(plan.nothing_chosen());
    }
    let names = chosen.iter().map(|&index| plan.tensors[index].info.name.as_str());
    stage.overrides().into_iter().try_for_each(|patterns| {
        patterns.check_used("tensor that this stage selects", names.clone()).map_err(|error| error.at("overrides"))
    })?;
    match stage {
        Stage::Prune(stage) => prune(plan, stage, &chosen),
        Stage::Quantize(stage) => quantize(plan, stage, &chosen, heads, loads),
        Stage::Cast(stage) => cast(plan, stage, &chosen),
    }
}

fn prune(plan: &mut Plan, stage: &PruneStage, chosen: &[usize]) -> Result<()> {
    let pool = plan.pools.len();
    let (mut pooled, mut shared) = (Vec::new(), SharedTreatments::default());
    for &index in chosen {
        let tensor = &mut plan.tensors[index];
        if tensor.prune.is_some() {
            let message = "is also selected by an earlier prune stage; exclude it from one";
            return Err(Error::config(message).at(tensor.culprit()));
        }
        let own =
            stage.overrides.iter().rfind(|(patterns, _)| patterns.matches(&tensor.info.name)).map(|(_, ratio)| *ratio);
        let cut = match (own, stage.target) {
            (None, PruneTarget::Global(_)) => {
                pooled.push(index);
                Cut::Pool(pool)
            }
            (None, PruneTarget::Layer(pattern)) => cut_of(stage, pattern, tensor),
            // OWL sparsities are computed once the statistics are known.
            (Some(ratio), _) | (None, PruneTarget::Owl(ratio)) => {
                cut_of(stage, SparsityPattern::Unstructured(ratio), tensor)
            }
        };
        tensor.prune = Some(Pruning { score: stage.score, cut });
        tensor.solve.reconstruction = stage.reconstruction;
        tensor.share(&mut shared);
    }
    match stage.target {
        PruneTarget::Global(ratio) if !pooled.is_empty() => plan.pools.push(Pool { tensors: pooled, ratio }),
        PruneTarget::Owl(ratio) => {
            let has_own = |index: &usize| {
                let name = &plan.tensors[*index].info.name;
                stage.overrides.iter().any(|(patterns, _)| patterns.matches(name))
            };
            let tensors = chosen.iter().copied().filter(|index| !has_own(index)).collect();
            plan.outlier_pools.push(Pool { tensors, ratio });
        }
        _ => {}
    }
    Ok(())
}

/// Returns the weights of a tensor that a pattern drops.
fn cut_of(stage: &PruneStage, pattern: SparsityPattern<Ratio>, tensor: &TensorPlan) -> Cut {
    // Scores from input statistics compare weights within a row only.
    let is_per_row = stage.score.needs_inputs() || stage.reconstruction == Some(Reconstruction::Admm);
    let pattern = match pattern {
        SparsityPattern::Unstructured(ratio) if is_per_row => SparsityPattern::PerRow(ratio),
        other => other,
    };
    Cut::Pattern(pattern.of(tensor.output_rows.n_rows, tensor.output_rows.n_cols))
}

fn quantize(
    plan: &mut Plan,
    stage: &QuantizeStage,
    chosen: &[usize],
    heads: &BTreeSet<usize>,
    loads: Option<&Loads>,
) -> Result<()> {
    let (mut shared, mut spared, mut ungrouped) = (SharedTreatments::default(), Vec::new(), Vec::new());
    let held = plan.profile.held_codes();
    for &index in chosen {
        let tensor = &mut plan.tensors[index];
        let at = |error: Error, tensor: &TensorPlan| error.at(tensor.culprit());
        if tensor.quant.is_some() {
            return Err(at(
                Error::config("is also selected by an earlier quantize stage; exclude it from one"),
                tensor,
            ));
        }
        let is_head = heads.contains(&index);
        if let Some(why) = loads.and_then(|loads| loads.refuses(tensor)) {
            tensor.skipped = tensor.prune.is_none().then_some(why);
            tensor.share(&mut shared);
            continue;
        }
        let asked = stage.scheme_for(&tensor.info.name, is_head);
        let fitted = Scheme { weights: asked.weights.for_columns(tensor.output_rows.n_cols), ..asked };
        if fitted != asked {
            ungrouped.push(index);
            // Readers of this format expect the same groups in all layers that are not ignored.
            if plan.profile.is_for_transformers() {
                let why = format!("{} do not divide its {} columns", asked.weights.grouping, tensor.output_rows.n_cols);
                tensor.skipped = tensor.prune.is_none().then_some(why);
                tensor.share(&mut shared);
                continue;
            }
        }
        let fitted = if tensor.role == Role::Linear { fitted } else { without_columns(fitted) };
        let is_table = fitted.activations == Activations::Static && !matches!(tensor.role, Role::Linear | Role::Conv);
        let fitted = if is_table { Scheme { activations: Activations::Float, ..fitted } } else { fitted };
        if fitted.activations == Activations::Static && held.is_none_or(|held| !held.has_static) {
            let message = "int8-static needs the format briquette or compressed-tensors; or use `briquette export --to onnx --quantize int8-static`";
            return Err(at(Error::config(message), tensor));
        }
        let scheme = match held {
            Some(held) => scheme_of(held, tensor, fitted).map_err(|error| at(error, tensor))?,
            None => fitted,
        };
        tensor.quant =
            Some(Quant { spec: scheme.weights, activations: scheme.activations, is_given: false, inputs: None });
        // The curvature in the rows of a token embedding takes the place of layer inputs.
        if matches!(tensor.role, Role::Linear | Role::Conv) || tensor.needs_given_scales() {
            tensor.solve.rounding = stage.rounding;
            tensor.solve.corrects_bias = stage.corrects_biases;
            tensor.solve.learns = stage.learns && matches!(tensor.role, Role::Linear | Role::Conv);
        }
        // After a training with these schemes, weights are on their trellis.
        let is_trained = stage.is_trained && can_have_trellis(tensor.rows().n_cols);
        let is_on_trellis = tensor.solve.rounding == Rounding::Gptq
            || is_trained
            || stage.found.contains_key(tensor.info.name.as_str());
        for quant in tensor.quant.iter_mut().filter(|_| !is_on_trellis) {
            quant.spec = quant.spec.without_trellis();
        }
        tensor.share(&mut shared);
        spared.extend((is_head && stage.spares_heads() && scheme.weights.grid.n_bits() == 8).then_some(index));
    }
    plan.remarks.extend(ungrouped_text(plan, &ungrouped));
    if let Some(&first) = spared.first() {
        let (name, n_bits) = (&plan.tensors[first].info.name, stage.scheme.weights.grid.n_bits());
        plan.remarks.push(format!(
            "{name} is both embedding and output head, where errors reach every output: it gets int8. Select the role \
             embedding (--quantize-roles linear,conv,embedding) to store it in {n_bits} bits."
        ));
    }
    Ok(())
}

/// Returns a line that lists tensors whose columns are not divisible by the group size.
fn ungrouped_text(plan: &Plan, tensors: &[usize]) -> Option<String> {
    let names = plan::listed(tensors.iter().map(|&index| &plan.tensors[index]))?;
    Some(match plan.profile.is_for_transformers() {
        true => format!("Not quantized, as the group size does not divide the columns: {names}."),
        false => format!("One scale per row, as the group size does not divide the columns: {names}."),
    })
}

/// Casts the selected tensors; quantized tensors are skipped because they are stored as codes.
fn cast(plan: &mut Plan, stage: &CastStage, chosen: &[usize]) -> Result<()> {
    let mut shared = SharedTreatments::default();
    for &index in chosen {
        let tensor = &mut plan.tensors[index];
        if tensor.cast.is_some() {
            let message = "is also selected by an earlier cast stage; exclude it from one";
            return Err(Error::config(message).at(tensor.culprit()));
        }
        if tensor.quant.is_some() {
            continue;
        }
        if tensor.info.dtype == stage.dtype {
            tensor.skipped = (!tensor.is_recoded()).then(|| format!("is already {}", stage.dtype));
            tensor.share(&mut shared);
            continue;
        }
        (tensor.cast, tensor.skipped) = (Some(stage.dtype), None);
        tensor.share(&mut shared);
    }
    Ok(())
}

/// Returns a scheme without scales of columns, for weights that are not those of linear layers.
fn without_columns(scheme: Scheme) -> Scheme {
    Scheme { weights: QuantSpec { has_columns: false, ..scheme.weights }, ..scheme }
}

/// Fits a scheme to the output format.
fn scheme_of(held: &CodeSupport, tensor: &TensorPlan, asked: Scheme) -> Result<Scheme> {
    let spec = asked.weights;
    match held.misfit(spec.codes(), tensor.output_rows.axis) {
        Some(why @ Misfit::Scheme { instead, .. }) => return Err(Error::config(format!("{why}; choose {instead}"))),
        Some(why @ Misfit::Turned { .. }) => {
            let shown_by = tensor.why.words();
            return Err(Error::config(format!("{why}, but this one is [in, out]: {shown_by}")));
        }
        None => {}
    }
    let grid = Grid::new(spec.grid.n_bits(), held.grid(spec.grid.kind())).unwrap_or(spec.grid);
    Ok(Scheme { weights: QuantSpec { grid, scale: held.scale(spec.scale), ..spec }, ..asked })
}

/// Unties tensors that patterns of a stage tell apart, such as a head that is excluded while its table of tokens is not.
pub(super) fn untie<'a>(plan: &mut Plan, stages: impl Iterator<Item = &'a Stage>, ties: &mut Ties) {
    let patterns: Vec<&Patterns> = stages
        .map(Stage::selection)
        .flat_map(|selection| selection.include.iter().chain([&selection.exclude]))
        .filter(|patterns| !patterns.is_empty())
        .collect();
    let matched = |index: usize| {
        let name = &plan.tensors[index].info.name;
        patterns.iter().map(|patterns| patterns.matches(name)).collect::<Vec<_>>()
    };
    let mut apart = Vec::new();
    if !patterns.is_empty() {
        ties.retain(|&index, &mut first| {
            let is_alike = matched(index) == matched(first);
            apart.extend((!is_alike).then_some((index, first)));
            is_alike
        });
    }
    if let Some(&(index, first)) = apart.first() {
        let [name, other] = [index, first].map(|index| &plan.tensors[index].info.name);
        let more =
            if apart.len() > 1 { format!(" The same holds for {} more.", apart.len() - 1) } else { String::new() };
        plan.remarks
            .push(format!("{name} equals {other}, but a pattern chooses only one of them, so both are stored.{more}"));
    }
}

/// Treats tied tensors alike: like the embedding among them, or else like the first. With `stores_once`, the others are stored with it.
///
/// Otherwise, tensors whose treatment depends on others or on their name keep their own.
pub(super) fn tie(plan: &mut Plan, ties: &Ties, stores_once: bool) {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (&index, &first) in ties {
        groups.entry(first).or_insert_with(|| vec![first]).push(index);
    }
    let (mut unpooled, mut shared) = (BTreeSet::new(), SharedTreatments::default());
    for (first, group) in groups {
        let is_embedding = |&&index: &&usize| plan.tensors[index].role == Role::Embedding;
        let main = *group.iter().find(is_embedding).unwrap_or(&first);
        let treatment = plan.tensors[main].treatment().clone();
        let is_own = |prune: &Pruning| matches!(prune.cut, Cut::Pool(_)) || matches!(prune.score, Score::Random(_));
        if !stores_once && treatment.prune.as_ref().is_some_and(is_own) {
            continue;
        }
        for &index in &group {
            let tensor = &mut plan.tensors[index];
            let role = tensor.role;
            tensor.treat(treatment.clone());
            if role != treatment.role {
                tensor.role = role;
                tensor.share(&mut shared);
            }
            tensor.tie_to((stores_once && index != main).then_some(main));
            if index != main || treatment.prune.is_none() {
                unpooled.insert(index);
            }
        }
    }
    plan.pools.iter_mut().for_each(|pool| pool.tensors.retain(|index| !unpooled.contains(index)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::{DType, OutputAxis, Rows};
    use briquette_formats::{OutputFormat, TensorInfo, WeightLayout};
    use briquette_writer::Treatment;
    use briquette_writer::known::{Known, Reason};
    use briquette_writer::plan::Nonfinite;

    fn infos(n: usize) -> Vec<TensorInfo> {
        let info = |index| TensorInfo::checked(format!("t{index}"), DType::F32, vec![2, 2]).unwrap();
        (0..n).map(info).collect()
    }

    /// Creates tensors of one shape; each is in a pool, and the second of each four is an embedding.
    fn pooled<'a>(infos: &'a [TensorInfo]) -> Plan<'a> {
        let tensor = |(index, info): (usize, &'a TensorInfo)| {
            let role = if index % 4 == 1 { Role::Embedding } else { Role::Linear };
            let prune = (role == Role::Linear).then_some(Pruning { score: Score::Magnitude, cut: Cut::Pool(0) });
            let rows = Rows::of(&info.shape, OutputAxis::First);
            let known = Known { role, axis: OutputAxis::First, why: Reason::Matrix };
            TensorPlan::new(index, info, Treatment { prune, ..Treatment::none(known, rows) })
        };
        let tensors: Vec<TensorPlan> = infos.iter().enumerate().map(tensor).collect();
        let pool = tensors.iter().filter(|tensor| tensor.prune.is_some()).map(|tensor| tensor.index()).collect();
        let pools = vec![Pool { tensors: pool, ratio: Ratio::new(0.5).unwrap() }];
        let (profile, max_shard_bytes) = (OutputFormat::Briquette, u64::MAX);
        let (layout, metadata, inputs) = (WeightLayout::Torch, BTreeMap::new(), BTreeMap::new());
        let (nonfinite, untested, remarks) = (Nonfinite::Refused, None, Vec::new());
        let (outlier_pools, norms) = (Vec::new(), BTreeMap::new());
        Plan {
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
            untested,
            remarks,
            inputs,
        }
    }

    #[test]
    fn tied_tensors_follow_the_embedding_among_them_or_the_first() {
        let infos = infos(6);
        let mut plan = pooled(&infos);
        tie(&mut plan, &Ties::from([(1, 0), (3, 2), (4, 2)]), true);
        let tied: Vec<Option<usize>> = plan.tensors.iter().map(|tensor| tensor.tied_to()).collect();
        assert_eq!(tied, [Some(1), None, None, Some(2), Some(2), None], "0 follows the embedding 1; 3 and 4 follow 2");
        assert!(plan.tensors[0].prune.is_none(), "follows the embedding, which is not pruned");
        assert_eq!(plan.pools[0].tensors, [2], "tied tensors are in the pool once; 5 is an embedding");
    }

    #[test]
    fn a_hundred_thousand_ties_take_one_pass() {
        let n = 100_000;
        let infos = infos(n);
        let mut plan = pooled(&infos);
        let ties: Ties = (1..n).step_by(2).map(|index| (index, index - 1)).collect();
        let since = std::time::Instant::now();
        tie(&mut plan, &ties, true);
        assert!(since.elapsed().as_secs() < 20, "one pass needs far less: {:?}", since.elapsed());
        assert_eq!(plan.tensors.iter().filter(|tensor| tensor.tied_to().is_some()).count(), n / 2);
    }
}

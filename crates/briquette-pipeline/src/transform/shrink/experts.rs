//! The experts that a shrink stage removes from mixtures.

use super::groups;
use super::inputs::{InputAxis, Needed, Reader};
use super::limit::{Limit, Measure};
use crate::report::ShrunkGroup;
use crate::transform::headed::HeadedModel;
use briquette_core::{Error, Result, random};
use briquette_graph::WeightId;
use briquette_graph::coupling::{GroupKind, couplings};
use briquette_graph::mixtures::{ExpertMixture, mixtures};
use briquette_methods::prune::units::{UnitAmount, UnitScore, add_input_energies, smallest};
use briquette_recipe::{ShrinkLimit, ShrinkStage, ShrinkTarget};
use std::collections::BTreeSet;

/// Returns the score of each expert of a mixture.
pub(super) type ScoreExperts<'a> = &'a dyn Fn(&HeadedModel, &ExpertMixture) -> Result<Vec<f64>>;

/// Returns the ratio that a limit needs of a stage that removes experts; `None` if the stage has no limit, or no experts.
///
/// Every part loses this ratio. The estimate of a latency by multiply-adds does not depend on the number of experts. So the estimate of a
/// stage that only removes experts takes the largest ratio.
///
/// # Errors
/// - Config: the limit is out of reach, or the network is within it.
/// - The error of `latency`.
pub(super) fn ratio_within(
    stage: &ShrinkStage,
    model: &HeadedModel,
    (latency, is_estimate): (Measure, bool),
) -> Result<Option<f64>> {
    let limit = match stage.target {
        Some(ShrinkTarget::AtMost(limit)) if stage.parts.contains(&GroupKind::Experts) => limit,
        _ => return Ok(None),
    };
    let is_latency = matches!(limit, ShrinkLimit::Latency(_));
    if is_estimate && is_latency && groups::has_only_experts(stage) {
        return Ok(Some(1.0));
    }
    let limit = Limit::of(limit, model, latency);
    let at = |ratio: f64| -> Result<((), f64)> {
        let (smaller, _) = of_amount(stage, model.clone(), (UnitAmount::Ratio(ratio), true), &by_size)?;
        let couplings = couplings(&smaller.graph, &smaller.graph.lower()?)?;
        let chosen = groups::choose(stage, &smaller, &couplings, (Some(ratio), latency))?;
        let graph = smaller.graph.without_units(&couplings, &groups::spread_units(&chosen, &couplings))?.graph;
        Ok(((), (limit.measure)(&smaller, &graph)?))
    };
    // The whole network has a share of 1 of its latency.
    let before = if is_latency { 1.0 } else { at(0.0)?.1 };
    if before <= limit.most {
        let (found, before) = ((limit.shown)(limit.most), (limit.shown)(before));
        let message = format!("found {found}, and the network has {before} already; lower it, or remove the stage");
        return Err(Error::config(message).at(limit.key));
    }
    limit.smallest_ratio(&at).map(|(ratio, ())| Some(ratio))
}

/// Returns the model without the experts with the smallest scores, and what was removed. `ratio` is that of a limit.
///
/// # Errors
/// - Config: the network has no mixture that could lose experts, or fewer experts than a token needs are left.
/// - The first error of `scores`.
pub(super) fn without(
    stage: &ShrinkStage,
    model: HeadedModel,
    ratio: Option<f64>,
    scores: ScoreExperts,
) -> Result<(HeadedModel, Vec<ShrunkGroup>)> {
    let amount = match (ratio, stage.target) {
        (Some(ratio), _) => (UnitAmount::Ratio(ratio), true),
        (None, Some(ShrinkTarget::Units(amount))) if stage.parts.contains(&GroupKind::Experts) => (amount, false),
        _ => return Ok((model, Vec::new())),
    };
    let (model, groups) = of_amount(stage, model, amount, scores)?;
    if groups.is_empty() && groups::has_only_experts(stage) {
        return Err(Error::config("no expert is removed; raise the ratio, or lower floor").at("shrink"));
    }
    Ok((model, groups))
}

/// Removes an amount of the experts of each mixture. With a limit, a mixture keeps as many as run for each token.
fn of_amount(
    stage: &ShrinkStage,
    model: HeadedModel,
    amount: (UnitAmount, bool),
    scores: ScoreExperts,
) -> Result<(HeadedModel, Vec<ShrunkGroup>)> {
    let found = mixtures(&model.graph);
    if found.is_empty() {
        return Err(Error::config("the network has no experts that can be removed; choose other parts").at("shrink"));
    }
    let (mut removed, mut groups) = (Vec::new(), Vec::new());
    for mixture in &found {
        let (n, n_removed) = (mixture.experts.len(), n_removed(stage, amount, mixture)?);
        let lost: BTreeSet<usize> = match n_removed {
            0 => BTreeSet::new(),
            _ => smallest(&scores(&model, mixture)?, n_removed).into_iter().collect(),
        };
        groups.push(ShrunkGroup {
            kind: GroupKind::Experts.to_string(),
            tensors: mixture.router.iter().map(|weight| model.graph.weights[weight.0].name.clone()).collect(),
            before: n,
            after: n - lost.len(),
        });
        removed.push(lost);
    }
    match removed.iter().all(BTreeSet::is_empty) {
        true => Ok((model, Vec::new())),
        false => Ok((model.without_experts(&removed)?, groups)),
    }
}

/// Returns the number of experts to remove; a mixture keeps as many as run for each token.
fn n_removed(stage: &ShrinkStage, (amount, is_limit): (UnitAmount, bool), mixture: &ExpertMixture) -> Result<usize> {
    let n = mixture.experts.len();
    let n_removed = stage.budget(amount, GroupKind::Experts).n_removed(n).unwrap_or(n);
    if is_limit {
        return Ok(n_removed.min(n.saturating_sub(mixture.top_k)));
    }
    if n - n_removed < mixture.top_k {
        let message = format!(
            "{} of {n} experts would be left, expected {} or more, which run for each token (num_experts_per_tok); remove fewer",
            n - n_removed,
            mixture.top_k
        );
        return Err(Error::config(message).at(&mixture.path));
    }
    Ok(n_removed)
}

/// Returns scores by which the smallest experts are removed, and of equal ones the last, as far as headers tell.
///
/// Whichever experts are removed instead, the model is no larger.
pub(super) fn by_size(model: &HeadedModel, mixture: &ExpertMixture) -> Result<Vec<f64>> {
    let n = mixture.experts.len();
    let n_elements = |weights: &[WeightId; 3]| -> usize {
        weights.iter().map(|weight| model.graph.weights[weight.0].shape.0.iter().product::<usize>()).sum()
    };
    let score = |(place, weights): (usize, &[WeightId; 3])| (n_elements(weights) * n + n - 1 - place) as f64;
    Ok(mixture.experts.iter().enumerate().map(score).collect())
}

/// Returns the score of each expert.
///
/// Without statistics, it is the norm of its weights. With them, it is the root of `Σ_t Σ_j ‖w_j‖²·x_tj²` over its tokens `t` and the inputs `j`
/// of its last matrix, or of the sum of the importance of these inputs (taylor). So an expert counts more if the router chooses it more often.
///
/// # Errors
/// - Input: no expert of the mixture has statistics.
/// - Refused: a weight is not finite.
/// - Io: a weight cannot be read.
pub(super) fn scores(stage: &ShrinkStage, reader: &Reader, mixture: &ExpertMixture) -> Result<Vec<f64>> {
    let experts = 0..mixture.experts.len();
    match stage.score {
        UnitScore::Random(seed) => {
            let place = random::mixed(seed, mixture.router.first().map_or(0, |weight| weight.0 as u64));
            Ok(experts.map(|expert| f64::from(random::uniform(place, expert as u64))).collect())
        }
        UnitScore::L1 | UnitScore::L2 => {
            experts.map(|expert| of_weights(stage.score, reader, mixture, expert)).collect()
        }
        _ => {
            let scores = experts.map(|expert| of_inputs(stage.score, reader, mixture, expert));
            let scores = scores.collect::<Result<Vec<Option<f64>>>>()?;
            if scores.iter().all(Option::is_none) {
                let message = "the statistics have no inputs of its experts; gather them with `briquette calibrate`, or set method = \"l2\"";
                return Err(Error::input(message).at(&mixture.path));
            }
            // The router chose no token for an expert without statistics.
            Ok(scores.into_iter().map(|score| score.unwrap_or(0.0)).collect())
        }
    }
}

fn of_weights(score: UnitScore, reader: &Reader, mixture: &ExpertMixture, expert: usize) -> Result<f64> {
    let mut sum = 0.0;
    for weight in mixture.experts[expert] {
        let values = reader.values(weight)?;
        let power =
            |value: &f32| if score == UnitScore::L1 { f64::from(value.abs()) } else { f64::from(*value).powi(2) };
        sum += values.iter().map(power).sum::<f64>();
    }
    Ok(if score == UnitScore::L1 { sum } else { sum.sqrt() })
}

/// Returns the score from statistics; `None` if the expert has none.
fn of_inputs(score: UnitScore, reader: &Reader, mixture: &ExpertMixture, expert: usize) -> Result<Option<f64>> {
    let [_, _, down] = mixture.experts[expert];
    let axis = InputAxis { weight: down, place: 0, axis: 1, inner: 1 };
    if !reader.has_stats(&axis) {
        return Ok(None);
    }
    if score == UnitScore::Taylor {
        return Ok(Some(reader.stats(&axis, Needed::Importance)?.importance.iter().sum::<f64>().sqrt()));
    }
    let stats = reader.stats(&axis, Needed::Sums)?;
    let mut of_columns = vec![0.0; reader.n_columns(&axis)];
    add_input_energies(&reader.rows(&axis)?, &stats.view().mean_square, &mut of_columns);
    Ok(Some((of_columns.iter().sum::<f64>() * stats.count as f64).sqrt()))
}

//! The experts that a shrink stage removes from mixtures.

use super::inputs::{InputAxis, Needed, Reader};
use crate::report::ShrunkGroup;
use crate::transform::headed::HeadedModel;
use briquette_core::{Error, Result, random};
use briquette_graph::coupling::GroupKind;
use briquette_graph::mixtures::{ExpertMixture, mixtures};
use briquette_methods::prune::units::{UnitAmount, UnitScore, add_input_energies, smallest};
use briquette_recipe::{ShrinkStage, ShrinkTarget};
use std::collections::BTreeSet;

/// Returns the score of each expert of a mixture.
pub(super) type ScoreExperts<'a> = &'a dyn Fn(&HeadedModel, &ExpertMixture) -> Result<Vec<f64>>;

/// Returns the model without the experts with the smallest scores, and what was removed.
///
/// # Errors
/// - Config: the network has no mixture that could lose experts, or fewer experts than a token needs are left.
/// - The first error of `scores`.
pub(super) fn without(
    stage: &ShrinkStage,
    model: HeadedModel,
    scores: ScoreExperts,
) -> Result<(HeadedModel, Vec<ShrunkGroup>)> {
    let amount = match stage.target {
        Some(ShrinkTarget::Units(amount)) if stage.parts.contains(&GroupKind::Experts) => amount,
        _ => return Ok((model, Vec::new())),
    };
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
        true if stage.parts == [GroupKind::Experts] => {
            Err(Error::config("no expert is removed; raise the ratio, or lower floor").at("shrink"))
        }
        true => Ok((model, Vec::new())),
        false => Ok((model.without_experts(&removed)?, groups)),
    }
}

/// Returns the number of experts to remove; a mixture keeps as many as run for each token.
fn n_removed(stage: &ShrinkStage, amount: UnitAmount, mixture: &ExpertMixture) -> Result<usize> {
    let n = mixture.experts.len();
    let n_removed = stage.budget(amount, GroupKind::Experts).n_removed(n).unwrap_or(n);
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

/// Returns scores by which the last experts are removed, as far as headers tell.
pub(super) fn by_place(_: &HeadedModel, mixture: &ExpertMixture) -> Result<Vec<f64>> {
    Ok((0..mixture.experts.len()).rev().map(|place| place as f64).collect())
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

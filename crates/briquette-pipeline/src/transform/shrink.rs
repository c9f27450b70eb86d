//! The stage that removes channels, heads and blocks.
//!
//! Groups and the number of units to remove follow from headers. Weights and statistics decide which units, and layers that
//! read removed units are refitted.

mod biases;
mod blocks;
mod experts;
mod gaps;
mod groups;
mod inputs;
mod latency;
mod limit;
mod refits;
mod scores;

use super::changed::{ChangedModel, OutputTensor};
use super::headed::{HeadedModel, SmallerModel, n_multiply_adds};
use super::network::{Network, Transform, Transformed};
use crate::report::{ShrinkReport, ShrunkGroup};
use briquette_core::{Error, Result};
use briquette_formats::input_stats::StatisticsFile;
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, model_config};
use briquette_graph::coupling::{Couplings, UnitId, couplings};
use briquette_graph::mixtures::ExpertMixture;
use briquette_graph::{Config, Graph};
use briquette_methods::prune::units::UnitScore;
use briquette_recipe::{ModelStage, Recipe, ShrinkLimit, ShrinkStage, ShrinkTarget, StageKind, TransformStage};
use briquette_writer::context::Workers;
use experts::ScoreExperts;
use groups::ChosenGroup;
use inputs::{Needed, Reader};
use limit::{Measure, share_of_multiply_adds};
use std::collections::BTreeSet;
use std::path::Path;

/// Predicts the model after a shrink stage, and describes it. Returns whether the shapes follow from headers alone.
///
/// # Errors
/// Config: the stage does not fit the model.
pub(super) fn predicted(stage: &ShrinkStage, model: HeadedModel) -> Result<(HeadedModel, Vec<String>, bool)> {
    let before = model.clone();
    let plan = ShrinkPlan::of(stage, model)?;
    let removed = plan.spread_units();
    let smaller = plan.smaller(&removed)?;
    let mut notes = plan.report(&before, &smaller, &removed, 0).in_words();
    if stage.is_global {
        notes.push(
            "The number of units of each group follows from weights; the sizes above are of equal shares.".into(),
        );
    }
    let is_same = plan.gives_the_same_shapes();
    if !is_same {
        notes.push("The sizes of some layers follow from weights, as their inputs are parts of a split axis.".into());
    }
    let is_measured = matches!(stage.target, Some(ShrinkTarget::AtMost(ShrinkLimit::Latency(_))));
    if is_measured {
        notes.push(match groups::has_only_experts(stage) {
            true => "The latency is measured when the stage runs; the sizes above are those with the fewest experts.".into(),
            false => "The latency is measured when the stage runs; the sizes above are those of this share of the multiply-adds.".into(),
        });
    }
    Ok((smaller.model, notes, !stage.is_global && is_same && !is_measured))
}

/// Checks the statistics of a shrink stage that reads the recipe's own model, before any work.
///
/// # Errors
/// - Input: the file is damaged or of another model, or lacks a layer or its Gram matrix.
/// - Io: the file cannot be read.
pub(super) fn check_statistics(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<()> {
    let first = recipe.parts.first().filter(|part| part.stages.is_empty());
    let Some(stage) = first.and_then(|part| as_shrink(&part.then)) else { return Ok(()) };
    let Some(path) = &stage.statistics else { return Ok(()) };
    let file = StatisticsFile::read(path)?;
    file.check_model(checkpoint).map_err(|error| error.at(path.display()))?;
    let config = Config::parse(model_config::read(checkpoint)?.as_deref())?;
    let plan = ShrinkPlan::of(stage, HeadedModel::of(checkpoint, recipe, config, StageKind::Shrink)?)?;
    let reader = Reader { checkpoint, model: &plan.model, statistics: Some(&file) };
    inputs::check(&reader, &plan.couplings, &plan.chosen, &needed(stage)).map_err(|error| error.at(path.display()))
}

/// Returns the statistics that a stage needs of each layer's inputs.
fn needed(stage: &ShrinkStage) -> Vec<Needed> {
    let gram = (stage.refits || stage.score == UnitScore::Osscar).then_some(Needed::Gram);
    let importance = (stage.score == UnitScore::Taylor).then_some(Needed::Importance);
    [Some(Needed::Sums), gram, importance].into_iter().flatten().collect()
}

fn as_shrink(then: &ModelStage) -> Option<&ShrinkStage> {
    let ModelStage::Transform(stage) = then else { return None };
    match stage.as_ref() {
        TransformStage::Shrink(stage) => Some(stage),
        TransformStage::Factorize(_) | TransformStage::Fold(_) => None,
    }
}

/// A model without the blocks to drop, its groups, and how many units are removed.
pub(super) struct ShrinkPlan {
    /// The blocks to drop, by their numbers in the model before.
    dropped: Vec<usize>,
    /// The mixtures that lose experts.
    mixtures: Vec<ShrunkGroup>,
    model: HeadedModel,
    couplings: Couplings,
    chosen: Vec<ChosenGroup>,
}

impl ShrinkPlan {
    /// Returns the plan as far as headers tell: a latency is estimated by multiply-adds.
    pub(super) fn of(stage: &ShrinkStage, model: HeadedModel) -> Result<Self> {
        let estimated = share_of_multiply_adds(&model);
        Self::measured(stage, model, (&estimated, true), &experts::by_size)
    }

    fn measured(
        stage: &ShrinkStage,
        model: HeadedModel,
        (latency, is_estimate): (Measure, bool),
        scores: ScoreExperts,
    ) -> Result<Self> {
        let dropped = blocks::dropped(stage, model.graph.blocks.len())?;
        let model = if dropped.is_empty() { model } else { model.without_blocks(&dropped)? };
        let ratio = experts::ratio_within(stage, &model, (latency, is_estimate))?;
        let (model, mixtures) = experts::without(stage, model, ratio, scores)?;
        let couplings = couplings(&model.graph, &model.graph.lower()?)?;
        let chosen = groups::choose(stage, &model, &couplings, (ratio, latency))?;
        Ok(Self { dropped, mixtures, model, couplings, chosen })
    }

    /// Returns units that are spread evenly over every chosen group.
    pub(super) fn spread_units(&self) -> BTreeSet<UnitId> {
        groups::spread_units(&self.chosen, &self.couplings)
    }

    /// Returns whether every choice of units gives the same shapes. Networks of families do.
    fn gives_the_same_shapes(&self) -> bool {
        if self.model.network.is_none() {
            return true;
        }
        let shapes = |is_last| {
            let units = groups::end_units(&self.chosen, &self.couplings, is_last);
            let smaller = self.model.graph.without_units(&self.couplings, &units).ok()?;
            Some(smaller.graph.weights.into_iter().map(|weight| weight.shape).collect::<Vec<_>>())
        };
        shapes(false).is_some_and(|first| shapes(true) == Some(first))
    }

    pub(super) fn smaller(&self, removed: &BTreeSet<UnitId>) -> Result<SmallerModel> {
        self.model.without_units(&self.couplings, removed)
    }

    fn report(
        &self,
        before: &HeadedModel,
        after: &SmallerModel,
        removed: &BTreeSet<UnitId>,
        n_refitted: usize,
    ) -> ShrinkReport {
        let of_group = |chosen: &ChosenGroup| {
            let (group, graph) = (&self.couplings.groups[chosen.group], &self.model.graph);
            let n = removed.iter().filter(|unit| unit.group == chosen.group).count();
            let mut tensors: Vec<String> =
                group.places.iter().map(|place| graph.weights[place.weight.0].name.clone()).collect();
            tensors.dedup();
            let kind = self.couplings.kinds[chosen.group].to_string();
            ShrunkGroup { kind, tensors, before: group.units.len(), after: group.units.len() - n }
        };
        let groups = self.chosen.iter().map(of_group).filter(|group| group.after < group.before);
        let groups = self.mixtures.iter().cloned().chain(groups).collect();
        let bytes = |infos: &[TensorInfo]| infos.iter().map(|info| info.n_bytes() as u64).sum::<u64>();
        let (old, new) = (&before.graph, &after.model.graph);
        ShrinkReport {
            groups,
            dropped_blocks: self.dropped.clone(),
            parameters: [old.n_parameters(), new.n_parameters()],
            multiply_adds: [n_multiply_adds(old), n_multiply_adds(new)],
            tensor_bytes: [bytes(&before.infos), bytes(&after.model.infos)],
            n_refitted,
            n_refitted_blocks: 0,
            n_biases: 0,
            config: after.model.changes.iter().map(|(key, value)| (key.clone(), value.to_string())).collect(),
            lost: after.lost.clone(),
        }
    }
}

impl Transform for ShrinkStage {
    fn report_file(&self) -> &'static str {
        ShrinkReport::FILE
    }

    fn statistics(&self) -> Option<&Path> {
        self.statistics.as_deref()
    }

    /// Takes the memory of one layer and its inverse Gram matrix per thread, of the statistics, and of the refitted weights.
    fn apply<'a>(&self, network: &Network<'a>, workers: &Workers) -> Result<Transformed<'a>> {
        let checkpoint = network.checkpoint;
        let config = Config::parse(network.config.as_deref())?;
        let before = HeadedModel::of(checkpoint, network.recipe, config, StageKind::Shrink)?;
        let latency = |smaller: &Graph| {
            workers.check_stop()?;
            latency::share(&before.graph, smaller, network.recipe.memory_limit)
        };
        let experts = |model: &HeadedModel, mixture: &ExpertMixture| {
            workers.check_stop()?;
            experts::scores(self, &Reader { checkpoint, model, statistics: network.statistics.as_ref() }, mixture)
        };
        let plan = ShrinkPlan::measured(self, before.clone(), (&latency, false), &experts)?;
        // Finds settings that the family cannot express before any weight is read.
        plan.smaller(&plan.spread_units())?;
        let reader = Reader { checkpoint, model: &plan.model, statistics: network.statistics.as_ref() };
        if self.score.needs_inputs() || self.refits {
            inputs::check(&reader, &plan.couplings, &plan.chosen, &needed(self))?;
        }
        let removed = scores::removed(self, &reader, &plan.couplings, &plan.chosen, workers)?;
        let smaller = plan.smaller(&removed)?;
        let before_gaps = match self.refits_gaps {
            true => gaps::refitted(network, &before.graph, &plan.dropped)?,
            false => Default::default(),
        };
        let (refitted, absorbed) = match (self.refits, self.score) {
            (true, _) => {
                (refits::refitted(&reader, &plan.couplings, &plan.chosen, &smaller, workers)?, Default::default())
            }
            (false, UnitScore::Flap) => {
                let absorbed = biases::absorbed(&reader, (&plan.couplings, &plan.chosen), &smaller, workers)?;
                (Default::default(), absorbed)
            }
            (false, _) => Default::default(),
        };
        let report = ShrinkReport {
            n_biases: absorbed.len(),
            n_refitted_blocks: before_gaps.len(),
            ..plan.report(&before, &smaller, &removed, refitted.len())
        };
        let report = serde_json::to_value(report).map_err(|error| Error::bug(format!("the report: {error}")))?;
        let tensor = |(info, &place): (&TensorInfo, &usize)| {
            if let Some(values) = before_gaps.get(checkpoint.tensors()[place].name.as_str()) {
                return OutputTensor::Made(values.clone());
            }
            let Some(weight) = plan.model.graph.weight(&info.name) else { return OutputTensor::Copied(place) };
            let kept = plan.model.kept_of(place, &smaller.kept[weight.0]);
            match refitted.get(&weight).or_else(|| absorbed.get(&weight)) {
                Some(values) => OutputTensor::Made(values.clone()),
                None if kept.iter().any(Option::is_some) => OutputTensor::Cut(place, kept),
                None => OutputTensor::Copied(place),
            }
        };
        let tensors = plan.model.infos.iter().zip(&plan.model.places).map(tensor).collect();
        let SmallerModel { model: HeadedModel { infos, graph, changes, network, .. }, .. } = smaller;
        let model = ChangedModel { checkpoint, infos, tensors };
        Ok(Transformed { model, graph: Some(graph), network, config: changes, report })
    }
}

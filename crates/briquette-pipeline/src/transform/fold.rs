//! The stage that moves norms and scales into other layers, so that the network computes the same.
//!
//! Places follow from the graph. The output is compared with the model on random inputs before it is published.

mod batch_norm;
#[cfg(feature = "model")]
mod check;
mod edits;
mod equalize;
mod inputs;
mod places;
mod rotate;
mod searched;

use super::changed::{ChangedModel, OutputTensor};
use super::headed::HeadedModel;
use super::network::{Network, Transform, Transformed};
use crate::report::FoldReport;
use briquette_core::{Error, Result};
use briquette_formats::input_stats::StatisticsFile;
use briquette_formats::{Checkpoint, TensorInfo, model_config};
use briquette_graph::Config;
use briquette_recipe::{FoldMethod, FoldStage, ModelStage, Recipe, StageKind, TransformStage};
use briquette_writer::context::Workers;
use edits::Edits;
use places::FoldPlaces;
use std::path::Path;

/// Predicts the model after a fold, and describes it. Shapes stay as they are; a rotated model has a head of its own.
///
/// # Errors
/// Config: the network has no place for the fold.
pub(super) fn predicted(stage: &FoldStage, model: HeadedModel) -> Result<(HeadedModel, Vec<String>, bool)> {
    let model = prepared(stage, model)?;
    let notes = FoldPlaces::of(stage, &model)?.report(stage).in_words();
    Ok((model, notes, true))
}

/// Returns the model that the fold starts from: a rotation needs a head that is not the table of embeddings.
fn prepared(stage: &FoldStage, model: HeadedModel) -> Result<HeadedModel> {
    match stage.method {
        FoldMethod::Rotate { .. } => model.with_own_head(),
        _ => Ok(model),
    }
}

/// Checks the statistics of a fold stage that reads the recipe's own model, before any work.
///
/// # Errors
/// - Input: the file is damaged or of another model, or lacks a layer.
/// - Io: the file cannot be read.
pub(super) fn check_statistics(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<()> {
    let Some(ModelStage::Transform(stage)) = recipe.parts.first().map(|part| &part.then) else { return Ok(()) };
    let TransformStage::Fold(stage) = stage.as_ref() else { return Ok(()) };
    let Some(path) = stage.statistics.as_ref().filter(|_| recipe.parts[0].stages.is_empty()) else { return Ok(()) };
    let file = StatisticsFile::read(path)?;
    file.check_model(checkpoint).map_err(|error| error.at(path.display()))?;
    let config = Config::parse(model_config::read(checkpoint)?.as_deref())?;
    let model = HeadedModel::of(checkpoint, recipe, config, StageKind::Fold)?;
    let FoldPlaces::Scales(places, _) = FoldPlaces::of(stage, &model)? else { return Ok(()) };
    let found = searched::check(&Edits::of(checkpoint, &model), &places, Some(&file));
    found.map_err(|error| error.at(path.display()))
}

impl Transform for FoldStage {
    fn report_file(&self) -> &'static str {
        FoldReport::FILE
    }

    fn statistics(&self) -> Option<&Path> {
        self.statistics.as_deref()
    }

    /// Takes the memory of two layers, and of one number for each channel of each place.
    fn apply<'a>(&self, network: &Network<'a>, workers: &Workers) -> Result<Transformed<'a>> {
        let checkpoint = network.checkpoint;
        let config = Config::parse(network.config.as_deref())?;
        let model = prepared(self, HeadedModel::of(checkpoint, network.recipe, config, StageKind::Fold)?)?;
        let places = FoldPlaces::of(self, &model)?;
        let mut edits = Edits::of(checkpoint, &model);
        let statistics = network.statistics.as_ref();
        let exponents = match (&places, self.method) {
            (FoldPlaces::Norms(places, _), _) => batch_norm::fold(&mut edits, places, workers).map(|()| Vec::new()),
            (FoldPlaces::Rotations(places), FoldMethod::Rotate { seed }) => {
                rotate::fold(&mut edits, places, seed, workers).map(|()| Vec::new())
            }
            (FoldPlaces::Rotations(_), _) => Err(Error::bug("places of a rotation for another fold")),
            (FoldPlaces::Scales(places, _), FoldMethod::Equalize) => {
                equalize::fold(&mut edits, places, workers).map(|()| Vec::new())
            }
            (FoldPlaces::Scales(places, _), method) => {
                searched::check(&edits, places, statistics)?;
                searched::fold(&mut edits, places, method, statistics, workers)
            }
        }?;
        let report = FoldReport { exponents, ..places.report(self) };
        let report = serde_json::to_value(report).map_err(|error| Error::bug(format!("the report: {error}")))?;
        let tensor = |(info, &place): (&TensorInfo, &usize)| edits.output(info, place);
        let tensors: Vec<OutputTensor> = model.infos.iter().zip(&model.places).map(tensor).collect();
        let HeadedModel { infos, graph, changes, .. } = model;
        let model = ChangedModel { checkpoint, infos, tensors };
        Ok(Transformed { model, graph: Some(graph), network: None, config: changes, report })
    }

    /// Compares the outputs of both networks on random inputs, if this build runs models.
    #[cfg(feature = "model")]
    fn check(&self, network: &Network, folded: &Path, report: &mut serde_json::Value) -> Result<()> {
        if let Some(difference) = check::difference(network.checkpoint, folded, network.recipe.memory_limit)? {
            report["difference"] = difference.into();
        }
        Ok(())
    }
}

impl FoldPlaces {
    fn report(&self, stage: &FoldStage) -> FoldReport {
        let (n_places, skipped) = match self {
            Self::Norms(places, skipped) => (places.len(), skipped),
            Self::Scales(places, skipped) => (places.len(), skipped),
            Self::Rotations(places) => (places.stream.len(), &places.skipped),
        };
        let places = match stage.method {
            FoldMethod::BatchNorm => "batch norms",
            FoldMethod::Rotate { .. } => "tensors of the residual stream",
            FoldMethod::Equalize | FoldMethod::Smooth { .. } | FoldMethod::Awq { .. } | FoldMethod::Auto { .. } => {
                "inputs of layers"
            }
        };
        let skipped = briquette_graph::absorb::reasons(skipped);
        FoldReport {
            method: stage.method.name().into(),
            n_places,
            places: places.into(),
            skipped,
            ..FoldReport::default()
        }
    }
}

//! Predicts the model after all transforms of a recipe from headers.

use super::headed::HeadedModel;
use super::{fold, shrink};
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorInfo, model_config};
use briquette_graph::Config;
use briquette_recipe::{ModelStage, Recipe, StageKind, TransformStage};

/// The model after all transforms of a recipe, as far as headers tell.
pub(super) struct Predicted {
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) notes: Vec<String>,
    /// Whether the shapes follow from headers alone.
    pub(super) is_exact: bool,
}

/// Predicts the model after all transforms of a recipe; none if it has none, or if it factorizes.
///
/// # Errors
/// - Config: a stage does not fit the model.
/// - Input: no family knows the model.
pub(super) fn predicted(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<Option<Predicted>> {
    let transforms = recipe.parts.iter().filter_map(|part| match &part.then {
        ModelStage::Transform(stage) => Some((part.then.kind(), stage.as_ref())),
        ModelStage::Distill(_) => None,
    });
    let transforms: Vec<(StageKind, &TransformStage)> = transforms.collect();
    let Some((first, _)) = transforms.first() else { return Ok(None) };
    if recipe.asked.has(StageKind::Factorize) {
        return Ok(None);
    }
    let config = Config::parse(model_config::read(checkpoint)?.as_deref())?;
    let mut model = HeadedModel::of(checkpoint, recipe, config, *first)?;
    let (mut notes, mut is_exact) = (Vec::new(), true);
    for (_, stage) in transforms {
        let (after, lines, is_known) = match stage {
            TransformStage::Shrink(stage) => shrink::predicted(stage, model)?,
            TransformStage::Fold(stage) => fold::predicted(stage, model)?,
            // Weights decide the ranks.
            TransformStage::Factorize(_) => return Ok(None),
        };
        notes.extend(lines);
        is_exact &= is_known;
        model = after;
    }
    Ok(Some(Predicted { tensors: model.infos, notes, is_exact }))
}

//! Sizes of a student: for creating and for predicting it.

use crate::training::settings;
use briquette_core::{Error, Result};
use briquette_distill::LayerMap;
use briquette_formats::{Checkpoint, TensorInfo, WeightLayout};
use briquette_models::{Arch, Outline, Smaller};
use briquette_recipe::{DistillStage, Student};

/// Returns how the student of a stage is smaller than its model with `n_layers` layers. `None` if it has the
/// same size.
pub(crate) fn how(stage: &DistillStage, arch: Arch, n_layers: Option<usize>) -> Result<Option<Smaller>> {
    Ok(match &stage.student {
        Student::Same => None,
        Student::Sizes(_) if arch.is_onnx() => {
            let message = "found sizes for an ONNX model, whose file fixes them; remove them";
            return Err(Error::config(message).at("student"));
        }
        Student::Sizes(sizes) => Some(Smaller::Sizes(sizes.clone().into_iter().collect())),
        Student::Layers(n, layers) => {
            let no_layers = || Error::config(format!("student: {arch} has no layers to choose from"));
            let n_before = n_layers.ok_or_else(no_layers)?;
            let map = settings::layer_map(layers);
            let n_listed = match &map {
                LayerMap::Explicit(layers) => layers.len(),
                _ => 0,
            };
            Some(Smaller::Layers(map.resolve(n.unwrap_or(n_listed), n_before)?))
        }
    })
}

/// Predicts the tensors of the last student of these stages from headers and sizes.
///
/// The first stage starts from `original`.
///
/// # Errors
/// - Config: the student of a stage cannot be made from the model.
/// - Input: config.json is damaged.
pub(crate) fn predicted<'a>(
    mut stages: impl Iterator<Item = &'a DistillStage>,
    original: &Checkpoint,
) -> Result<Vec<TensorInfo>> {
    let Some(first) = stages.next() else { return Err(Error::bug("no stage trains")) };
    let arch = first.arch.as_deref().map(str::parse).transpose()?;
    let start = Outline::of(original, arch)?;
    let last = std::iter::once(first).chain(stages).try_fold(start, |outline, stage| {
        match how(stage, outline.arch(), outline.n_layers())? {
            Some(how) => outline.shrunk(&how),
            None => Ok(outline),
        }
    })?;
    last.tensors(first.choice.layout.unwrap_or(WeightLayout::Torch))
}

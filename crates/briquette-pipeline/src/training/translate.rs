//! Converts recipe values to those of burn and the models.

use briquette_core::Result;
use briquette_formats::{Checkpoint, Choice};
use briquette_models::data::{DataSpec, Normalize};
use briquette_recipe::raw::RawData;
use briquette_recipe::{DistillStage, Dtype};
use burn::tensor::FloatDType;
use std::path::Path;

/// Returns the half-precision type, if it is one.
pub(crate) fn half(dtype: Dtype) -> Option<FloatDType> {
    match dtype {
        Dtype::F32 => None,
        Dtype::Bf16 => Some(FloatDType::BF16),
        Dtype::F16 => Some(FloatDType::F16),
    }
}

/// Returns the data to run a model on, the recipe's `eval`.
pub(crate) fn spec_of(data: &RawData) -> DataSpec {
    let data = data.clone();
    DataSpec {
        path: data.eval.unwrap_or_default(),
        labels: data.labels,
        max_length: data.max_length,
        stride: data.stride,
        size: data.size,
        crop: data.crop,
        tile: data.tile,
        normalize: data.normalize.map(|of| Normalize { mean: of.mean, std: of.std }),
        strict: data.strict,
        ..DataSpec::default()
    }
}

/// Opens the teacher of a stage: the named one, or the original.
///
/// The recipe's key and layout apply only to the original. `teacher_layout` applies to the named teacher.
pub(crate) fn teacher_of(stage: &DistillStage, original: &Path) -> Result<Checkpoint> {
    match &stage.teacher {
        Some(teacher) if teacher != original => {
            Checkpoint::open_as(teacher, &Choice { layout: stage.teacher_layout, ..Choice::default() })
        }
        Some(_) | None => {
            let layout = stage.teacher_layout.or(stage.choice.layout);
            Checkpoint::open_as(original, &Choice { layout, ..stage.choice.clone() })
        }
    }
}

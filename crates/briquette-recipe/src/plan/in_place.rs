//! Outputs that are copies of the model's files with other values.

use crate::Recipe;
use briquette_core::{Error, Result};
use briquette_formats::onnx::Skeleton;
use briquette_formats::{Checkpoint, InputFile};
use briquette_writer::Plan;
use std::sync::Arc;

/// Refuses what a copy of an ONNX model cannot hold.
///
/// # Errors
/// Config: the model is no ONNX file, or a stage changes types or shapes.
pub(super) fn check(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<()> {
    if !recipe.profile.is_in_place() {
        return Ok(());
    }
    let message = if checkpoint.onnx_file().is_none() {
        let found = checkpoint.format();
        return Err(Error::config(format!("found a model in {found}, expected an ONNX file; choose another format"))
            .at("output.format"));
    } else if !recipe.parts.is_empty() || recipe.scales.is_some() {
        "an ONNX model cannot be distilled or factorized; remove the stage, or choose another format"
    } else if recipe.budget.is_some() {
        "an ONNX file stores floats, so no step size makes it smaller; remove the budget, or set format = \"briquette\""
    } else {
        return Ok(());
    };
    Err(Error::config(message).at("output.format"))
}

/// Refuses casts, and remarks that the file keeps its size.
///
/// # Errors
/// Config: a stage changes the type of a tensor.
pub(super) fn settle(plan: &mut Plan) -> Result<()> {
    if !plan.profile.is_in_place() {
        return Ok(());
    }
    if let Some(tensor) = plan.tensors.iter().find(|tensor| tensor.cast.is_some()) {
        let message = format!(
            "an ONNX file keeps the type {} of its tensors; choose another format, or use `briquette export --to onnx --cast f16`",
            tensor.info.dtype
        );
        return Err(Error::config(message).at(tensor.culprit()));
    }
    if plan.tensors.iter().any(|tensor| tensor.quant.is_some()) {
        plan.remarks
            .push("Quantized tensors are stored as dequantized floats, so the ONNX file keeps its size.".into());
    }
    Ok(())
}

/// Returns the files that an output in this format is a copy of; `None` for other formats.
///
/// # Errors
/// See [`Skeleton::read`].
pub(super) fn skeleton(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<Option<Arc<Skeleton>>> {
    match checkpoint.onnx_file().filter(|_| recipe.profile.is_in_place()) {
        Some(file) => Ok(Some(Arc::new(Skeleton::read(InputFile::open(file.path())?)?))),
        None => Ok(None),
    }
}

//! Opens the models that a recipe names.

use briquette_core::Result;
use briquette_formats::Checkpoint;
use briquette_recipe::Recipe;

/// The model to read.
///
/// # Errors
/// As [`Checkpoint::open_as`].
pub fn model(recipe: &Recipe) -> Result<Checkpoint> {
    Checkpoint::open_as(&recipe.model, &recipe.choice)
}

/// The teacher of a stage, which is the original where none is named.
///
/// # Errors
/// As [`Checkpoint::open_as`].
#[cfg(feature = "model")]
pub(crate) fn teacher(stage: &briquette_recipe::DistillStage, original: &std::path::Path) -> Result<Checkpoint> {
    match &stage.teacher {
        Some(teacher) => Checkpoint::open(teacher),
        None => Checkpoint::open_as(original, &stage.choice),
    }
}

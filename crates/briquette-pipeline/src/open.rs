//! Opens the models that a recipe names.

use crate::hub;
use briquette_core::Result;
use briquette_formats::Checkpoint;
use briquette_recipe::Recipe;

/// Opens the model of a recipe.
///
/// # Errors
/// See [`Checkpoint::open_as`].
pub fn model(recipe: &Recipe) -> Result<Checkpoint> {
    Checkpoint::open_as(&recipe.model, &recipe.choice).map_err(|error| hub::explain(error, recipe))
}

//! Statistics of the inputs that columns of tensors see, for stages whose scores use them.

use briquette_core::{Error, InputStats, InputView, Result};
use briquette_flow::{Plan, TensorPlan};
use briquette_formats::Checkpoint;
use briquette_formats::input_stats::StatisticsFile;
use briquette_recipe::{Recipe, Stage};
use std::collections::BTreeMap;

/// Gives a plan the input statistics that its prune stages name, for the tensors that these stages chose.
///
/// # Errors
/// Input where a file does not hold statistics, is of another model, lacks a layer, or has another number of inputs; Io.
pub(crate) fn take_in(plan: &mut Plan, recipe: &Recipe, checkpoint: &Checkpoint) -> Result<()> {
    for stage in recipe.file_stages() {
        let Stage::Prune(stage) = stage else { continue };
        let Some(path) = &stage.statistics else { continue };
        let file = StatisticsFile::read(path)?;
        file.check_model(checkpoint).map_err(|error| error.at(path.display()))?;
        let is_scored = |tensor: &&TensorPlan| tensor.prune.is_some_and(|prune| prune.score == stage.score);
        let chosen = plan.tensors.iter().filter(is_scored).filter(|tensor| tensor.tied_to().is_none());
        let views = chosen.map(|tensor| {
            Ok((tensor.index(), view_of(tensor, &file.layers).map_err(|error| error.at(path.display()))?))
        });
        let views = views.collect::<Result<BTreeMap<usize, InputView>>>()?;
        plan.inputs.extend(views);
    }
    Ok(())
}

/// The input statistics of one tensor; files name them by the path of the layer.
pub(crate) fn view_of(tensor: &TensorPlan, layers: &BTreeMap<String, InputStats>) -> Result<InputView> {
    let name = &tensor.info.name;
    let layer = name.strip_suffix(".weight").unwrap_or(name);
    let Some(stats) = layers.get(layer) else {
        let message = format!(
            "has no statistics of the inputs of {layer:?}; gather them too, or exclude {name:?} from the stage"
        );
        return Err(Error::input(message));
    };
    let (found, expected) = (stats.n_inputs(), tensor.rows.n_cols);
    if found != expected {
        return Err(Error::input(format!("has statistics of {found} inputs of {layer:?}, expected {expected}")));
    }
    Ok(stats.view())
}

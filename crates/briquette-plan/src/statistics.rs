//! Statistics of the inputs that columns of tensors see, for stages whose scores use them.

use briquette_core::{Error, InputStats, InputView, Result, Role};
use briquette_flow::{Plan, TensorPlan};
use briquette_formats::Checkpoint;
use briquette_formats::input_stats::StatisticsFile;
use briquette_recipe::{Recipe, Stage};
use std::collections::BTreeMap;

/// Gives a plan the input statistics that its stages name, for the tensors that these stages chose. Of a table that is looked up there are
/// none: its range is found without.
///
/// # Errors
/// Input where a file does not hold statistics, is of another model, lacks a layer, or has another number of inputs; Io.
pub(crate) fn take_in(plan: &mut Plan, recipe: &Recipe, checkpoint: &Checkpoint) -> Result<()> {
    for stage in recipe.file_stages() {
        let path = match stage {
            Stage::Prune(stage) => &stage.statistics,
            Stage::Quantize(stage) => &stage.statistics,
            _ => continue,
        };
        let Some(path) = path else { continue };
        let file = StatisticsFile::read(path)?;
        file.check_model(checkpoint).map_err(|error| error.at(path.display()))?;
        let is_judged = |tensor: &&TensorPlan| match stage {
            Stage::Prune(stage) => tensor.prune.is_some_and(|prune| prune.score == stage.score),
            _ => fits_by_inputs(tensor),
        };
        let chosen = plan.tensors.iter().filter(is_judged).filter(|tensor| tensor.tied_to().is_none());
        let views = chosen.map(|tensor| {
            Ok((tensor.index(), view_of(tensor, &file.layers).map_err(|error| error.at(path.display()))?))
        });
        let views = views.collect::<Result<BTreeMap<usize, InputView>>>()?;
        let differs = |(index, view): (&usize, &InputView)| plan.inputs.get(index).is_some_and(|known| known != view);
        if let Some((index, _)) = views.iter().find(|&found| differs(found)) {
            let name = &plan.tensors[*index].info.name;
            let message = format!("two stages have different statistics for {name:?}; name one file in both");
            return Err(Error::config(message).at("statistics"));
        }
        plan.inputs.extend(views);
    }
    Ok(())
}

/// Whether a tensor's score or range looks at its inputs.
pub fn needs_inputs(tensor: &TensorPlan) -> bool {
    tensor.prune.is_some_and(|prune| prune.score.needs_inputs()) || fits_by_inputs(tensor)
}

fn fits_by_inputs(tensor: &TensorPlan) -> bool {
    tensor.quant.is_some_and(|quant| quant.spec.range.needs_inputs()) && tensor.role != Role::Embedding
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
    let (found, expected) = (stats.n_inputs(), tensor.output_rows.n_cols);
    if found != expected {
        return Err(Error::input(format!("has statistics of {found} inputs of {layer:?}, expected {expected}")));
    }
    Ok(stats.view())
}
